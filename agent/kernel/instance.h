// SPDX-License-Identifier: Apache-2.0
/// An instance of spillway: its name, its folder in the BPF file system, and the lock of its one agent.
#pragma once

#include "agent/core/fd.h"
#include "agent/core/result.h"

#include <filesystem>
#include <string>
#include <string_view>

namespace spillway {

inline constexpr std::string_view default_instance = "default";

/// The remedy when the kernel refuses for lack of privilege.
inline constexpr std::string_view privilege_hint =
    "run as root (with capabilities BPF, NET_ADMIN, NET_RAW and PERFMON)";

/// Accepts [A-Za-z0-9_-]{1,32}; anything else is a usage error.
[[nodiscard]] Result<> valid_instance(std::string_view name);

/// Where the instance pins what it has in the kernel.
struct Paths {
    explicit Paths(std::string_view name);

    std::string instance;
    std::filesystem::path root;  ///< /sys/fs/bpf/spillway/INSTANCE; the agent holds its lock
    std::filesystem::path maps;  ///< root/maps, a file a map, by the map's name
    std::filesystem::path links; ///< root/links
    std::filesystem::path progs; ///< root/progs
};

/// Makes sure that /sys/fs/bpf is a BPF file system; mounts one where there is none.
[[nodiscard]] Result<> ensure_bpffs();

/// True while an agent of the instance lives. False also when the instance is not there or not readable.
[[nodiscard]] bool agent_running(const Paths &paths);

/// Holds the instance's name in this network namespace, as an abstract socket: the lock below does not reach
/// an agent that sees another BPF file system (`ip netns exec` mounts one). Fails when another agent holds
/// it.
[[nodiscard]] Result<Fd> claim_name(const Paths &paths);

/// The instance's exclusive lock, for as long as the descriptor is open; it is let go when the process dies,
/// however it dies. Makes the instance's folders where they are missing. Fails when an agent holds it.
[[nodiscard]] Result<Fd> lock_instance(const Paths &paths);

} // namespace spillway
