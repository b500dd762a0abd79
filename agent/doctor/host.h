// SPDX-License-Identifier: Apache-2.0
/// What a host must have for a configuration to work on it.
#pragma once

#include "agent/config/config.h"
#include "agent/core/result.h"
#include "agent/kernel/instance.h"
#include "agent/kernel/netlink.h"
#include "agent/kernel/tc_tree.h"

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace spillway {

/// The host as it is.
struct Host {
    bool has_btf = false;
    std::vector<std::string> missing_capabilities;
    std::vector<LinkInfo> links;
    std::map<int, TcTree> trees;          ///< by ifindex, of the ports that the configuration names
    std::set<std::uint32_t> own_programs; ///< ids of the programs on the instance's links
    std::map<int, std::string> others;    ///< by ifindex: the other instance that a port belongs to
};

[[nodiscard]] Result<Host> read_host(const Config &config, const Paths &paths);

/// The host's ports that the configuration names.
[[nodiscard]] std::vector<const LinkInfo *> named_ports(const Config &config, const Host &host);

/// An XDP program runs on the port, and is no instance's.
[[nodiscard]] bool foreign_xdp(const LinkInfo &link, const Host &host);

/// One thing that keeps the configuration from working.
struct HostProblem {
    std::string check; ///< the check of `doctor` that it belongs to, see agent/doctor/diagnosis.h
    std::string port;  ///< empty: the host
    Error error;       ///< a sentence with a hint, of kind usage
};

/// Everything that keeps the configuration from working.
[[nodiscard]] std::vector<HostProblem> host_problems(const Config &config, const Host &host);

} // namespace spillway
