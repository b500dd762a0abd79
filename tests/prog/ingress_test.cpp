// SPDX-License-Identifier: Apache-2.0
// The TC ingress program: learning where a flow comes from. What it does to CIPs is in trap_test.cpp. A VLAN
// tag in the packet's metadata cannot be given to BPF_PROG_TEST_RUN; tests/netns has that.
#include "agent/core/clock.h"
#include "tests/prog/rig.h"

#include <gtest/gtest.h>

#include <linux/pkt_cls.h>

#include <cstring>

namespace spillway::prog {
namespace {

using namespace packet;

constexpr Mac neighbour{0x02, 0xaa, 0, 0, 0, 7};
constexpr Mac other_neighbour{0x02, 0xaa, 0, 0, 0, 8};

Bytes from(const Mac &mac, std::uint16_t sport = 5000) {
    return (Ethernet{.src = mac} / IPv4{} / Udp{.sport = sport} / zeros(100)).bytes();
}

class Learn : public testing::Test {
  protected:
    Rig rig{Source::poll};
    spillway_flow_key key = key_of("udp 10.0.0.1:5000 10.0.0.2:6000", rig.ifindex());

    void arrives(const Bytes &packet, std::uint32_t port) {
        const Outcome outcome = rig.ingress(packet, {.priority = 3, .ifindex = port});
        EXPECT_EQ(outcome.verdict, TC_ACT_UNSPEC);
        EXPECT_EQ(outcome.packet, packet);
        EXPECT_EQ(outcome.priority, 3U);
    }
    [[nodiscard]] spillway_upstream node() const { return rig.upstream(key).value(); }
    [[nodiscard]] Mac mac() const {
        Mac copy{};
        std::memcpy(copy.data(), node().mac, 6);
        return copy;
    }
};

TEST_F(Learn, NothingWhenNobodyAsks) {
    arrives(from(neighbour), rig.other_ifindex());
    EXPECT_FALSE(rig.upstream(key));
    EXPECT_TRUE(rig.events().empty());
}

TEST_F(Learn, NothingInAPanic) {
    rig.edit(SPILLWAY_EDIT_LEARN, key);
    rig.settings().panic = 1;
    arrives(from(neighbour), rig.other_ifindex());
    EXPECT_EQ(node().learned_ns, 0U);
    EXPECT_TRUE(rig.events().empty());
    rig.settings().panic = 0;
    arrives(from(neighbour), rig.other_ifindex());
    EXPECT_EQ(mac(), neighbour);
}

TEST_F(Learn, PortAndMacOfTheFlowThatIsWanted) {
    rig.edit(SPILLWAY_EDIT_LEARN, key);
    const std::uint64_t before = now_ns();
    arrives(from(neighbour), rig.other_ifindex());
    EXPECT_EQ(node().port, rig.other_ifindex());
    EXPECT_EQ(mac(), neighbour);
    EXPECT_EQ(node().egress, rig.ifindex());
    EXPECT_EQ(node().vlan_proto, 0U);
    EXPECT_EQ(node().wanted_until_ns, 0U);
    EXPECT_GE(node().learned_ns, before);
    const auto events = rig.events();
    ASSERT_EQ(events.size(), 1U);
    EXPECT_EQ(events[0].type, SPILLWAY_EVENT_LEARNED);
    EXPECT_EQ(events[0].key.port, 0U);
    spillway_flow_key any_port = key;
    any_port.port = 0;
    EXPECT_EQ(std::memcmp(&events[0].key, &any_port, sizeof(key)), 0);
    EXPECT_EQ(std::memcmp(events[0].mac, neighbour.data(), 6), 0);
}

TEST_F(Learn, OnlyTheFlowThatIsWanted) {
    rig.edit(SPILLWAY_EDIT_LEARN, key);
    arrives(from(neighbour, 5001), rig.other_ifindex());
    arrives((Ethernet{.type = 0x0806} / zeros(46)).bytes(), rig.other_ifindex());
    EXPECT_EQ(node().learned_ns, 0U);
    EXPECT_TRUE(rig.events().empty());
}

TEST_F(Learn, OnceForEachTimeItIsAsked) {
    rig.edit(SPILLWAY_EDIT_LEARN, key);
    arrives(from(neighbour), rig.other_ifindex());
    arrives(from(other_neighbour), rig.other_ifindex());
    EXPECT_EQ(mac(), neighbour);
    EXPECT_EQ(rig.events().size(), 1U);
}

TEST_F(Learn, SameNodeKeepsWhatWasSentAndAnotherStartsAnew) {
    rig.edit(SPILLWAY_EDIT_LEARN, key);
    arrives(from(neighbour), rig.other_ifindex());
    rig.edit(SPILLWAY_EDIT_CIP_SENT, key, 4711);
    rig.edit(SPILLWAY_EDIT_LEARN, key);
    arrives(from(neighbour), rig.other_ifindex());
    EXPECT_EQ(node().sent, 1U);
    EXPECT_EQ(node().next_due_ns, 4711U);
    rig.edit(SPILLWAY_EDIT_LEARN, key);
    arrives(from(other_neighbour), rig.other_ifindex()); // a reroute
    EXPECT_EQ(mac(), other_neighbour);
    EXPECT_EQ(node().sent, 0U);
    rig.edit(SPILLWAY_EDIT_CIP_SENT, key, 4712);
    rig.edit(SPILLWAY_EDIT_LEARN, key);
    arrives(from(other_neighbour), rig.ifindex()); // the same address behind another port
    EXPECT_EQ(node().port, rig.ifindex());
    EXPECT_EQ(node().sent, 0U);
}

TEST_F(Learn, NotAfterTheWindow) {
    rig.settings().window_ns = 1;
    rig.edit(SPILLWAY_EDIT_LEARN, key);
    EXPECT_NE(rig.settings().learn_until_ns, 0U);
    arrives(from(neighbour), rig.other_ifindex());
    EXPECT_EQ(node().learned_ns, 0U);
    EXPECT_EQ(rig.settings().learn_until_ns, 0U); // and from now on packets cost nothing
}

TEST_F(Learn, NotAfterItsOwnWindowThoughAnotherFlowIsWanted) {
    rig.settings().window_ns = 1;
    rig.edit(SPILLWAY_EDIT_LEARN, key);
    rig.settings().window_ns = 100'000'000'000;
    rig.edit(SPILLWAY_EDIT_LEARN, key_of("udp 10.0.0.1:1 10.0.0.2:2", rig.ifindex()));
    arrives(from(neighbour), rig.other_ifindex());
    EXPECT_EQ(node().learned_ns, 0U);
}

TEST_F(Learn, FromTaggedPacketsAndOtherHeaders) {
    key = key_of("tcp [fd00::1]:5000 [fd00::2]:6000", rig.ifindex());
    rig.edit(SPILLWAY_EDIT_LEARN, key);
    arrives((Ethernet{.src = neighbour} / Vlan{.id = 5} / IPv6{} / Extension{} / Tcp{}).bytes(),
            rig.other_ifindex());
    EXPECT_EQ(mac(), neighbour);
}

// R9: what goes into a tunnel comes in without it, and what comes out of one in it. Both sides keep one
// entry.
class LearnTunnel : public Learn {
  protected:
    const std::string inner = "udp 10.0.0.1:5000 10.0.0.2:6000";
    const Bytes plain = from(neighbour);
    const Bytes tunnelled = (Ethernet{.src = neighbour} / IPv4{.src = "10.9.0.1", .dst = "10.9.0.2"} /
                             Udp{.sport = 40000, .dport = SPILLWAY_VXLAN_PORT} / Vxlan{} / Ethernet{} /
                             IPv4{} / Udp{} / zeros(100))
                                .bytes();

    /// The rig's port, on which packets arrive here, belongs to a tunnel.
    void in_tunnel(std::uint32_t vni) {
        rig.port().flags |= SPILLWAY_PORT_VNI;
        rig.port().vni = vni;
    }
    [[nodiscard]] std::optional<spillway_upstream> with_vni() const {
        return rig.upstream(key_of(inner + " vni 7", rig.other_ifindex()));
    }
};

TEST_F(LearnTunnel, PacketThatWillBeEncapsulated) {
    in_tunnel(7);
    rig.edit(SPILLWAY_EDIT_LEARN, key_of(inner + " vni 7", rig.other_ifindex()));
    arrives(plain, rig.ifindex());
    ASSERT_TRUE(with_vni());
    EXPECT_NE(with_vni()->learned_ns, 0U);
    EXPECT_EQ(with_vni()->tunnelled, 0);
    EXPECT_EQ(rig.events(SPILLWAY_EVENT_LEARNED).size(), 1U);
}

TEST_F(LearnTunnel, NotThatOfAnotherTenant) {
    in_tunnel(8);
    rig.edit(SPILLWAY_EDIT_LEARN, key_of(inner + " vni 7", rig.other_ifindex()));
    arrives(plain, rig.ifindex());
    EXPECT_EQ(with_vni()->learned_ns, 0U);
}

TEST_F(LearnTunnel, PacketThatCameOutOfIt) {
    in_tunnel(7); // the flow leaves by the rig's port
    rig.edit(SPILLWAY_EDIT_LEARN, key_of(inner, rig.ifindex()));
    arrives(tunnelled, rig.other_ifindex());
    ASSERT_TRUE(with_vni());
    EXPECT_NE(with_vni()->learned_ns, 0U);
    EXPECT_EQ(with_vni()->tunnelled, 1);
}

TEST_F(LearnTunnel, PacketThatIsOnlyForwarded) {
    rig.edit(SPILLWAY_EDIT_LEARN, key_of(inner + " vni 7", rig.other_ifindex()));
    arrives(tunnelled, rig.ifindex());
    EXPECT_EQ(with_vni()->tunnelled, 1);
    EXPECT_NE(with_vni()->learned_ns, 0U);
}

// Beside the tunnel the port has traffic that leaves by ports of none.
TEST_F(LearnTunnel, PacketThatGoesAnotherWay) {
    in_tunnel(7);
    rig.edit(SPILLWAY_EDIT_LEARN, key_of(inner, rig.other_ifindex()));
    arrives(plain, rig.ifindex());
    EXPECT_NE(rig.upstream(key_of(inner))->learned_ns, 0U);
}

} // namespace
} // namespace spillway::prog
