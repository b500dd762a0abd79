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
    payload.resize(spillway_headers_write(&key, SPILLWAY_VXLAN_PORT, payload.data()));
    return payload;
}

Bytes write(const spillway_cip &cip) {
    Bytes payload(SPILLWAY_CIP_PAYLOAD_MAX, 0xff);
    payload.resize(spillway_descriptor_write(&cip, payload.data()));
    return payload;
}

spillway_reason read(std::span<const std::uint8_t> payload, spillway_cip &cip) {
    const test::GuardedCopy copy(payload);
    const spillway_tunnels tunnels{.vxlan_ports = {SPILLWAY_VXLAN_PORT, 0, 0, 0}};
    cip = {};
    return spillway_cip_read(copy.begin(), copy.end(), &tunnels, &cip);
}

spillway_reason read(std::span<const std::uint8_t> payload, spillway_flow_key &key) {
    spillway_cip cip{};
    const spillway_reason reason = read(payload, cip);
    EXPECT_TRUE(reason != SPILLWAY_OK || cip.type == SPILLWAY_CIP_ISOLATE);
    EXPECT_EQ(cip.lifetime_ms, 0U);
    key = cip.key;
    return reason;
}

const std::vector<const char *> flows{"udp 10.0.0.1:5000 10.0.0.2:6000",
                                      "tcp 10.0.0.1:5000 10.0.0.2:6000",
                                      "udp 255.255.255.255:65535 0.0.0.0:0",
                                      "udp 10.0.0.1 10.0.0.2",
                                      "tcp 10.0.0.1 10.0.0.2",
                                      "icmp 10.0.0.1 10.0.0.2",
                                      "esp 10.0.0.1 10.0.0.2",
                                      "0 10.0.0.1 10.0.0.2",
                                      "255 10.0.0.1 10.0.0.2",
                                      "udp [fd00::1]:5000 [fd00::2]:6000",
                                      "tcp [fd00::1]:5000 [fd00::2]:6000",
                                      "udp fd00::1 fd00::2",
                                      "tcp fd00::1 fd00::2",
                                      "icmpv6 fd00::1 fd00::2",
                                      "esp fd00::1 fd00::2",
                                      "59 fd00::1 fd00::2",
                                      "udp 10.0.0.1:5000 10.0.0.2:4789",
                                      "udp 10.0.0.1:5000 10.0.0.2:6000 vni 7",
                                      "tcp 10.0.0.1:5000 10.0.0.2:6000 vni 0",
                                      "icmp 10.0.0.1 10.0.0.2 vni 16777215",
                                      "udp 10.0.0.1 10.0.0.2 vni 7",
                                      "udp 10.0.0.1:5000 10.0.0.2:4789 vni 7",
                                      "tcp [fd00::1]:5000 [fd00::2]:6000 vni 7",
                                      "tcp fd00::1 fd00::2 vni 7"};

TEST(Cip, WhatIsWrittenIsReadAsTheSameFlow) {
    for (const char *text : flows) {
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
    for (const Case &bad : {
             Case{"nothing", {}, SPILLWAY_TOO_SHORT},
             Case{"one byte of IPv4", {0x45}, SPILLWAY_TOO_SHORT},
             Case{"one byte of IPv6", {0x60}, SPILLWAY_TOO_SHORT},
             Case{"VXLAN in VXLAN",
                  (IPv4{} / Udp{.dport = 4789} / Vxlan{} / Ethernet{} / IPv4{} / Udp{.dport = 4789} /
                   Vxlan{} / Ethernet{} / IPv4{} / Udp{})
                      .bytes(),
                  SPILLWAY_NESTED_TUNNEL},
             Case{"ARP in VXLAN",
                  (IPv4{} / Udp{.dport = 4789} / Vxlan{} / Ethernet{.type = 0x0806} / zeros(28)).bytes(),
                  SPILLWAY_NOT_IP},
             Case{"IHL 4", (IPv4{.header_words = 4} / Udp{}).bytes(), SPILLWAY_BAD_HEADER},
             Case{"TCP offset 0", (IPv4{} / Tcp{.header_words = 0}).bytes(), SPILLWAY_BAD_HEADER},
             Case{"too many extensions", (chain / Udp{}).bytes(), SPILLWAY_TOO_MANY_EXTENSIONS},
         }) {
        spillway_flow_key key{};
        EXPECT_EQ(read(bad.payload, key), bad.reason) << bad.what;
    }
}

/// Cut at every length a VXLAN packet's headers are refused, until the last one is there.
TEST(Cip, CutTunnelHeadersAreTooShort) {
    const Bytes whole = (IPv4{} / Udp{.dport = 4789} / Vxlan{} / Ethernet{} / IPv4{} / Tcp{}).bytes();
    for (std::size_t length = 0; length < whole.size(); length++) {
        spillway_flow_key key{};
        EXPECT_EQ(read(std::span(whole).first(length), key), SPILLWAY_TOO_SHORT) << length;
    }
}

TEST(Descriptor, WhatIsWrittenIsReadAsTheSame) {
    for (const char *text : flows)
        for (const spillway_cip_type type : {SPILLWAY_CIP_ISOLATE, SPILLWAY_CIP_RESTORE})
            for (const std::uint32_t lifetime : {0U, 1U, 1000U, 65535U}) {
                SCOPED_TRACE(text);
                const spillway_cip cip{.key = key_of(text),
                                       .type = type,
                                       .lifetime_ms = lifetime,
                                       .sequence = 0xdeadbeef - lifetime};
                const Bytes payload = write(cip);
                EXPECT_EQ(payload.size(), 52U);
                EXPECT_TRUE(spillway_cip_is_ours(payload[0]));
                spillway_cip back{};
                ASSERT_EQ(read(payload, back), SPILLWAY_OK);
                EXPECT_EQ(std::memcmp(&back.key, &cip.key, sizeof(cip.key)), 0) << flow_text(back.key);
                EXPECT_EQ(back.type, type);
                EXPECT_EQ(back.lifetime_ms, lifetime);
                EXPECT_EQ(back.sequence, cip.sequence);
            }
}

TEST(Descriptor, LiteralBytes) {
    const spillway_cip cip{.key = key_of("udp 10.0.0.1:5000 10.0.0.2:6000 vni 7"),
                           .type = SPILLWAY_CIP_RESTORE,
                           .lifetime_ms = 1000,
                           .sequence = 0x01020304};
    const Bytes wanted{
        0xc1, 2,    4,    17,   0,    3,    0x03, 0xe8, // magic, type, family, protocol, flags, lifetime
        0,    0,    0,    7,    0x13, 0x88, 0x17, 0x70, // VNI, ports
        10,   0,    0,    1,    0,    0,    0,    0,    0, 0, 0, 0, 0, 0, 0, 0, //
        10,   0,    0,    2,    0,    0,    0,    0,    0, 0, 0, 0, 0, 0, 0, 0, //
        0x01, 0x02, 0x03, 0x04,                                                 //
    };
    EXPECT_EQ(write(cip), wanted);
}

TEST(Descriptor, BadOnesHaveTheirReason) {
    struct Case {
        const char *what;
        std::size_t at;
        std::uint8_t value;
        spillway_reason reason;
        const char *flow = "udp 10.0.0.1:5000 10.0.0.2:6000";
    };
    for (const Case &bad : {
             Case{"type 0", 1, 0, SPILLWAY_BAD_TYPE},
             Case{"type 3", 1, 3, SPILLWAY_BAD_TYPE},
             Case{"type 255", 1, 255, SPILLWAY_BAD_TYPE},
             Case{"family 0", 2, 0, SPILLWAY_BAD_FAMILY},
             Case{"family 5", 2, 5, SPILLWAY_BAD_FAMILY},
             Case{"family 10, as in a socket address", 2, 10, SPILLWAY_BAD_FAMILY},
             Case{"a flag of the upper byte", 4, 1, SPILLWAY_BAD_FLAGS},
             Case{"flag 8", 5, 9, SPILLWAY_BAD_FLAGS},
             Case{"ports without their flag", 5, 0, SPILLWAY_BAD_FLAGS},
             Case{"ports of ICMP", 3, 1, SPILLWAY_BAD_FLAGS},
             Case{"a VNI without its flag", 11, 1, SPILLWAY_BAD_FLAGS},
             Case{"a VNI of 25 bits", 8, 1, SPILLWAY_BAD_HEADER, "udp 10.0.0.1:5000 10.0.0.2:6000 vni 7"},
             Case{"more than four bytes of an IPv4 source", 20, 1, SPILLWAY_BAD_HEADER},
             Case{"more than four bytes of an IPv4 destination", 47, 1, SPILLWAY_BAD_HEADER},
             Case{"a tag that is not there", 5, 5, SPILLWAY_TOO_SHORT},
         }) {
        Bytes payload = write(spillway_cip{
            .key = key_of(bad.flow), .type = SPILLWAY_CIP_ISOLATE, .lifetime_ms = 0, .sequence = 0});
        payload[bad.at] = bad.value;
        spillway_cip cip{};
        EXPECT_EQ(read(payload, cip), bad.reason) << bad.what;
    }
}

TEST(Descriptor, CutOnesAreTooShort) {
    const Bytes whole = write(spillway_cip{.key = key_of("udp 10.0.0.1:5000 10.0.0.2:6000"),
                                           .type = SPILLWAY_CIP_ISOLATE,
                                           .lifetime_ms = 0,
                                           .sequence = 0});
    spillway_cip cip{};
    for (std::size_t length = 0; length < whole.size(); length++)
        EXPECT_EQ(read(std::span(whole).first(length), cip), SPILLWAY_TOO_SHORT) << length;
    Bytes tagged = whole;
    tagged[5] |= 4;
    tagged.resize(68);
    EXPECT_EQ(read(tagged, cip), SPILLWAY_OK) << "this version asks for no tag";
    EXPECT_EQ(read(std::span(tagged).first(67), cip), SPILLWAY_TOO_SHORT);
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
