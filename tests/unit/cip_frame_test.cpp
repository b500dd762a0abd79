// SPDX-License-Identifier: Apache-2.0
#include "agent/core/cip_frame.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace spillway {
namespace {

using Bytes = std::vector<std::uint8_t>;

const CipCarrier untagged{.destination = {0x02, 0xaa, 0, 0, 0, 1},
                          .source = {0x02, 0xbb, 0, 0, 0, 2},
                          .ethertype = 0x8809,
                          .vlan_proto = 0,
                          .vlan_tci = 0,
                          .pcp = 6};

TEST(CipFrame, ShortPayloadIsPaddedWithZerosToTheShortestFrame) {
    Bytes wanted{0x02, 0xaa, 0, 0, 0, 1, 0x02, 0xbb, 0, 0, 0, 2, 0x88, 0x09, 0x45, 0x11};
    wanted.resize(60);
    EXPECT_EQ(cip_frame(untagged, Bytes{0x45, 0x11}), wanted);
}

TEST(CipFrame, TagKeepsTheVlanAndTakesOurPriority) {
    CipCarrier carrier = untagged;
    carrier.vlan_proto = 0x8100;
    carrier.vlan_tci = 0x3abc; // PCP 1, DEI, VID 0xabc
    Bytes wanted{0x02, 0xaa, 0,    0,    0,    1,    0x02, 0xbb, 0,    0,
                 0,    2,    0x81, 0x00, 0xca, 0xbc, 0x88, 0x09, 0x45, 0x11};
    wanted.resize(60);
    EXPECT_EQ(cip_frame(carrier, Bytes{0x45, 0x11}), wanted);
    carrier.vlan_proto = 0x88a8;
    carrier.pcp = 0;
    wanted[12] = 0x88;
    wanted[13] = 0xa8;
    wanted[14] = 0x0a;
    EXPECT_EQ(cip_frame(carrier, Bytes{0x45, 0x11}), wanted);
}

TEST(CipFrame, LongPayloadIsNotPadded) {
    for (const std::size_t size : {45U, 46U, 47U, 255U}) {
        const Bytes payload(size, 0x5a);
        const Bytes frame = cip_frame(untagged, payload);
        EXPECT_EQ(frame.size(), std::max<std::size_t>(60, 14 + size));
        EXPECT_TRUE(std::equal(payload.begin(), payload.end(), frame.begin() + 14));
    }
}

TEST(CipFrame, EthertypeIsTheConfiguredOne) {
    CipCarrier carrier = untagged;
    carrier.ethertype = 0x88b5;
    const Bytes frame = cip_frame(carrier, Bytes{0x60});
    EXPECT_EQ(frame[12], 0x88);
    EXPECT_EQ(frame[13], 0xb5);
}

} // namespace
} // namespace spillway
