// SPDX-License-Identifier: Apache-2.0
/// Devices between a port and the stack, and ports that are devices themselves: VLANs, bonds, bridges with
/// VLAN filtering, macvlan and ipvlan.
#include "tests/netns/lacking.h"
#include "tests/netns/scenario.h"

#include <gmock/gmock.h>
#include <set>

namespace {

using namespace spillway::lab;
using nlohmann::json;
using testing::IsEmpty;

constexpr std::uint16_t slow_protocols = 0x8809;

json link_details(const Namespace &ns, const std::string &device) {
    return json::parse(must(ns, {"ip", "-d", "-j", "link", "show", "dev", device}).out).at(0);
}

std::string mac_of(const Namespace &ns, const std::string &device) {
    return link_details(ns, device).at("address");
}

/// host – node – receiver, routed, on devices that the test makes above its links.
class Line {
  public:
    Namespace host{"host"};
    Namespace node{"node"};
    Namespace receiver{"receiver"};
    const std::string to = "10.0.2.2"; ///< the receiver's address

    /// A link from the host to the node; another one, of names of its own, for a bond.
    void join_host(const std::string &host_port, const std::string &node_port) {
        link({.ns = host, .port = host_port, .mac = next_mac()},
             {.ns = node, .port = node_port, .mac = next_mac()});
    }
    void join_receiver() {
        link({.ns = node, .port = "eth1", .mac = next_mac()},
             {.ns = receiver, .port = "eth0", .mac = next_mac()});
    }

    /// The ports on the way from the host to the receiver, as join_receiver() and most tests name them.
    [[nodiscard]] std::vector<std::pair<const Namespace *, const char *>> ports() const {
        return {{&host, "eth1"}, {&node, "eth0"}, {&node, "eth1"}, {&receiver, "eth0"}};
    }

    /// Gives the devices their addresses, neighbours and routes.
    void route(const std::string &host_device, const std::string &node_in, const std::string &node_out,
               const std::string &receiver_device) const {
        host.ip(fmt::format("address add 10.0.1.1/24 dev {}", host_device));
        node.ip(fmt::format("address add 10.0.1.2/24 dev {}", node_in));
        node.ip(fmt::format("address add 10.0.2.1/24 dev {}", node_out));
        receiver.ip(fmt::format("address add 10.0.2.2/24 dev {}", receiver_device));
        neighbour(host, host_device, "10.0.1.2", mac_of(node, node_in));
        neighbour(node, node_in, "10.0.1.1", mac_of(host, host_device));
        neighbour(node, node_out, "10.0.2.2", mac_of(receiver, receiver_device));
        neighbour(receiver, receiver_device, "10.0.2.1", mac_of(node, node_out));
        host.ip("route add 10.0.2.0/24 via 10.0.1.2");
        receiver.ip("route add 10.0.1.0/24 via 10.0.2.1");
    }

  private:
    std::string next_mac() { return fmt::format("02:00:00:00:01:{:02x}", ++macs_); }

    unsigned macs_ = 0;
};

/// VLAN devices above a port, up: one for each tag, the outer one first. The name of the topmost.
std::string tagged(const Namespace &ns, std::string device, const std::vector<std::string> &tags) {
    for (const std::string &tag : tags) {
        const std::string upper = fmt::format("{}.{}", device, tag.substr(tag.rfind(' ') + 1));
        ns.ip(fmt::format("link add link {} name {} type vlan protocol {}", device, upper, tag));
        ns.ip(fmt::format("link set {} up", upper));
        device = upper;
    }
    return device;
}

/// What makes some VLAN device, if the kernel makes any; above a spare port, since lo takes none.
std::string any_vlan(const Namespace &ns) {
    ns.ip("link add spare0 type veth peer name spare1");
    return "ip link add link spare0 name any type vlan id 1";
}

/// An elephant of a few flows, each more than `node_port` carries, so that all are found; node and host both
/// have it in their isolation class, and both give it back.
void expect_isolated_on_both(const Line &line, const Agent &node, const std::string &node_port,
                             const Agent &host, const std::vector<std::string> &host_ports,
                             unsigned flows = 1) {
    Traffic sink(line.receiver, fmt::format("sink --port 6000 --ports {}", flows));
    Traffic flood(line.host, fmt::format("flood --to {} --port 6000 --flows {} --mbit 300 --seconds 20",
                                         line.to, flows));
    EXPECT_TRUE(eventually(3, [&] { return node.flows().size() == flows; })) << node.status().dump(1);
    EXPECT_TRUE(eventually(3, [&] { return host.flows().size() == flows; })) << host.status().dump(1);
    EXPECT_TRUE(
        eventually(3, [&] { return class_stats(line.node, node_port, "1:20").packets > scaled(1000); }));
    for (const std::string &port : host_ports)
        EXPECT_TRUE(eventually(3, [&] { return class_stats(line.host, port, "1:20").packets > scaled(100); }))
            << port;
    for (const json &flow : host.flows())
        EXPECT_EQ(flow["origin"], "cip") << flow;
    flood.stop();
    EXPECT_GT(sink.stop()["received"], scaled(1000));
    EXPECT_TRUE(eventually(5, [&] { return node.flows().empty(); })) << node.flows().dump(1);
    EXPECT_TRUE(eventually(5, [&] { return host.flows().empty(); })) << host.flows().dump(1);
    for (const Agent *agent : {&node, &host})
        for (const json &port : agent->status()["ports"])
            for (const auto &[reason, count] : port["cip"]["rejected"].items())
                EXPECT_EQ(count, 0) << port["name"] << " " << reason;
}

// ---- VLANs

struct Tags {
    const char *name;
    std::vector<std::string> tags; ///< outer first, as `ip link … type vlan protocol` has them
    bool offload;                  ///< the device puts tags in and takes them off
};

class Vlan : public testing::TestWithParam<Tags> {};

// Ports with VLAN devices above: flows are found below, CIPs carry the flow's tag, and tags survive: PCP 1 on
// isolated packets as configured, all else as it was.
TEST_P(Vlan, DevicesAboveAPort) {
    const Tags &how = GetParam();
    Line line;
    SPILLWAY_MAKE_OR_SKIP(line.host, any_vlan(line.host));
    line.join_host("eth1", "eth0");
    line.join_receiver();
    std::vector<std::string> tops;
    for (const auto &[ns, port] : line.ports()) {
        const char *state = how.offload ? "on" : "off";
        must(*ns, {"ethtool", "-K", port, "txvlan", state, "rxvlan", state, "tx-vlan-stag-hw-insert", state,
                   "rx-vlan-stag-hw-parse", state});
        tops.push_back(tagged(*ns, port, how.tags));
    }
    line.route(tops[0], tops[1], tops[2], tops[3]);
    setup(line.node, "eth1", "200mbit");
    setup(line.host, "eth1", "1gbit");
    json config = configuration(ways[0], {"eth1"}, {"eth0"});
    config["ports"][0]["rewrite"] = {{"pcp", 1}};
    const Agent node(line.node, config);
    const Agent host(line.host, configuration(ways[0], {"eth1"}));
    Capture wire(line.receiver, "eth0", {.limit = 400000});
    Capture cips(line.host, "eth1", {.ethertype = slow_protocols, .outgoing = false});
    expect_isolated_on_both(line, node, "eth1", host, {"eth1"});

    const bool twice = how.tags.size() == 2;
    std::map<unsigned, std::size_t> outer;
    for (const Frame &frame : wire.frames()) {
        ASSERT_TRUE(frame.vlan_tci) << "a packet lost its tag";
        outer[*frame.vlan_tci]++;
        ASSERT_GT(frame.bytes.size(), 18U);
        const unsigned type = frame.bytes[12] << 8U | frame.bytes[13];
        EXPECT_EQ(type, twice ? 0x8100U : 0x0800U);
        if (twice) {
            EXPECT_EQ(frame.bytes[14] << 8U | frame.bytes[15], 200) << "the inner tag is as it was";
        }
    }
    EXPECT_GT(outer[0x2064], scaled(1000)) << "isolated: PCP 1, VID 100";
    EXPECT_GT(outer[0x0064], 0U) << "before: PCP 0, VID 100";
    EXPECT_EQ(outer.size(), 2U);
    for (const Frame &cip : cips.frames())
        EXPECT_EQ(cip.vlan_tci.value_or(0) & 0xfffU, 100U) << "CIPs go the flow's way";
}

INSTANTIATE_TEST_SUITE_P(With, Vlan,
                         testing::Values(Tags{"OneTagOffloaded", {"802.1q id 100"}, true},
                                         Tags{"OneTagInThePacket", {"802.1q id 100"}, false},
                                         Tags{"QinQOffloaded", {"802.1ad id 100", "802.1q id 200"}, true},
                                         Tags{"QinQInThePacket", {"802.1ad id 100", "802.1q id 200"}, false}),
                         [](const auto &info) { return std::string(info.param.name); });

// A VLAN device is a port like any other, with a tree and CIPs of its own.
TEST(VlanPort, IsAPort) {
    Line line;
    SPILLWAY_MAKE_OR_SKIP(line.host, any_vlan(line.host));
    line.join_host("eth1", "eth0");
    line.join_receiver();
    for (const auto &[ns, port] : line.ports())
        tagged(*ns, port, {"802.1q id 100"});
    line.route("eth1.100", "eth0.100", "eth1.100", "eth0.100");
    setup(line.node, "eth1.100", "200mbit");
    setup(line.host, "eth1.100", "1gbit");
    const Agent node(line.node, configuration(ways[0], {"eth1.100"}, {"eth0.100"}));
    const Agent host(line.host, configuration(ways[0], {"eth1.100"}));
    expect_isolated_on_both(line, node, "eth1.100", host, {"eth1.100"});
}

// A bridge that filters VLANs: the CIP goes back with the flow's tag, through a port that takes no untagged
// frames.
TEST(BridgeWithVlanFiltering, Isolates) {
    Line line;
    SPILLWAY_MAKE_OR_SKIP(line.host, any_vlan(line.host));
    line.join_host("eth1", "eth0");
    line.join_receiver();
    bridge(line.node, "br0", {"eth0", "eth1"});
    line.node.ip("link set br0 type bridge vlan_filtering 1");
    for (const char *port : {"eth0", "eth1"}) {
        must(line.node, {"bridge", "vlan", "del", "dev", port, "vid", "1"});
        must(line.node, {"bridge", "vlan", "add", "dev", port, "vid", "100"});
    }
    tagged(line.host, "eth1", {"802.1q id 100"});
    tagged(line.receiver, "eth0", {"802.1q id 100"});
    line.host.ip("address add 10.0.2.1/24 dev eth1.100");
    line.receiver.ip("address add 10.0.2.2/24 dev eth0.100");
    neighbour(line.host, "eth1.100", "10.0.2.2", mac_of(line.receiver, "eth0"));
    neighbour(line.receiver, "eth0.100", "10.0.2.1", mac_of(line.host, "eth1"));
    setup(line.node, "eth1", "200mbit");
    setup(line.host, "eth1", "1gbit");
    const Agent node(line.node, configuration(ways[0], {"eth1"}, {"eth0"}));
    const Agent host(line.host, configuration(ways[0], {"eth1"}));
    Capture cips(line.host, "eth1", {.ethertype = slow_protocols});
    expect_isolated_on_both(line, node, "eth1", host, {"eth1"});
    ASSERT_THAT(cips.frames(), testing::Not(IsEmpty()));
    for (const Frame &cip : cips.frames())
        EXPECT_EQ(cip.vlan_tci.value_or(0) & 0xfffU, 100U);
}

// ---- bonds

/// How LACP sees a member: 63 when both sides collect and distribute.
constexpr int in_use = 0x3f;
bool member_in_use(const Namespace &ns, const std::string &member) {
    const json data = link_details(ns, member)["linkinfo"]["info_slave_data"];
    return data["ad_actor_oper_port_state"] == in_use && data["ad_partner_oper_port_state"] == in_use;
}

// Must show 2: LACP, on the CIPs' own EtherType, keeps a bond up while CIPs go over its members.
TEST(Bond, LacpAndCipsShareTheMembers) {
    Line line;
    line.join_host("eth1a", "eth0a");
    line.join_host("eth1b", "eth0b");
    line.join_receiver();
    struct Side {
        const Namespace &ns;
        std::vector<std::string> members;
    };
    const std::vector<Side> sides{{line.host, {"eth1a", "eth1b"}}, {line.node, {"eth0a", "eth0b"}}};
    for (const Side &side : sides) {
        SPILLWAY_MAKE_OR_SKIP(side.ns, "ip link add bond0 type bond mode 802.3ad lacp_rate fast miimon 100 "
                                       "xmit_hash_policy layer3+4");
        for (const std::string &member : side.members) {
            side.ns.ip(fmt::format("link set {} down", member));
            side.ns.ip(fmt::format("link set {} master bond0", member));
            side.ns.ip(fmt::format("link set {} up", member));
        }
        side.ns.ip("link set bond0 up");
    }
    line.route("bond0", "bond0", "eth1", "eth0");
    const auto all_in_use = [&] {
        return std::ranges::all_of(sides, [](const Side &side) {
            return std::ranges::all_of(
                side.members, [&](const std::string &member) { return member_in_use(side.ns, member); });
        });
    };
    ASSERT_TRUE(eventually(20, all_in_use)) << link_details(line.host, "eth1a").dump(1);

    for (const char *member : {"eth1a", "eth1b"})
        setup(line.host, member, "1gbit");
    setup(line.node, "eth1", "20mbit");
    // Eight flows share the ten CIPs a second of two ports.
    const auto patient = [](json config) {
        config["flows"] = {{"max_flow_life_ms", 4000}};
        return config;
    };
    const Agent node(line.node, patient(configuration(ways[0], {"eth1"}, {"eth0a", "eth0b"})));
    const Agent host(line.host, patient(configuration(ways[0], {"eth1a", "eth1b"})));
    const auto failures = [&] {
        int count = 0;
        for (const Side &side : sides)
            for (const std::string &member : side.members)
                count += link_details(side.ns, member)["linkinfo"]["info_slave_data"]["link_failure_count"]
                             .get<int>();
        return count;
    };
    const int before = failures();
    // Beside the agent the capture sees every frame of the EtherType before it is taken.
    Capture first(line.host, "eth1a", {.ethertype = slow_protocols});
    Capture second(line.host, "eth1b", {.ethertype = slow_protocols});
    // By hash eight flows use both members.
    expect_isolated_on_both(line, node, "eth1", host, {"eth1a", "eth1b"}, 8);
    EXPECT_TRUE(all_in_use());
    for (const Capture *member : {&first, &second}) {
        const auto frames = member->frames();
        const auto lacp =
            std::ranges::count_if(frames, [](const Frame &f) { return (f.bytes[0] & 1U) != 0; });
        EXPECT_GT(lacp, 2) << "LACP goes on";
        EXPECT_GT(static_cast<long>(frames.size()) - lacp, 0) << "CIPs came over this member";
    }
    EXPECT_EQ(failures(), before);
}

// A bond has no queue of its own: `check` says what to watch instead, and the port waits.
TEST(Bond, ItselfIsRefused) {
    Line line;
    line.join_host("eth1", "eth0");
    SPILLWAY_MAKE_OR_SKIP(line.host, "ip link add bond0 type bond mode active-backup");
    line.host.ip("link set eth1 down");
    line.host.ip("link set eth1 master bond0");
    line.host.ip("link set bond0 up");
    const Agent agent(line.host, configuration(ways[0], {"bond0"}), false);
    EXPECT_TRUE(eventually(3, [&] { return port_status(agent.status(), "bond0")["waiting"] == "noqueue"; }));
    const Output checked = agent.command({"check", "--config", agent.config_file()});
    EXPECT_EQ(checked.code, 2);
    EXPECT_THAT(checked.err, testing::HasSubstr("noqueue"));
    EXPECT_THAT(checked.err, testing::HasSubstr("members"));
}

// ---- several devices on one port

struct Upper {
    const char *name;
    const char *type;
    bool contained; ///< the device is in a network namespace of its own, as a container's is
};

class UpperDevice : public testing::TestWithParam<Upper> {};

// The flow of a macvlan or ipvlan is isolated on the port below, by the node's own queue and by a CIP that is
// addressed to the upper device.
TEST_P(UpperDevice, FlowsAreIsolatedOnThePortBelow) {
    const Upper &upper = GetParam();
    Line line;
    line.join_host("eth1", "eth0");
    line.join_receiver();
    const Namespace container("container");
    SPILLWAY_MAKE_OR_SKIP(line.host, fmt::format("ip link add link eth1 name up0 {}", upper.type));
    const Namespace &source = upper.contained ? container : line.host;
    if (upper.contained)
        line.host.ip(fmt::format("link set up0 netns {}", container.name()));
    source.ip("link set up0 up");
    source.ip("address add 10.0.1.1/24 dev up0");
    line.node.ip("address add 10.0.1.2/24 dev eth0");
    line.node.ip("address add 10.0.2.1/24 dev eth1");
    line.receiver.ip("address add 10.0.2.2/24 dev eth0");
    neighbour(source, "up0", "10.0.1.2", mac_of(line.node, "eth0"));
    neighbour(line.node, "eth0", "10.0.1.1", mac_of(source, "up0"));
    neighbour(line.node, "eth1", "10.0.2.2", mac_of(line.receiver, "eth0"));
    source.ip("route add 10.0.2.0/24 via 10.0.1.2");
    if (upper.contained) { // ipvlan in mode l3 routes in the namespace of the port below
        neighbour(line.host, "eth1", "10.0.1.2", mac_of(line.node, "eth0"));
        line.host.ip("route add 10.0.2.0/24 via 10.0.1.2 dev eth1 onlink");
    }
    setup(line.host, "eth1", "1gbit");
    setup(line.node, "eth1", "200mbit");
    const Agent node(line.node, configuration(ways[0], {"eth1"}, {"eth0"}));
    const Agent host(line.host, configuration(ways[0], {"eth1"}));
    Traffic sink(line.receiver, "sink --port 6000");
    Traffic flood(source, fmt::format("flood --to {} --port 6000 --mbit 300 --seconds 20", line.to));
    EXPECT_TRUE(eventually(3, [&] { return node.flows().size() == 1; })) << node.status().dump(1);
    EXPECT_TRUE(eventually(3, [&] { return host.flows().size() == 1; })) << host.status().dump(1);
    EXPECT_TRUE(eventually(3, [&] { return class_stats(line.host, "eth1", "1:20").packets > scaled(1000); }));
    flood.stop();
    EXPECT_TRUE(eventually(5, [&] { return node.flows().empty() && host.flows().empty(); }));
}

INSTANTIATE_TEST_SUITE_P(Of, UpperDevice,
                         testing::Values(Upper{"Macvlan", "type macvlan mode bridge", false},
                                         Upper{"MacvlanOfAContainer", "type macvlan mode bridge", true},
                                         Upper{"Ipvlan", "type ipvlan mode l2", false},
                                         Upper{"IpvlanOfAContainer", "type ipvlan mode l2", true},
                                         Upper{"IpvlanL3OfAContainer", "type ipvlan mode l3", true}),
                         [](const auto &info) { return std::string(info.param.name); });

} // namespace
