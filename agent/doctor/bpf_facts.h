// SPDX-License-Identifier: Apache-2.0
/// What of BPF the kernel grants this process: tried, never told from the kernel's version. Nothing stays.
#pragma once

#include "agent/core/result.h"

#include <optional>

namespace spillway {

/// Where TC programs can hang.
enum class TcHook { none, clsact, tcx };

/// What could not be tried is empty.
struct BpfFacts {
    int refusal = 0;                  ///< errno for the least of programs; 0: taken
    std::optional<Error> programs{};  ///< why the kernel refuses our own programs, without reading queues
    std::optional<bool> queue_read{}; ///< our TC program may read queues itself
    std::optional<bool> ring_buffer{};
    std::optional<TcHook> tc_hook{};
};

[[nodiscard]] BpfFacts try_bpf();

} // namespace spillway
