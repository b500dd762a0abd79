// SPDX-License-Identifier: Apache-2.0
#include "agent/core/flow_text.h"
#include "tests/prog/packet.h"
#include "tests/unit/guarded_copy.h"

#include <spillway/cip.h>

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace spillway {
namespace {

using namespace packet;

spillway_flow_key key_of(const std::string &text) {
    const std::array<std::string, 1> words{text};
    const auto key = parse_flow(words);
    if (!key)
        throw std::invalid_argument(key.error().text());
    return *key;
}

Bytes write(const spillway_flow_key &key) {
    Bytes payload(SPILLWAY_CIP_PAYLOAD_MAX, 0xff); // whatever was there before
    payload.resize(spillway_cip_write(&key, payload.data()));
    return payload;
}

spillway_reason read(std::span<const std::uint8_t> payload, spillway_flow_key &key) {
    const test::GuardedCopy copy(payload);
    key = {};
    return spillway_cip_read(copy.begin(), copy.end(), &key);
}

TEST(Cip, WhatIsWrittenIsReadAsTheSameFlow) {
    for (const char *text :
         {"udp 10.0.0.1:5000 10.0.0.2:6000", "tcp 10.0.0.1:5000 10.0.0.2:6000",
          "udp 255.255.255.255:65535 0.0.0.0:0", "udp 10.0.0.1 10.0.0.2", "tcp 10.0.0.1 10.0.0.2",
          "icmp 10.0.0.1 10.0.0.2", "esp 10.0.0.1 10.0.0.2", "0 10.0.0.1 10.0.0.2", "255 10.0.0.1 10.0.0.2",
          "udp [fd00::1]:5000 [fd00::2]:6000", "tcp [fd00::1]:5000 [fd00::2]:6000", "udp fd00::1 fd00::2",
          "tcp fd00::1 fd00::2", "icmpv6 fd00::1 fd00::2", "esp fd00::1 fd00::2", "59 fd00::1 fd00::2"}) {
        SCOPED_TRACE(text);
        const spillway_flow_key key = key_of(text);
        const Bytes payload = write(key);
        spillway_flow_key back{};
        EXPECT_EQ(read(payload, back), SPILLWAY_OK);
        EXPECT_EQ(std::memcmp(&back, &key, sizeof(key)), 0) << flow_text(back);
        // On the wire it is padded to the shortest frame.
        Bytes padded = payload;
        padded.resize(std::max<std::size_t>(padded.size(), SPILLWAY_CIP_PAYLOAD_MIN));
        EXPECT_EQ(read(padded, back), SPILLWAY_OK);
        EXPECT_EQ(std::memcmp(&back, &key, sizeof(key)), 0) << flow_text(back);
        EXPECT_TRUE(spillway_cip_is_ours(payload[0]));
    }
}

TEST(Cip, LiteralBytesOfUdpOverIpv4) {
    const Bytes wanted{
        0x45, 0x00, 0x00, 0x1c, 0x00, 0x00, 0x00, 0x00, 0x40, 0x11, 0x66, 0xcf, 10, 0, 0, 1, 10, 0, 0, 2, //
        0x13, 0x88, 0x17, 0x70, 0x00, 0x08, 0x00, 0x00,
    };
    EXPECT_EQ(write(key_of("udp 10.0.0.1:5000 10.0.0.2:6000")), wanted);
}

TEST(Cip, LiteralBytesOfTcpOverIpv4) {
    const Bytes wanted{
        0x45, 0x00, 0x00, 0x28, 0x00, 0x00, 0x00, 0x00, 0x40, 0x06,
        0x66, 0xce, 10,   0,    0,    1,    10,   0,    0,    2, //
        0x13, 0x88, 0x17, 0x70, 0,    0,    0,    0,    0,    0,
        0,    0,    0x50, 0x00, 0,    0,    0,    0,    0,    0,
    };
    EXPECT_EQ(write(key_of("tcp 10.0.0.1:5000 10.0.0.2:6000")), wanted);
}

TEST(Cip, LiteralBytesOfFragmentsOverIpv4) {
    const Bytes wanted{
        0x45, 0x00, 0x00, 0x14, 0x00, 0x00, 0x20, 0x00, 0x40, 0x11, 0x46, 0xd7, 10, 0, 0, 1, 10, 0, 0, 2,
    };
    EXPECT_EQ(write(key_of("udp 10.0.0.1 10.0.0.2")), wanted);
}

TEST(Cip, LiteralBytesOfUdpOverIpv6) {
    const Bytes wanted{
        0x60, 0x00, 0x00, 0x00, 0x00, 0x08, 0x11, 0x40,                         //
        0xfd, 0,    0,    0,    0,    0,    0,    0,    0, 0, 0, 0, 0, 0, 0, 1, //
        0xfd, 0,    0,    0,    0,    0,    0,    0,    0, 0, 0, 0, 0, 0, 0, 2, //
        0x13, 0x88, 0x17, 0x70, 0x00, 0x08, 0x00, 0x00,
    };
    EXPECT_EQ(write(key_of("udp [fd00::1]:5000 [fd00::2]:6000")), wanted);
}

TEST(Cip, LiteralBytesOfFragmentsOverIpv6) {
    const Bytes wanted{
        0x60, 0x00, 0x00, 0x00, 0x00, 0x08, 0x2c, 0x40,                         //
        0xfd, 0,    0,    0,    0,    0,    0,    0,    0, 0, 0, 0, 0, 0, 0, 1, //
        0xfd, 0,    0,    0,    0,    0,    0,    0,    0, 0, 0, 0, 0, 0, 0, 2, //
        0x06, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00,
    };
    EXPECT_EQ(write(key_of("tcp fd00::1 fd00::2")), wanted);
}

/// As a router checks it: the header sums up to 0xffff.
TEST(Cip, HeaderChecksumIsRight) {
    for (int i = 0; i < 2000; i++) {
        spillway_flow_key key = key_of("udp 0.0.0.0:1 0.0.0.0:2");
        for (std::size_t byte = 0; byte < 4; byte++) {
            key.src[byte] = static_cast<__u8>(i * 37 + static_cast<int>(byte) * 91);
            key.dst[byte] = static_cast<__u8>(i % 3 == 0 ? 0xff : i * 11 + static_cast<int>(byte));
        }
        key.flags = i % 2 == 0 ? SPILLWAY_KEY_PORTS : 0;
        const Bytes payload = write(key);
        unsigned sum = 0;
        for (std::size_t at = 0; at < 20; at += 2)
            sum += static_cast<unsigned>(payload[at] << 8U | payload[at + 1]);
        while (sum > 0xffff)
            sum = (sum & 0xffffU) + (sum >> 16U);
        ASSERT_EQ(sum, 0xffffU) << i;
    }
}

TEST(Cip, VerbatimHeadersAreReadAsTheirFlow) {
    const spillway_flow_key tcp = key_of("tcp 10.0.0.1:5000 10.0.0.2:6000");
    spillway_flow_key key{};
    // Lengths inside are the flow packet's own, far longer than the frame.
    const Bytes options =
        (IPv4{.tos = 0x10, .id = 77, .options = Bytes(4, 1)} / Tcp{.options = Bytes(12, 1)} / zeros(1000))
            .bytes();
    EXPECT_EQ(read(std::span(options).first(24 + 32), key), SPILLWAY_OK);
    EXPECT_EQ(std::memcmp(&key, &tcp, sizeof(key)), 0);
    const Bytes six = (IPv6{} / Extension{.kind = 0} / Udp{} / zeros(1000)).bytes();
    const spillway_flow_key udp = key_of("udp [fd00::1]:5000 [fd00::2]:6000");
    EXPECT_EQ(read(std::span(six).first(56), key), SPILLWAY_OK);
    EXPECT_EQ(std::memcmp(&key, &udp, sizeof(key)), 0);
}

TEST(Cip, BadOnesHaveTheirReason) {
    struct Case {
        const char *what;
        Bytes payload;
        spillway_reason reason;
    };
    Packet chain = IPv6{};
    for (int i = 0; i <= SPILLWAY_EXTENSIONS_MAX; i++)
        chain = chain / Extension{};
    Bytes descriptor(52);
    descriptor[0] = SPILLWAY_CIP_DESCRIPTOR;
    for (const Case &bad : {
             Case{"nothing", {}, SPILLWAY_TOO_SHORT},
             Case{"one byte of IPv4", {0x45}, SPILLWAY_TOO_SHORT},
             Case{"one byte of IPv6", {0x60}, SPILLWAY_TOO_SHORT},
             Case{"the descriptor form", descriptor, SPILLWAY_BAD_VERSION},
             Case{"IHL 4", (IPv4{.header_words = 4} / Udp{}).bytes(), SPILLWAY_BAD_HEADER},
             Case{"TCP offset 0", (IPv4{} / Tcp{.header_words = 0}).bytes(), SPILLWAY_BAD_HEADER},
             Case{"too many extensions", (chain / Udp{}).bytes(), SPILLWAY_TOO_MANY_EXTENSIONS},
         }) {
        spillway_flow_key key{};
        EXPECT_EQ(read(bad.payload, key), bad.reason) << bad.what;
    }
}

TEST(Cip, OnlyItsFirstNibbleMakesAFrameOurs) {
    for (unsigned first = 0; first < 256; first++) {
        const bool ours =
            (first >= 0x40 && first <= 0x4f) || (first >= 0x60 && first <= 0x6f) || first == 0xc1;
        EXPECT_EQ(spillway_cip_is_ours(static_cast<std::uint8_t>(first)) != 0, ours) << first;
    }
    for (const std::uint8_t slow_protocol : Bytes{0x01, 0x02, 0x03, 0x0a}) // LACP, marker, OAM, ESMC
        EXPECT_FALSE(spillway_cip_is_ours(slow_protocol));
}

} // namespace
} // namespace spillway
