// SPDX-License-Identifier: Apache-2.0
// Which frames are taken for CIPs, at XDP and at TC ingress, and what becomes of them.
#include "agent/core/clock.h"
#include "tests/prog/rig.h"

#include <spillway/cip.h>

#include <gtest/gtest.h>

#include <linux/pkt_cls.h>

#include <cstring>
#include <functional>
#include <vector>

namespace spillway::prog {
namespace {

using namespace packet;

constexpr Mac ours{0x02, 0, 0, 0, 0, 0x02}; ///< Rig's port
constexpr Mac neighbour{0x02, 0xaa, 0, 0, 0, 7};
constexpr std::uint16_t slow = SPILLWAY_CIP_ETHERTYPE;

/// A frame of the CIPs' EtherType.
template <Layer T>
Packet frame(const T &payload, const Mac &to = ours) {
    return Ethernet{.dst = to, .src = neighbour, .type = slow} / payload;
}
Packet cip(const Mac &to = ours) {
    return frame(IPv4{}, to) / Udp{};
}

enum class Hook { xdp, tc };

class Trap : public testing::TestWithParam<Hook> {
  protected:
    Rig rig{Source::poll};

    /// Whether the frame was taken off the wire; one that passes is unchanged.
    bool taken(const Bytes &bytes) {
        if (GetParam() == Hook::xdp) {
            const Outcome outcome = rig.trap(bytes);
            EXPECT_TRUE(outcome.verdict == XDP_DROP || outcome.verdict == XDP_PASS) << outcome.verdict;
            EXPECT_EQ(outcome.packet, bytes);
            return outcome.verdict == XDP_DROP;
        }
        const Outcome outcome = rig.ingress(bytes);
        EXPECT_TRUE(outcome.verdict == TC_ACT_SHOT || outcome.verdict == TC_ACT_UNSPEC) << outcome.verdict;
        EXPECT_EQ(outcome.packet, bytes);
        return outcome.verdict == TC_ACT_SHOT;
    }
    bool taken(const Packet &packet) { return taken(padded(packet.bytes())); }
};

INSTANTIATE_TEST_SUITE_P(, Trap, testing::Values(Hook::xdp, Hook::tc),
                         [](const auto &info) { return info.param == Hook::xdp ? "xdp" : "tc"; });

TEST_P(Trap, CipIsHandedToTheAgent) {
    const std::uint64_t before = now_ns();
    EXPECT_TRUE(taken(cip()));
    EXPECT_EQ(rig.counter(SPILLWAY_CIP_RECEIVED), 1U);
    EXPECT_EQ(rig.counters().size(), 1U);
    const auto events = rig.events();
    ASSERT_EQ(events.size(), 1U);
    EXPECT_EQ(events[0].type, SPILLWAY_EVENT_CIP_RECEIVED);
    EXPECT_GE(events[0].time_ns, before);
    EXPECT_EQ(std::memcmp(events[0].mac, neighbour.data(), 6), 0);
    const spillway_flow_key key = key_of("udp 10.0.0.1:5000 10.0.0.2:6000", rig.ifindex());
    EXPECT_EQ(std::memcmp(&events[0].key, &key, sizeof(key)), 0);
    EXPECT_EQ(rig.flows(), 0U); // marking is the agent's
}

TEST_P(Trap, EveryDescribedFlowIsRead) {
    struct Case {
        Packet packet;
        const char *flow;
    };
    for (const Case &one : {
             Case{frame(IPv4{}) / Tcp{.options = Bytes(40, 1)}, "tcp 10.0.0.1:5000 10.0.0.2:6000"},
             Case{frame(IPv4{.options = Bytes(40, 1)}) / Udp{}, "udp 10.0.0.1:5000 10.0.0.2:6000"},
             Case{frame(IPv4{.more_fragments = true}) / Udp{}, "udp 10.0.0.1 10.0.0.2"},
             Case{frame(IPv4{.protocol = 1}), "icmp 10.0.0.1 10.0.0.2"},
             Case{frame(IPv6{}) / Udp{}, "udp [fd00::1]:5000 [fd00::2]:6000"},
             Case{frame(IPv6{}) / Extension{} / Extension{} / Extension{} / Extension{} / Extension{} /
                      Extension{} / Tcp{.options = Bytes(40, 1)},
                  "tcp [fd00::1]:5000 [fd00::2]:6000"},
             Case{frame(IPv6{.next_header = 58}), "icmpv6 fd00::1 fd00::2"},
             Case{frame(IPv4{.src = "10.9.0.1"}) / Udp{.dport = SPILLWAY_VXLAN_PORT} / Vxlan{} / Ethernet{} /
                      IPv4{} / Udp{},
                  "udp 10.0.0.1:5000 10.0.0.2:6000 vni 7"},
             Case{frame(IPv6{}) / Extension{} / Udp{.dport = SPILLWAY_VXLAN_PORT} / Vxlan{} / Ethernet{} /
                      Vlan{} / Vlan{} / IPv6{} / Extension{} / Tcp{.options = Bytes(40, 1)},
                  "tcp [fd00::1]:5000 [fd00::2]:6000 vni 7"},
             Case{frame(IPv4{}) / Udp{.dport = SPILLWAY_VXLAN_PORT} / Vxlan{.flags = 0} / Ethernet{} /
                      IPv4{} / Udp{},
                  "udp 10.0.0.1:5000 10.0.0.2:4789"},
         }) {
        SCOPED_TRACE(one.flow);
        EXPECT_TRUE(taken(one.packet));
        const auto events = rig.events();
        ASSERT_EQ(events.size(), 1U);
        const spillway_flow_key key = key_of(one.flow, rig.ifindex());
        EXPECT_EQ(std::memcmp(&events[0].key, &key, sizeof(key)), 0);
    }
}

/// R2c: the descriptor form, with what only it can say.
TEST_P(Trap, DescriptorIsHandedToTheAgent) {
    for (const spillway_cip_type type : {SPILLWAY_CIP_ISOLATE, SPILLWAY_CIP_RESTORE}) {
        const spillway_cip cip{.key = key_of("tcp [fd00::1]:5000 [fd00::2]:6000 vni 16777215"),
                               .type = type,
                               .lifetime_ms = 4711,
                               .sequence = 1};
        Bytes content(SPILLWAY_CIP_PAYLOAD_MAX);
        content.resize(spillway_descriptor_write(&cip, content.data()));
        EXPECT_TRUE(taken(frame(Raw{.content = content}).bytes()));
        const auto events = rig.events();
        ASSERT_EQ(events.size(), 1U);
        EXPECT_EQ(events[0].type, SPILLWAY_EVENT_CIP_RECEIVED);
        EXPECT_EQ(events[0].cip_type, std::uint32_t{type});
        EXPECT_EQ(events[0].lifetime_ms, 4711);
        spillway_flow_key key = cip.key;
        key.port = rig.ifindex();
        EXPECT_EQ(std::memcmp(&events[0].key, &key, sizeof(key)), 0);
    }
}

TEST_P(Trap, OtherPeoplesFramesPass) {
    struct Case {
        const char *what;
        Bytes bytes;
    };
    const Mac slow_group{0x01, 0x80, 0xc2, 0, 0, 0x02};
    const auto subtype = [](std::uint8_t number) { return Raw{.content = {number, 1}}; };
    for (const Case &one : {
             Case{"IPv4", (Ethernet{} / IPv4{} / Udp{} / zeros(18)).bytes()},
             Case{"IPv6", (Ethernet{} / IPv6{} / Tcp{}).bytes()},
             Case{"ARP", (Ethernet{.type = 0x0806} / zeros(46)).bytes()},
             Case{"LLDP", (Ethernet{.dst = {1, 0x80, 0xc2, 0, 0, 0xe}, .type = 0x88cc} / zeros(46)).bytes()},
             Case{"the next EtherType", (Ethernet{.type = 0x880a} / IPv4{} / Udp{} / zeros(18)).bytes()},
             Case{"LACP", padded(frame(subtype(0x01), slow_group).bytes())},
             Case{"marker", padded(frame(subtype(0x02), slow_group).bytes())},
             Case{"OAM", padded(frame(subtype(0x03), slow_group).bytes())},
             Case{"ESMC", padded(frame(subtype(0x0a), slow_group).bytes())},
             Case{"LACP to us alone", padded(frame(subtype(0x01)).bytes())},
             Case{"marker to us alone", padded(frame(subtype(0x02)).bytes())},
             Case{"OAM to us alone", padded(frame(subtype(0x03)).bytes())},
             Case{"ESMC to us alone", padded(frame(subtype(0x0a)).bytes())},
             Case{"an unknown subtype", padded(frame(subtype(0xc0)).bytes())},
             Case{"IP version 5", padded(frame(IPv4{.version = 5}).bytes())},
             Case{"a CIP to a group", padded(cip(slow_group).bytes())},
             Case{"a CIP to all", padded(cip({0xff, 0xff, 0xff, 0xff, 0xff, 0xff}).bytes())},
             Case{"a CIP to somebody else", padded(cip({0x02, 0, 0, 0, 0, 0x03}).bytes())},
             Case{"nothing behind the EtherType", frame(Raw{}).bytes()},
         }) {
        SCOPED_TRACE(one.what);
        EXPECT_FALSE(taken(one.bytes));
        EXPECT_TRUE(rig.counters().empty());
    }
    EXPECT_TRUE(rig.events().empty());
}

TEST_P(Trap, EveryBitOfTheAddressCounts) {
    for (std::size_t bit = 0; bit < 48; bit++) {
        Mac other = ours;
        other[bit / 8] = static_cast<std::uint8_t>(other[bit / 8] ^ 1U << bit % 8);
        EXPECT_FALSE(taken(cip(other))) << bit;
    }
}

TEST_P(Trap, PortBelowABridgeTakesAnyUnicastAddress) {
    rig.port().flags |= SPILLWAY_PORT_ANY_UNICAST;
    EXPECT_TRUE(taken(cip()));
    EXPECT_TRUE(taken(cip({0x0a, 1, 2, 3, 4, 5})));
    EXPECT_TRUE(taken(cip({0, 0, 0, 0, 0, 0})));
    EXPECT_FALSE(taken(cip({0x01, 0x80, 0xc2, 0, 0, 0x02})));
    EXPECT_FALSE(taken(cip({0x03, 0, 0, 0, 0, 0x02})));
    EXPECT_FALSE(taken(frame(Raw{.content = {0x01, 1}}, {0x0a, 1, 2, 3, 4, 5})));
    EXPECT_EQ(rig.events().size(), 3U);
}

TEST_P(Trap, UnservedPortTakesNothing) {
    rig.port().ifindex = 4711;
    EXPECT_FALSE(taken(cip()));
    EXPECT_TRUE(rig.counters().empty());
}

TEST_P(Trap, PanicTakesNothing) {
    rig.settings().panic = 1;
    EXPECT_FALSE(taken(cip()));
    EXPECT_FALSE(taken(frame(Raw{.content = {0x01, 1}})));
    EXPECT_TRUE(rig.counters().empty());
    EXPECT_TRUE(rig.events().empty());
    rig.settings().panic = 0;
    EXPECT_TRUE(taken(cip()));
}

TEST_P(Trap, MalformedOnesAreTakenAndCounted) {
    struct Case {
        const char *what;
        Bytes bytes;
        spillway_counter counter;
    };
    Packet chain = frame(IPv6{});
    for (int i = 0; i <= SPILLWAY_EXTENSIONS_MAX; i++)
        chain = chain / Extension{};
    Packet long_chain = frame(IPv6{}) / Extension{.extra = 200};
    const auto descriptor = [](std::size_t at, std::uint8_t value) {
        Bytes content(52);
        content[0] = SPILLWAY_CIP_DESCRIPTOR;
        content[1] = SPILLWAY_CIP_ISOLATE;
        content[2] = 4;
        content[3] = 17;
        content[at] = value;
        return frame(Raw{.content = content}).bytes();
    };
    const auto tunnel = frame(IPv4{}) / Udp{.dport = SPILLWAY_VXLAN_PORT} / Vxlan{} / Ethernet{};
    for (const Case &one : {
             Case{"half an IPv4 header", frame(Raw{.content = Bytes(10, 0x45)}).bytes(),
                  SPILLWAY_REJECTED_TOO_SHORT},
             Case{"half an IPv6 header", frame(Raw{.content = Bytes(39, 0x60)}).bytes(),
                  SPILLWAY_REJECTED_TOO_SHORT},
             Case{"no transport header", frame(IPv4{.protocol = 17}).bytes(), SPILLWAY_REJECTED_TOO_SHORT},
             Case{"a descriptor of type 3", descriptor(1, 3), SPILLWAY_REJECTED_BAD_TYPE},
             Case{"a descriptor of family 5", descriptor(2, 5), SPILLWAY_REJECTED_BAD_FAMILY},
             Case{"a descriptor with flag 8", descriptor(5, 8), SPILLWAY_REJECTED_BAD_FLAGS},
             Case{"a descriptor with ports and without their flag", descriptor(12, 1),
                  SPILLWAY_REJECTED_BAD_FLAGS},
             Case{"a descriptor with a fifth address byte", descriptor(20, 1), SPILLWAY_REJECTED_BAD_HEADER},
             Case{
                 "VXLAN in VXLAN",
                 (tunnel / IPv4{} / Udp{.dport = SPILLWAY_VXLAN_PORT} / Vxlan{} / Ethernet{} / IPv4{} / Udp{})
                     .bytes(),
                 SPILLWAY_REJECTED_NESTED_TUNNEL},
             Case{"ARP in VXLAN",
                  (tunnel / Raw{.content = Bytes(28), .name_ = {.ethertype = 0x0806}}).bytes(),
                  SPILLWAY_REJECTED_NOT_IP},
             Case{"three tags in VXLAN", (tunnel / Vlan{} / Vlan{} / Vlan{} / IPv4{} / Udp{}).bytes(),
                  SPILLWAY_REJECTED_TOO_MANY_TAGS},
             Case{"IPv4 of another version in VXLAN", (tunnel / IPv4{.version = 5} / Udp{}).bytes(),
                  SPILLWAY_REJECTED_BAD_VERSION},
             Case{"IHL 0", padded((frame(IPv4{.header_words = 0}) / Udp{}).bytes()),
                  SPILLWAY_REJECTED_BAD_HEADER},
             Case{"IHL 4", padded((frame(IPv4{.header_words = 4}) / Udp{}).bytes()),
                  SPILLWAY_REJECTED_BAD_HEADER},
             Case{"TCP data offset 4", padded((frame(IPv4{}) / Tcp{.header_words = 4}).bytes()),
                  SPILLWAY_REJECTED_BAD_HEADER},
             Case{"too many extension headers", (chain / Udp{}).bytes(),
                  SPILLWAY_REJECTED_TOO_MANY_EXTENSIONS},
             Case{"an extension beyond the frame",
                  frame(Raw{.content =
                                [] {
                                    Bytes content = (IPv6{} / Extension{} / Udp{}).bytes();
                                    content[41] = 100; // its length
                                    return content;
                                }()})
                      .bytes(),
                  SPILLWAY_REJECTED_TOO_SHORT},
         }) {
        SCOPED_TRACE(one.what);
        const std::uint64_t before = rig.counter(one.counter);
        const std::uint64_t received = rig.counter(SPILLWAY_CIP_RECEIVED);
        EXPECT_TRUE(taken(one.bytes));
        EXPECT_EQ(rig.counter(one.counter), before + 1);
        EXPECT_EQ(rig.counter(SPILLWAY_CIP_RECEIVED), received + 1);
    }
    EXPECT_EQ(rig.events(SPILLWAY_EVENT_CIP_REJECTED).size(), std::size_t{SPILLWAY_TOLD_MAX});
}

/// Cut at every length: a CIP that is complete is read, else it is too short; what has no payload is
/// nobody's.
TEST_P(Trap, CutOnesAreTooShort) {
    for (const auto &[packet, needs] :
         {std::pair<Packet, std::size_t>{cip(), 42},
          {frame(IPv4{.options = Bytes(8, 1)}) / Tcp{.options = Bytes(8, 1)}, 14 + 28 + 20},
          {frame(IPv6{}) / Extension{.kind = 0} / Fragment{} / Udp{}, 14 + 40 + 8 + 8 + 8},
          {frame(IPv6{}) / Fragment{.more = true} / Udp{}, 14 + 40 + 8}}) {
        const Bytes whole = packet.bytes();
        for (std::size_t size = 14; size <= whole.size(); size++) {
            Bytes cut = whole;
            cut.resize(size);
            const std::uint64_t before = rig.counter(SPILLWAY_REJECTED_TOO_SHORT);
            const bool seen = size >= (GetParam() == Hook::xdp ? 18U : 15U); // XDP looks for a tag first
            EXPECT_EQ(taken(cut), seen) << size;
            EXPECT_EQ(rig.counter(SPILLWAY_REJECTED_TOO_SHORT) - before, seen && size < needs ? 1 : 0)
                << size;
            EXPECT_EQ(rig.events(SPILLWAY_EVENT_CIP_RECEIVED).size(), size < needs ? 0U : 1U) << size;
        }
    }
}

TEST_P(Trap, PortThatDoesNotAcceptCountsSo) {
    rig.port().flags &= static_cast<__u16>(~SPILLWAY_PORT_ACCEPT_CIP);
    EXPECT_TRUE(taken(cip()));
    EXPECT_EQ(rig.counter(SPILLWAY_REJECTED_NOT_ACCEPTED), 1U);
    const auto events = rig.events();
    ASSERT_EQ(events.size(), 1U);
    EXPECT_EQ(events[0].type, SPILLWAY_EVENT_CIP_REJECTED);
    EXPECT_EQ(events[0].reason, SPILLWAY_NOT_ACCEPTED);
}

TEST_P(Trap, NoMoreInASecondThanThePortTakes) {
    rig.port().cip_per_second = 5;
    const Bytes bytes = padded(cip().bytes());
    // A second of the program is 2^30 ns; the frames of one attempt may fall into two of them.
    std::uint64_t second = 0;
    std::uint64_t limited = 0;
    std::size_t accepted = 0;
    do {
        second = now_ns() >> 30U;
        const std::uint64_t before = rig.counter(SPILLWAY_REJECTED_RATE_LIMITED);
        rig.port().cip_second = 0; // a second that is over
        for (int i = 0; i < 8; i++)
            EXPECT_TRUE(taken(bytes));
        limited = rig.counter(SPILLWAY_REJECTED_RATE_LIMITED) - before;
        accepted = rig.events(SPILLWAY_EVENT_CIP_RECEIVED).size();
    } while (now_ns() >> 30U != second);
    EXPECT_EQ(accepted, 5U);
    EXPECT_EQ(limited, 3U);
}

TEST_P(Trap, LostEventIsCounted) {
    const Bytes bytes = padded(cip().bytes());
    constexpr int frames = 3500; // an event takes 352 bytes of a mebibyte
    for (int i = 0; i < frames; i++)
        taken(bytes);
    EXPECT_EQ(rig.events().size() + rig.counter(SPILLWAY_LOST_EVENTS, 0), static_cast<std::size_t>(frames));
    EXPECT_GT(rig.counter(SPILLWAY_LOST_EVENTS, 0), 0U);
    EXPECT_EQ(rig.counter(SPILLWAY_CIP_RECEIVED), static_cast<std::uint64_t>(frames));
}

class XdpTrap : public testing::Test {
  protected:
    Rig rig{Source::poll};
    Packet tagged(const Vlan &tag, const Mac &to = ours) {
        return Ethernet{.dst = to, .src = neighbour} /
               Vlan{.id = tag.id, .pcp = 6, .proto = tag.proto, .type = tag.type} / IPv4{} / Udp{} /
               zeros(14);
    }
};

/// TC ingress never sees a tag in the packet: the kernel takes it off before.
TEST_F(XdpTrap, TaggedCipIsTaken) {
    for (const std::uint16_t proto : {std::uint16_t{0x8100}, std::uint16_t{0x88a8}})
        EXPECT_EQ(rig.trap(tagged({.id = 5, .proto = proto, .type = slow}).bytes()).verdict, XDP_DROP);
    const auto events = rig.events();
    ASSERT_EQ(events.size(), 2U);
    const spillway_flow_key key = key_of("udp 10.0.0.1:5000 10.0.0.2:6000", rig.ifindex());
    EXPECT_EQ(std::memcmp(&events[0].key, &key, sizeof(key)), 0);
}

TEST_F(XdpTrap, OtherTaggedFramesPass) {
    EXPECT_EQ(rig.trap(tagged({.id = 5, .type = 0x0800}).bytes()).verdict, XDP_PASS);
    EXPECT_EQ(rig.trap(tagged({.id = 5, .type = slow}, {0x02, 9, 9, 9, 9, 9}).bytes()).verdict, XDP_PASS);
    EXPECT_EQ(
        rig.trap(
               (Ethernet{.dst = ours} / Vlan{.proto = 0x88a8} / Vlan{.type = slow} / IPv4{} / Udp{}).bytes())
            .verdict,
        XDP_PASS); // two tags: not what this agent sends
    EXPECT_TRUE(rig.counters().empty());
}

} // namespace
} // namespace spillway::prog
