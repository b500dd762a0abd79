// SPDX-License-Identifier: Apache-2.0
#include "tests/lab/pause_frame.h"

#include <algorithm>

namespace spillway::lab {

namespace {

constexpr std::array<std::uint8_t, 6> destination = {0x01, 0x80, 0xC2, 0x00, 0x00, 0x01};
constexpr std::uint16_t opcode = 0x0101; // priority-based; 0x0001 is the older pause of the whole link
constexpr std::uint64_t quantum_bits = 512;

// Where the fields begin.
constexpr std::size_t source_at = 6;
constexpr std::size_t ethertype_at = 12;
constexpr std::size_t opcode_at = 14;
constexpr std::size_t vector_at = 16;
constexpr std::size_t timers_at = 18;
constexpr std::size_t timers_end = timers_at + 2 * std::size_t{pause_priorities};

void put16(std::span<std::uint8_t> bytes, std::size_t at, std::uint16_t value) {
    bytes[at] = static_cast<std::uint8_t>(value >> 8U);
    bytes[at + 1] = static_cast<std::uint8_t>(value & 0xFFU);
}

std::uint16_t get16(std::span<const std::uint8_t> bytes, std::size_t at) {
    return static_cast<std::uint16_t>(bytes[at] << 8U | bytes[at + 1]);
}

} // namespace

std::array<std::uint8_t, pause_frame_size> encode(const PauseFrame &frame) {
    std::array<std::uint8_t, pause_frame_size> bytes{};
    std::ranges::copy(destination, bytes.begin());
    std::ranges::copy(frame.source, bytes.begin() + source_at);
    put16(bytes, ethertype_at, pause_ethertype);
    put16(bytes, opcode_at, opcode);
    put16(bytes, vector_at, frame.enabled); // the upper byte is reserved
    for (std::size_t priority = 0; priority < pause_priorities; ++priority)
        put16(bytes, timers_at + 2 * priority, frame.quanta[priority]);
    return bytes;
}

std::optional<PauseFrame> decode_pause(std::span<const std::uint8_t> bytes) {
    if (bytes.size() < timers_end || !std::ranges::equal(bytes.first(destination.size()), destination) ||
        get16(bytes, ethertype_at) != pause_ethertype || get16(bytes, opcode_at) != opcode)
        return std::nullopt;
    PauseFrame frame;
    std::ranges::copy(bytes.subspan(source_at, frame.source.size()), frame.source.begin());
    frame.enabled = bytes[vector_at + 1];
    for (std::size_t priority = 0; priority < pause_priorities; ++priority)
        frame.quanta[priority] = get16(bytes, timers_at + 2 * priority);
    return frame;
}

std::uint64_t pause_ns(std::uint16_t quanta, std::uint64_t rate) {
    return quanta * quantum_bits * 1'000'000'000 / rate;
}

} // namespace spillway::lab
