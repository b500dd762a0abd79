// SPDX-License-Identifier: Apache-2.0
/// How many lines about single flows the log gets: a storm of marks must not become a storm of lines.
#pragma once

#include <cstdint>

namespace spillway {

class LineBudget {
  public:
    /// `lines`: most in a second of CLOCK_MONOTONIC.
    explicit LineBudget(std::uint32_t lines) : lines_(lines) {}

    /// Whether one more line may be written now.
    bool take(std::uint64_t now_ns) {
        constexpr std::uint64_t second_ns = 1'000'000'000;
        if (const std::uint64_t second = now_ns / second_ns; second != second_) {
            second_ = second;
            taken_ = 0;
        }
        if (taken_ >= lines_) {
            withheld_++;
            return false;
        }
        taken_++;
        return true;
    }

    /// Lines not written since the last call.
    std::uint64_t withheld() {
        const std::uint64_t count = withheld_;
        withheld_ = 0;
        return count;
    }

  private:
    std::uint32_t lines_;
    std::uint32_t taken_ = 0;
    std::uint64_t second_ = 0;
    std::uint64_t withheld_ = 0;
};

} // namespace spillway
