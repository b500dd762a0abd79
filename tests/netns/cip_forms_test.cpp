// SPDX-License-Identifier: Apache-2.0
/// What CIPs say: the descriptor form and the end of a mark, and flows of a VXLAN tunnel, whose end points
/// translate.
#include "tests/netns/lacking.h"
#include "tests/netns/scenario.h"

#include <gmock/gmock.h>

namespace {

using namespace spillway::lab;
using nlohmann::json;

constexpr std::uint16_t slow_protocols = 0x8809;

json with_form(json config, const char *form) {
    config["cip"]["form"] = form;
    return config;
}

// R2c: a node sends the form that it is told to, and understands both. A flow released before it was silent
// is taken back upstream too (type 2), long before the mark there would have run out.
TEST(Descriptor, IsolatesUpstreamAndTakesItBack) {
    const Bottleneck lab("100mbit");
    json config = with_form(configuration(ways[0], {"eth1"}, {"eth0"}), "descriptor");
    config["flows"]["max_flow_life_ms"] = 20000;
    const Agent node(lab.node(), config);
    json host_config = configuration(ways[0], {"eth1"});
    host_config["ports"][0]["trap"] = "tc"; // the capture sees frames before TC takes them
    const Agent host(lab.host(), host_config);
    Capture cips(lab.host(), "eth1", {.ethertype = slow_protocols});
    const std::string to = lab.chain.receiver_address();
    Traffic sink(lab.receiver(), "sink --port 6000");
    Traffic flood(
        lab.host(),
        fmt::format("flood --to {} --port 6000 --from-port 5000 --mbit 150 --seconds 3 --then 10:20", to));
    ASSERT_TRUE(eventually(3, [&] { return host.flows().size() == 1; })) << node.status().dump(1);
    EXPECT_EQ(host.flows()[0]["origin"], "cip");
    EXPECT_TRUE(eventually(2, [&] { return class_stats(lab.host(), "eth1", "1:20").packets > scaled(100); }));
    for (const Frame &frame : cips.frames()) {
        EXPECT_EQ(frame.bytes.at(14), 0xc1);
        EXPECT_EQ(frame.bytes.at(15), 1) << "isolate";
        EXPECT_EQ(frame.bytes.at(20) << 8U | frame.bytes.at(21), 20000) << "lifetime";
        EXPECT_EQ(frame.bytes.size(), 14U + 52U);
    }
    // It goes on at a rate that the port can carry, and somebody takes its mark away here.
    ASSERT_TRUE(eventually(6, [&] { return class_stats(lab.node(), "eth1", "1:20").backlog == 0; }));
    EXPECT_EQ(host.flows().size(), 1U);
    ASSERT_EQ(node.command({"unmark", fmt::format("udp {}:5000 {}:6000", lab.chain.host_address(), to),
                            "--port", "eth1"})
                  .code,
              0);
    EXPECT_TRUE(eventually(2, [&] { return node.flows().empty(); })) << node.flows().dump(1);
    EXPECT_TRUE(eventually(2, [&] { return host.flows().empty(); })) << host.flows().dump(1);
    EXPECT_EQ(cips.frames().back().bytes.at(15), 2) << "restore";
    for (const json &port : host.status()["ports"])
        for (const auto &[reason, count] : port["cip"]["rejected"].items())
            EXPECT_EQ(count, 0) << reason;
}

/// host – end point 1 ═ tunnel ═ end point 2 – receiver: both end points bridge their port into VNI 7.
class Tunnel {
  public:
    Tunnel() {
        link({.ns = host, .port = "eth1", .mac = "02:00:00:00:01:01", .addresses = {"10.0.7.1/24"}},
             {.ns = first, .port = "eth0", .mac = "02:00:00:00:01:02"});
        link({.ns = first, .port = "eth1", .mac = "02:00:00:00:01:03", .addresses = {"10.9.0.1/24"}},
             {.ns = second, .port = "eth0", .mac = "02:00:00:00:01:04", .addresses = {"10.9.0.2/24"}});
        link({.ns = second, .port = "eth1", .mac = "02:00:00:00:01:05"},
             {.ns = receiver, .port = "eth0", .mac = "02:00:00:00:01:06", .addresses = {"10.0.7.2/24"}});
        end(first, "eth1", "10.9.0.1", "10.9.0.2", "eth0");
        end(second, "eth0", "10.9.0.2", "10.9.0.1", "eth1");
        neighbour(host, "eth1", "10.0.7.2", "02:00:00:00:01:06");
        neighbour(receiver, "eth0", "10.0.7.1", "02:00:00:00:01:01");
        setup(host, "eth1", "1gbit");
        setup(first, "eth1", "1gbit");
        setup(second, "eth1", "100mbit");
    }

    Namespace host{"host"};
    Namespace first{"vtep1"};
    Namespace second{"vtep2"};
    Namespace receiver{"receiver"};

  private:
    static void end(const Namespace &ns, const std::string &under, const std::string &local,
                    const std::string &remote, const std::string &inside) {
        ns.ip(fmt::format("link add vxlan7 type vxlan id 7 local {} remote {} dev {} dstport 4789", local,
                          remote, under));
        ns.ip("link set vxlan7 up");
        bridge(ns, "br0", {inside, "vxlan7"});
    }
};

class TunnelEnds : public testing::TestWithParam<const char *> {};

// R9: a flow that congests the port behind a tunnel is described on the tunnel's link by its inner 5-tuple
// and the VNI, and behind the other end, to the host, by the 5-tuple alone. All three isolate it.
TEST_P(TunnelEnds, Translate) {
    const Tunnel lab;
    const Agent second(lab.second, with_form(configuration(ways[0], {"eth1"}, {"eth0"}), GetParam()));
    const Agent first(lab.first, with_form(configuration(ways[0], {"eth1"}, {"eth0"}), GetParam()));
    const Agent host(lab.host, with_form(configuration(ways[0], {"eth1"}), GetParam()));
    Traffic sink(lab.receiver, "sink --port 6000");
    Traffic flood(lab.host, "flood --to 10.0.7.2 --port 6000 --size 1200 --mbit 150 --seconds 20");
    for (const Agent *agent : {&second, &first, &host})
        EXPECT_TRUE(eventually(4, [&] { return agent->flows().size() == 1; })) << agent->status().dump(1);
    ASSERT_EQ(second.flows().size(), 1U);
    ASSERT_EQ(first.flows().size(), 1U);
    ASSERT_EQ(host.flows().size(), 1U);
    EXPECT_TRUE(second.flows()[0]["vni"].is_null());
    EXPECT_EQ(second.flows()[0]["origin"], "local");
    EXPECT_EQ(second.flows()[0]["upstream"]["port"], "eth0");
    EXPECT_EQ(second.flows()[0]["upstream"]["mac"], "02:00:00:00:01:03");
    EXPECT_EQ(first.flows()[0]["vni"], 7);
    EXPECT_EQ(first.flows()[0]["src"], "10.0.7.1");
    EXPECT_EQ(first.flows()[0]["port"], "eth1");
    EXPECT_EQ(first.flows()[0]["origin"], "cip");
    EXPECT_EQ(first.flows()[0]["upstream"]["port"], "eth0");
    EXPECT_TRUE(host.flows()[0]["vni"].is_null());
    EXPECT_EQ(host.flows()[0]["origin"], "cip");
    for (const Namespace *ns : {&lab.second, &lab.first, &lab.host})
        EXPECT_TRUE(eventually(3, [&] { return class_stats(*ns, "eth1", "1:20").packets > scaled(100); }))
            << ns->name();
    flood.stop();
    for (const Agent *agent : {&second, &first, &host})
        EXPECT_TRUE(eventually(5, [&] { return agent->flows().empty(); })) << agent->flows().dump(1);
    for (const Agent *agent : {&second, &first, &host})
        for (const json &port : agent->status()["ports"])
            for (const auto &[reason, count] : port["cip"]["rejected"].items())
                EXPECT_EQ(count, 0) << port["name"] << " " << reason;
}

INSTANTIATE_TEST_SUITE_P(With, TunnelEnds, testing::Values("headers", "descriptor"),
                         [](const auto &info) { return std::string(info.param); });

// The congestion may be inside the tunnel too: the flow is found by its inner packet, and the host is told.
TEST(TunnelEnd, IsolatesOneFlowOfItsTunnel) {
    const Tunnel lab;
    setup(lab.first, "eth1", "100mbit");
    const Agent first(lab.first, configuration(ways[0], {"eth1"}, {"eth0"}));
    const Agent host(lab.host, configuration(ways[0], {"eth1"}));
    Traffic reflector(lab.receiver, "reflect --port 7000");
    Traffic probe(lab.host, fmt::format("probe --to 10.0.7.2 --port 7000 --hz {} --seconds 20", scaled(100)));
    Traffic sink(lab.receiver, "sink --port 6000");
    Traffic flood(lab.host, "flood --to 10.0.7.2 --port 6000 --size 1200 --mbit 150 --seconds 20");
    EXPECT_TRUE(eventually(4, [&] { return host.flows().size() == 1; })) << first.status().dump(1);
    ASSERT_EQ(first.flows().size(), 1U);
    EXPECT_EQ(first.flows()[0]["vni"], 7);
    EXPECT_EQ(first.flows()[0]["dport"], 6000);
    EXPECT_EQ(first.flows()[0]["origin"], "local");
    EXPECT_TRUE(host.flows()[0]["vni"].is_null());
}

} // namespace
