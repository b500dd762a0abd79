// SPDX-License-Identifier: Apache-2.0
/// What of the host will not work with spillway, and the remedy: facts in, list of checks out; no I/O.
#pragma once

#include "agent/doctor/host_facts.h"

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

enum class Level { problem, note, fine };

[[nodiscard]] std::string_view to_string(Level level);

/// What is looked at; spillway(8) explains each.
inline constexpr std::array check_ids{
    // the host
    "bpf", "bpffs", "bridge_netfilter", "btf", "configuration", "forward_priority", "kernel_read", "lockdown",
    "privilege", "programs", "ring_buffer", "tc_hook",
    // each port
    "classes", "drain", "filters", "flow_control", "gro", "isolation_class", "lro", "master", "noqueue",
    "offloads", "port", "share", "switchdev", "tc_programs", "upper", "xdp", "xps"};

/// One thing looked at.
struct Check {
    std::string id{}; ///< one of check_ids
    Level level = Level::fine;
    std::string port{};   ///< empty: the host
    std::string text{};   ///< one sentence; begins with the port
    std::string remedy{}; ///< empty when there is none, or nothing to be done

    bool operator==(const Check &) const = default;
};

/// All checks that apply, problems first, then notes; the host before its ports.
[[nodiscard]] std::vector<Check> diagnose(const HostFacts &facts);

} // namespace spillway
