// SPDX-License-Identifier: Apache-2.0
// What the TC egress program does to the priority fields of isolated packets: R4a (rewrite), R4e (never
// raise).
#include "tests/prog/rig.h"

#include <gtest/gtest.h>

#include <linux/pkt_cls.h>

#include <optional>
#include <vector>

namespace spillway::prog {
namespace {

using namespace packet;

constexpr const char *flow4 = "udp 10.0.0.1:5000 10.0.0.2:6000";

class Rewrite : public testing::Test {
  protected:
    void set(std::optional<std::uint8_t> pcp, std::optional<std::uint8_t> dscp, bool tag_untagged = false) {
        spillway_port &port = rig.port();
        port.flags &= static_cast<std::uint16_t>(
            ~(SPILLWAY_PORT_REWRITE_PCP | SPILLWAY_PORT_REWRITE_DSCP | SPILLWAY_PORT_TAG_UNTAGGED));
        if (pcp)
            port.flags |= SPILLWAY_PORT_REWRITE_PCP;
        if (dscp)
            port.flags |= SPILLWAY_PORT_REWRITE_DSCP;
        if (tag_untagged)
            port.flags |= SPILLWAY_PORT_TAG_UNTAGGED;
        port.rewrite_pcp = pcp.value_or(0);
        port.rewrite_dscp = dscp.value_or(0);
    }
    void mark_both() {
        for (const auto &key : {key_of(flow4, rig.ifindex()), key6()})
            ASSERT_EQ(rig.edit(SPILLWAY_EDIT_MARK_MANUAL, key), SPILLWAY_EDIT_DONE);
    }
    [[nodiscard]] spillway_flow_key key6() const {
        return key_of("udp [fd00::1]:5000 [fd00::2]:6000", rig.ifindex());
    }
    /// What leaves when `packet` comes.
    Bytes sent(const Packet &packet, std::uint32_t priority = isolation) {
        const Outcome outcome = rig.isolate(packet.bytes());
        EXPECT_EQ(outcome.verdict, TC_ACT_UNSPEC);
        EXPECT_EQ(outcome.priority, priority);
        return outcome.packet;
    }

    Rig rig{Source::kernel};
};

Packet ip4(unsigned tos) {
    return Ethernet{} / IPv4{.tos = tos} / Udp{} / zeros(100);
}
Packet ip6(unsigned traffic_class) {
    return Ethernet{} / IPv6{.traffic_class = traffic_class, .flow_label = 0xabcde} / Udp{} / zeros(100);
}
Packet tagged(const Vlan &tag, unsigned tos = 0) {
    return Ethernet{} / tag / IPv4{.tos = tos} / Udp{} / zeros(100);
}

// The packet builder makes the IPv4 checksum anew: an equal packet has the right one.
TEST_F(Rewrite, DscpOfEveryValueIsLoweredAndEcnKept) {
    mark_both();
    for (const std::uint8_t target : std::initializer_list<std::uint8_t>{1, 0, 8, 10}) {
        set({}, target);
        for (unsigned tos = 0; tos < 256; tos++) {
            const unsigned dscp = tos >> 2U;
            const bool lowest = dscp == 1 || dscp == 8;
            const bool lower = target == 1 || target == 8 ? !lowest : !lowest && target < dscp;
            const unsigned expected = lower ? target << 2U | (tos & 3U) : tos;
            ASSERT_EQ(sent(ip4(tos)), ip4(expected).bytes()) << tos << " to " << unsigned{target};
            ASSERT_EQ(sent(ip6(tos)), ip6(expected).bytes()) << tos << " to " << unsigned{target};
        }
    }
}

TEST_F(Rewrite, PcpOfEveryValueIsLoweredAndVidAndDeiKept) {
    mark_both();
    for (const std::uint8_t target : std::initializer_list<std::uint8_t>{1, 0, 3}) {
        set(target, {});
        for (unsigned pcp = 0; pcp < 8; pcp++) {
            const auto rank = [](unsigned value) { return value < 2 ? 1 - value : value; };
            const unsigned expected = rank(target) < rank(pcp) ? target : pcp;
            for (const bool dei : {false, true})
                ASSERT_EQ(sent(tagged({.id = 0xabc, .pcp = pcp, .drop_eligible = dei}, 0x20)),
                          tagged({.id = 0xabc, .pcp = expected, .drop_eligible = dei}, 0x20).bytes())
                    << pcp << " to " << unsigned{target};
        }
    }
}

TEST_F(Rewrite, OfTwoTagsTheOuterOneCounts) {
    mark_both();
    set(1, {});
    const auto packet = [](unsigned outer) {
        return Ethernet{} / Vlan{.id = 7, .pcp = outer, .proto = 0x88a8} / Vlan{.id = 8, .pcp = 5} / IPv4{} /
               Udp{} / zeros(100);
    };
    EXPECT_EQ(sent(packet(6)), packet(1).bytes());
}

TEST_F(Rewrite, BothFieldsOfOnePacket) {
    mark_both();
    set(1, 1);
    EXPECT_EQ(sent(tagged({.id = 5, .pcp = 4}, 46U << 2U)), tagged({.id = 5, .pcp = 1}, 1U << 2U).bytes());
}

TEST_F(Rewrite, UntaggedPacketsGetATagOnlyWhenAsked) {
    mark_both();
    set(1, {});
    EXPECT_EQ(sent(ip4(0)), ip4(0).bytes());
    set(1, {}, true);
    // BPF_PROG_TEST_RUN gives back the packet without the tag that the kernel keeps beside it; that tag is
    // looked at on the wire by netns.Rewrite.
    EXPECT_EQ(sent(ip4(0)), ip4(0).bytes());
    set(1, 1, true);
    EXPECT_EQ(sent(ip6(0)), ip6(1U << 2U).bytes());
}

TEST_F(Rewrite, NeedsNoIsolationClass) {
    mark_both();
    set({}, 1);
    rig.queue().isolation_count = 0;
    EXPECT_EQ(sent(ip4(0), 0), ip4(1U << 2U).bytes());
    EXPECT_EQ(rig.flow(key_of(flow4, rig.ifindex()))->packets, 1U);
    EXPECT_EQ(rig.flow(key_of(flow4, rig.ifindex()))->classid, 0U);
}

TEST_F(Rewrite, OtherPacketsStayAsTheyAre) {
    set(1, 1, true);
    EXPECT_EQ(sent(ip4(46U << 2U), 0), ip4(46U << 2U).bytes()); // nothing marked
    mark_both();
    const Packet other = Ethernet{} / IPv4{.tos = 46U << 2U} / Udp{.sport = 5001} / zeros(100);
    EXPECT_EQ(sent(other, 0), other.bytes());
    rig.port().root_major = isolation >> 16U << 16U;
    const Outcome low = rig.isolate(ip4(46U << 2U).bytes(), {.priority = isolation});
    EXPECT_EQ(low.packet, ip4(46U << 2U).bytes()); // low already, by somebody else's choice
}

// The first CIP is verbatim from the crossing packet (design §8): with the priority that it came with.
TEST_F(Rewrite, TheEventHasThePacketAsItCame) {
    set({}, 1);
    rig.hold(normal, high_waterline);
    const Packet packet = ip4(46U << 2U);
    EXPECT_EQ(sent(packet), ip4(1U << 2U).bytes());
    const auto events = rig.events();
    ASSERT_FALSE(events.empty());
    EXPECT_EQ(events.front().type, SPILLWAY_EVENT_MARKED);
    const Bytes all = packet.bytes();
    ASSERT_EQ(events.front().length, 28U);
    EXPECT_TRUE(std::equal(all.begin() + 14, all.begin() + 42, events.front().bytes));
}

TEST_F(Rewrite, OptionsAndExtensionHeadersDoNotMoveIt) {
    mark_both();
    set({}, 1);
    const auto with_options = [](unsigned tos) {
        return Ethernet{} / IPv4{.tos = tos, .options = Bytes(12, 1)} / Udp{} / zeros(100);
    };
    EXPECT_EQ(sent(with_options(0xba)), with_options(0x06).bytes());
    const auto extended = [](unsigned traffic_class) {
        return Ethernet{} / IPv6{.traffic_class = traffic_class} / Extension{} / Udp{} / zeros(100);
    };
    EXPECT_EQ(sent(extended(0xba)), extended(0x06).bytes());
}

// B8: CE on isolated packets of ECN-capable flows, and of no others.
TEST_F(Rewrite, EcnMarksCapablePacketsOnly) {
    mark_both();
    rig.port().flags |= SPILLWAY_PORT_ECN;
    for (const unsigned dscp : {0U, 46U})
        for (const auto &[before, after] : {std::pair{0U, 0U}, {1U, 3U}, {2U, 3U}, {3U, 3U}}) {
            EXPECT_EQ(sent(ip4(dscp << 2U | before)), ip4(dscp << 2U | after).bytes()) << before;
            EXPECT_EQ(sent(ip6(dscp << 2U | before)), ip6(dscp << 2U | after).bytes()) << before;
        }
    EXPECT_EQ(sent(ip4(2)), ip4(3).bytes()) << "the header's checksum too";
}

TEST_F(Rewrite, EcnAndDscpTogether) {
    mark_both();
    set(std::nullopt, 1);
    rig.port().flags |= SPILLWAY_PORT_ECN;
    EXPECT_EQ(sent(ip4(46U << 2U | 2U)), ip4(1U << 2U | 3U).bytes());
    EXPECT_EQ(sent(ip6(46U << 2U | 1U)), ip6(1U << 2U | 3U).bytes());
    EXPECT_EQ(sent(ip4(1U << 2U | 2U)), ip4(1U << 2U | 3U).bytes()) << "the code point is low already";
    EXPECT_EQ(sent(ip4(46U << 2U)), ip4(1U << 2U).bytes()) << "not capable";
}

} // namespace
} // namespace spillway::prog
