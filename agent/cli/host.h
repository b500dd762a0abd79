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

/// Everything that keeps the configuration from working, as sentences with hints, of kind usage.
[[nodiscard]] std::vector<Error> host_problems(const Config &config, const Host &host);

} // namespace spillway
