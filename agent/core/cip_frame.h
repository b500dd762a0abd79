// SPDX-License-Identifier: Apache-2.0
/// The Ethernet carrier of a CIP (spec R2a, design §8); the payload is include/spillway/cip.h's.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace spillway {

using MacAddress = std::array<std::uint8_t, 6>;

struct CipCarrier {
    MacAddress destination{}; ///< the upstream node
    MacAddress source{};      ///< our port
    std::uint16_t ethertype = 0;
    std::uint16_t vlan_proto = 0; ///< EtherType of the tag the flow's packets came with; 0: untagged
    std::uint16_t vlan_tci = 0;   ///< that tag; its VID is kept
    std::uint8_t pcp = 0;         ///< priority in our tag, 0..7
};

/// The whole frame, padded with zeros to 60 bytes (64 with FCS).
[[nodiscard]] std::vector<std::uint8_t> cip_frame(const CipCarrier &carrier,
                                                  std::span<const std::uint8_t> payload);

} // namespace spillway
