// SPDX-License-Identifier: Apache-2.0
/// The one clock of the project: CLOCK_MONOTONIC, the same as bpf_ktime_get_ns().
#pragma once

#include <cstdint>
#include <ctime>

namespace spillway {

/// Nanoseconds; stops while the machine is suspended.
inline std::uint64_t now_ns() {
    timespec time{};
    ::clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000U +
           static_cast<std::uint64_t>(time.tv_nsec);
}

inline constexpr std::uint64_t ms_to_ns(std::uint64_t ms) {
    return ms * 1'000'000U;
}

} // namespace spillway
