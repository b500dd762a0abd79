// SPDX-License-Identifier: Apache-2.0
/// When CIPs may be sent: per flow (spec B1, design §9) and per port and second. Pure.
#pragma once

#include <cstdint>
#include <deque>

namespace spillway {

struct CipLimits {
    std::uint64_t refresh_ns = 0;     ///< between the first CIPs for a mark
    std::uint64_t life_ns = 0;        ///< max_flow_life: later ones come each quarter of it
    std::uint32_t max_per_flow = 0;   ///< how many come refresh_ns apart
    std::uint32_t max_per_second = 0; ///< of one port
};

/// No CIP for the flow before this time, after the `sent`-th one was sent at `now_ns`. Both repeats of our
/// own and CIPs sent on obey it, so over T at most max_per_flow + T / (life/4) go out on a link.
[[nodiscard]] constexpr std::uint64_t next_due(const CipLimits &limits, std::uint32_t sent,
                                               std::uint64_t now_ns) {
    return now_ns + (sent < limits.max_per_flow ? limits.refresh_ns : limits.life_ns / 4);
}

/// Whether a repeat of our own is due (B1): up to max_per_flow while the flow is isolated here, then only
/// while its isolation queue stays above the low waterline.
[[nodiscard]] constexpr bool repeat_due(const CipLimits &limits, std::uint32_t sent, std::uint64_t due_ns,
                                        bool isolation_busy, std::uint64_t now_ns) {
    return now_ns >= due_ns && (sent < limits.max_per_flow || isolation_busy);
}

/// CIPs of one port: at most `per_second` in any second, wherever it begins, as IEEE 802.3 limits slow
/// protocols.
class RateLimit {
  public:
    /// Takes a turn; false when there is none. `now_ns` never goes back.
    bool take(std::uint32_t per_second, std::uint64_t now_ns) {
        constexpr std::uint64_t second = 1'000'000'000;
        while (!taken_ns_.empty() && now_ns - taken_ns_.front() >= second)
            taken_ns_.pop_front();
        if (taken_ns_.size() >= per_second)
            return false;
        taken_ns_.push_back(now_ns);
        return true;
    }

  private:
    std::deque<std::uint64_t> taken_ns_; ///< turns taken within the last second
};

} // namespace spillway
