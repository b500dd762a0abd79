// SPDX-License-Identifier: Apache-2.0
/// The frame of priority-based flow control (IEEE 802.1Qbb): a MAC control frame with a timer per priority.
///
///     01-80-C2-00-00-01 | source | 0x8808 | 0x0101 | enable vector | 8 timers | zeros up to 60 bytes
///
/// All fields are big-endian. A timer counts quanta of 512 bit times at the speed of the link; 0 resumes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace spillway::lab {

inline constexpr std::uint16_t pause_ethertype = 0x8808;
inline constexpr unsigned pause_priorities = 8;
inline constexpr std::size_t pause_frame_size = 60; ///< bytes, without the FCS

struct PauseFrame {
    std::array<std::uint8_t, 6> source{};
    std::uint8_t enabled = 0; ///< bit p: timer p counts; the others are not looked at
    std::array<std::uint16_t, pause_priorities> quanta{};

    bool operator==(const PauseFrame &) const = default;
};

/// The frame as bytes, from the destination MAC on.
std::array<std::uint8_t, pause_frame_size> encode(const PauseFrame &frame);

/// Reads a frame; nothing if it is of another kind or shorter than its timers. Padding is not looked at.
std::optional<PauseFrame> decode_pause(std::span<const std::uint8_t> bytes);

/// How long a timer pauses a link of `rate` bit/s, in nanoseconds.
std::uint64_t pause_ns(std::uint16_t quanta, std::uint64_t rate);

} // namespace spillway::lab
