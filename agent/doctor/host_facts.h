// SPDX-License-Identifier: Apache-2.0
/// What `doctor` judges: the host as it is, gathered without changing anything.
#pragma once

#include "agent/config/config.h"
#include "agent/core/result.h"
#include "agent/doctor/bpf_facts.h"
#include "agent/doctor/host.h"
#include "agent/doctor/port_facts.h"
#include "agent/kernel/instance.h"

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace spillway {

/// What /proc and /sys say about the host.
struct SystemFacts {
    std::string lockdown{}; ///< "none", "integrity", "confidentiality"; empty when the kernel has no lockdown
    bool bpf_filesystem = false;                 ///< mounted at /sys/fs/bpf
    bool forwards_ipv4 = false;                  ///< on any interface
    bool forwarding_sets_priority = false;       ///< net.ipv4.ip_forward_update_priority
    std::vector<std::string> bridge_netfilter{}; ///< of "iptables", "ip6tables", "arptables": those called
};

/// The configuration that the host is judged by.
struct ConfigFacts {
    std::filesystem::path file{};
    bool absent = false;          ///< there is no such file
    std::optional<Error> fault{}; ///< why it cannot be used; also set when it is absent
    Config config{}; ///< what the file says; without one, the Ethernet ports in which packets can wait

    [[nodiscard]] bool usable() const { return !fault; }
};

struct HostFacts {
    ConfigFacts config;
    Host host;
    BpfFacts bpf;
    SystemFacts system;
    std::map<int, PortFacts> ports; ///< by ifindex, of the ports that the configuration names
};

/// Gathers everything. Fails only where the kernel does not answer questions about ports and qdiscs.
[[nodiscard]] Result<HostFacts> gather_host_facts(const std::filesystem::path &config_file,
                                                  const Paths &paths);

} // namespace spillway
