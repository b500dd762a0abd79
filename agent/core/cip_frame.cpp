// SPDX-License-Identifier: Apache-2.0
#include "agent/core/cip_frame.h"

namespace spillway {

std::vector<std::uint8_t> cip_frame(const CipCarrier &carrier, std::span<const std::uint8_t> payload) {
    constexpr std::size_t shortest = 60;
    constexpr std::uint16_t vid_mask = 0x0fff;
    std::vector<std::uint8_t> frame;
    frame.reserve(shortest + payload.size());
    const auto add16 = [&frame](unsigned value) {
        frame.push_back(static_cast<std::uint8_t>(value >> 8U));
        frame.push_back(static_cast<std::uint8_t>(value & 0xffU));
    };
    frame.insert(frame.end(), carrier.destination.begin(), carrier.destination.end());
    frame.insert(frame.end(), carrier.source.begin(), carrier.source.end());
    if (carrier.vlan_proto != 0) {
        add16(carrier.vlan_proto);
        add16((static_cast<unsigned>(carrier.pcp) << 13U) | (carrier.vlan_tci & vid_mask));
    }
    add16(carrier.ethertype);
    frame.insert(frame.end(), payload.begin(), payload.end());
    if (frame.size() < shortest)
        frame.resize(shortest);
    return frame;
}

} // namespace spillway
