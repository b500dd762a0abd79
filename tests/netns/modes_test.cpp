// SPDX-License-Identifier: Apache-2.0
/// What a node may be told to do and to leave: roles, mode observe, a table of all flows, several queues told
/// apart by their packets, ECN; and that a wrong mark heals itself.
#include "agent/kernel/maps.h"
#include "tests/netns/lacking.h"
#include "tests/netns/scenario.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <net/if.h>
#include <thread>

namespace {

using namespace spillway::lab;
using nlohmann::json;
using testing::IsEmpty;

constexpr std::uint16_t slow_protocols = 0x8809;

json queue_status(const Agent &agent, const std::string &port, std::size_t number = 0) {
    return port_status(agent.status(), port)["queues"][number];
}

// ---- roles (R8)

// A node that only finds and tells: it has a waterline, and neither a lower class nor fields to rewrite.
TEST(Role, DetectAndSendOnly) {
    const Bottleneck lab;
    json config = configuration(ways[0], {"eth1"}, {"eth0"});
    config["ports"][0]["queues"][0].erase("isolate_class");
    const Agent node(lab.node(), config);
    const Agent host(lab.host(), configuration(ways[0], {"eth1"}));
    Traffic sink(lab.receiver(), "sink --port 6000");
    Traffic flood(lab.host(), fmt::format("flood --to {} --port 6000 --mbit 300 --seconds 10",
                                          lab.chain.receiver_address()));
    EXPECT_TRUE(eventually(3, [&] { return host.flows().size() == 1; })) << node.status().dump(1);
    ASSERT_EQ(node.flows().size(), 1U);
    EXPECT_TRUE(node.flows()[0]["class"].is_null());
    EXPECT_EQ(host.flows()[0]["origin"], "cip");
    EXPECT_TRUE(eventually(2, [&] { return class_stats(lab.host(), "eth1", "1:20").packets > scaled(100); }));
    EXPECT_EQ(class_stats(lab.node(), "eth1", "1:20").packets, 0U);
}

// A node that only isolates its own queue.
TEST(Role, IsolateHereOnly) {
    const Bottleneck lab;
    json config = configuration(ways[0], {"eth1"}, {"eth0"});
    config["ports"][0]["send_cip"] = false;
    const Agent node(lab.node(), config);
    const Agent host(lab.host(), configuration(ways[0], {"eth1"}));
    Capture cips(lab.host(), "eth1", {.ethertype = slow_protocols});
    Traffic sink(lab.receiver(), "sink --port 6000");
    Traffic flood(lab.host(), fmt::format("flood --to {} --port 6000 --mbit 300 --seconds 2",
                                          lab.chain.receiver_address()));
    EXPECT_TRUE(eventually(2, [&] { return class_stats(lab.node(), "eth1", "1:20").packets > scaled(100); }));
    flood.result();
    EXPECT_THAT(cips.frames(), IsEmpty());
    EXPECT_EQ(port_status(host.status(), "eth1")["cip"]["received"], 0);
    EXPECT_TRUE(host.flows().empty());
}

// ---- B11

// What would be marked is counted and told; no packet is changed, nothing is sent, and no CIP is obeyed.
TEST(Observe, CountsChangesNothingAndSendsNothing) {
    const Bottleneck lab;
    json config = configuration(ways[0], {"eth1"}, {"eth0"});
    config["mode"] = "observe";
    Agent node(lab.node(), config);
    json host_config = configuration(ways[0], {"eth1"});
    host_config["mode"] = "observe";
    const Agent host(lab.host(), host_config);
    EXPECT_EQ(node.status()["mode"], "observe");
    Capture cips(lab.host(), "eth1", {.ethertype = slow_protocols});
    Traffic sink(lab.receiver(), "sink --port 6000");
    Traffic flood(lab.host(), fmt::format("flood --to {} --port 6000 --mbit 300 --seconds 20",
                                          lab.chain.receiver_address()));
    EXPECT_TRUE(eventually(3, [&] { return queue_status(node, "eth1")["would_mark_total"] > 2; }))
        << node.status().dump(1);
    EXPECT_TRUE(node.flows().empty());
    EXPECT_EQ(queue_status(node, "eth1")["marked_total"], 0);
    EXPECT_EQ(class_stats(lab.node(), "eth1", "1:20").packets, 0U);
    EXPECT_THAT(cips.frames(), IsEmpty());
    EXPECT_THAT(node.log(), testing::HasSubstr("would mark udp"));

    config["mode"] = "isolate";
    node.reload(config);
    EXPECT_TRUE(eventually(3, [&] { return node.flows().size() == 1; }));
    EXPECT_TRUE(eventually(3, [&] { return port_status(host.status(), "eth1")["cip"]["received"] > 0; }));
    EXPECT_TRUE(host.flows().empty()) << "the host still observes";
    EXPECT_EQ(port_status(host.status(), "eth1")["cip"]["accepted"], 0);
}

// ---- R5

// Every flow has an entry: packets, bytes and last packet of the light one, the first mark for the heavy one,
// the second when it has gone quiet; cleared after clear_timeout_ms.
TEST(FullTable, HoldsEveryFlowUntilItIsSilent) {
    const Bottleneck lab;
    json config = configuration(ways[0], {"eth1"}, {"eth0"});
    config["flows"] = {{"table", "full"}, {"clear_timeout_ms", 3000}};
    Agent node(lab.node(), config);
    const std::string to = lab.chain.receiver_address();
    const auto flow_to = [&](int port) -> json {
        const json all = json::parse(node.command({"flows", "--json", "--all"}).out);
        for (const json &flow : all["flows"])
            if (flow["dport"] == port)
                return flow;
        return nullptr;
    };
    Traffic reflector(lab.receiver(), "reflect --port 7000");
    Traffic probe(lab.host(), fmt::format("probe --to {} --port 7000 --hz {} --seconds 20", to, scaled(200)));
    EXPECT_TRUE(eventually(3, [&] { return flow_to(7000).is_object() && flow_to(7000)["packets"] > 10; }));
    EXPECT_EQ(flow_to(7000)["mark"], "normal");
    EXPECT_EQ(flow_to(7000)["state"], "normal");
    EXPECT_TRUE(flow_to(7000)["origin"].is_null());
    EXPECT_GT(flow_to(7000)["bytes"], 500);
    EXPECT_TRUE(node.flows().empty()) << "without --all only congested ones";

    Traffic sink(lab.receiver(), "sink --port 6000");
    Traffic flood(lab.host(), fmt::format("flood --to {} --port 6000 --mbit 300 --seconds 20", to));
    EXPECT_TRUE(eventually(3, [&] { return node.flows().size() == 1; }));
    EXPECT_EQ(flow_to(6000)["mark"], "congested");
    EXPECT_EQ(flow_to(7000)["mark"], "normal");
    EXPECT_TRUE(eventually(2, [&] { return class_stats(lab.node(), "eth1", "1:20").packets > scaled(100); }));
    flood.stop();
    EXPECT_TRUE(eventually(5, [&] { return flow_to(6000).is_object() && flow_to(6000)["mark"] == "normal"; }))
        << "the second mark";
    EXPECT_TRUE(eventually(6, [&] { return flow_to(6000).is_null(); })) << "cleared";
    EXPECT_TRUE(flow_to(7000).is_object()) << "it is not silent";
    EXPECT_EQ(node.status()["flows"]["congested"], 0);

    config["flows"]["table"] = "congested";
    node.reload(config);
    EXPECT_TRUE(eventually(6, [&] { return node.status()["flows"]["entries"] == 0; }))
        << "cleared as they fall silent";
}

// ---- queues told apart by their packets

TEST(ThreeQueues, ByDscpEachWithItsOwnIsolationClass) {
    const Bottleneck lab;
    const Namespace &node_ns = lab.node();
    node_ns.tc("qdisc del dev eth1 root");
    node_ns.tc("qdisc add dev eth1 root handle 1: htb default 10");
    node_ns.tc(fmt::format(
        "class add dev eth1 parent 1: classid 1:1 htb rate {}mbit burst 25000 quantum 65536", scaled(100)));
    json queues = json::array();
    const std::vector<std::pair<int, int>> kinds{{10, 0}, {11, 46}, {12, 8}}; // class, DSCP
    for (const auto &[minor, dscp] : kinds) {
        node_ns.tc(fmt::format(
            "class add dev eth1 parent 1:1 classid 1:{} htb rate {}mbit ceil {}mbit prio 1 quantum "
            "1514",
            minor, scaled(30), scaled(100)));
        node_ns.tc(
            fmt::format("class add dev eth1 parent 1:1 classid 1:{} htb rate 100kbit ceil {}mbit prio 2 "
                        "quantum 1514",
                        minor + 10, scaled(100)));
        json queue = setup_queue();
        queue["class"] = fmt::format("1:{}", minor);
        queue["isolate_class"] = fmt::format("1:{}", minor + 10);
        if (dscp != 0) {
            SPILLWAY_MAKE_OR_SKIP(
                node_ns, fmt::format("tc filter add dev eth1 parent 1: protocol ip u32 match ip dsfield "
                                     "{} 0xfc flowid 1:{}",
                                     dscp << 2, minor));
            queue["match"] = {{"dscp", {dscp}}};
        }
        queues.push_back(queue);
    }
    json config = configuration(ways[0], {"eth1"}, {"eth0"});
    config["ports"][0]["queues"] = queues;
    const Agent node(node_ns, config);
    Traffic sink(lab.receiver(), "sink --port 6000 --ports 3");
    std::vector<std::unique_ptr<Traffic>> floods;
    for (std::size_t i = 0; i < kinds.size(); i++)
        floods.push_back(std::make_unique<Traffic>(
            lab.host(), fmt::format("flood --to {} --port {} --dscp {} --mbit 60 --seconds 20",
                                    lab.chain.receiver_address(), 6000 + i, kinds[i].second)));
    // Two of three elephants of 60 Mbit/s are more than 100 Mbit/s: at least one of them is found, and each
    // is where its queue says.
    EXPECT_TRUE(eventually(5, [&] { return !node.flows().empty(); })) << node.status().dump(1);
    std::this_thread::sleep_for(std::chrono::seconds(1));
    for (const json &flow : node.flows()) {
        const auto &[minor, dscp] = kinds.at(flow["dport"].get<std::size_t>() - 6000);
        EXPECT_EQ(flow["class"], fmt::format("1:{}", minor + 10)) << flow;
        EXPECT_GT(class_stats(node_ns, "eth1", fmt::format("1:{}", minor + 10)).packets, scaled(100));
    }
    std::uint64_t marked = 0;
    for (std::size_t i = 0; i < kinds.size(); i++)
        marked += queue_status(node, "eth1", i)["marked_total"].get<std::uint64_t>();
    EXPECT_GE(marked, node.flows().size());
}

// ---- B8

// Isolated packets of an ECN-capable TCP sender get CE and nobody else's do; beside an elephant that knows no
// ECN, its rate falls by a fifth or more against the same run without.
TEST(Ecn, CeForTheCapableElephantOnlyAndItSlowsDown) {
    std::map<bool, double> mbit;
    for (const bool ecn : {false, true}) {
        const Bottleneck lab("50mbit");
        json config = configuration(ways[0], {"eth1"}, {"eth0"});
        config["ports"][0]["rewrite"] = {{"ecn", ecn}, {"dscp", 1}};
        const Agent node(lab.node(), config);
        const std::string to = lab.chain.receiver_address();
        lab.receiver().sysctl("ipv4/tcp_ecn", "1");
        Capture arrived(lab.receiver(), "eth0", {.ethertype = 0x0800});
        Traffic reflector(lab.receiver(), "reflect --port 7000");
        Traffic probe(lab.host(),
                      fmt::format("probe --to {} --port 7000 --hz {} --seconds 6", to, scaled(100)));
        Traffic sink(lab.receiver(), "tcp-sink --port 6000");
        Traffic other_sink(lab.receiver(), "tcp-sink --port 6001");
        const auto send = [&](int port) {
            return fmt::format("tcp-send --to {} --port {} --congestion cubic --seconds 6", to, port);
        };
        lab.host().sysctl("ipv4/tcp_ecn", "0");
        Traffic other(lab.host(), send(6001));
        ASSERT_TRUE(eventually(3, [&] { return !node.flows().empty(); }));
        lab.host().sysctl("ipv4/tcp_ecn", "1");
        Traffic elephant(lab.host(), send(6000));
        EXPECT_TRUE(eventually(4, [&] { return node.flows().size() == 2; })) << node.flows().dump(1);
        elephant.result();
        other.result();
        probe.result();
        mbit[ecn] = sink.stop()["mbit"];
        std::map<int, std::size_t> ce; // by destination port
        for (const Frame &frame : arrived.frames()) {
            const auto &bytes = frame.bytes;
            if ((bytes.at(15) & 3U) == 3)
                ce[bytes.at(36) << 8U | bytes.at(37)]++;
        }
        EXPECT_EQ(ce[6000] > 0, ecn);
        ce.erase(6000);
        for (const auto &[port, count] : ce)
            EXPECT_EQ(count, 0U) << port;
    }
    fmt::print("elephant: {:.1f} Mbit/s without CE, {:.1f} with\n", mbit[false], mbit[true]);
    EXPECT_LT(mbit[true], 0.8 * mbit[false]);
}

// ---- B10

/// The mark that a wrong judgement of our own queue would make.
void mark_as_if_local(const Agent &agent, const Namespace &ns, const std::string &port, std::uint16_t sport,
                      const std::string &from, const std::string &to, std::uint16_t dport) {
    const auto maps = spillway::Maps::open(spillway::Paths(agent.instance()));
    ASSERT_TRUE(maps) << maps.error().text();
    spillway_edit edit{};
    edit.op = SPILLWAY_EDIT_MARK_LOCAL;
    edit.key.family = 4;
    edit.key.proto = SPILLWAY_PROTO_UDP;
    edit.key.flags = SPILLWAY_KEY_PORTS;
    edit.key.sport = sport;
    edit.key.dport = dport;
    ASSERT_EQ(::inet_pton(AF_INET, from.c_str(), edit.key.src), 1);
    ASSERT_EQ(::inet_pton(AF_INET, to.c_str(), edit.key.dst), 1);
    ns.call([&] { edit.key.port = ::if_nametoindex(port.c_str()); });
    const auto result = maps->edit(edit);
    ASSERT_TRUE(result && *result == SPILLWAY_EDIT_DONE);
}

// A light flow that was marked wrongly returns within a second although the congestion lasts; the heavy one
// is not released, and so not marked again, in a minute of steady congestion.
TEST(Reconsideration, LightFlowReturnsAndTheElephantStays) {
    const Bottleneck lab;
    const std::string to = lab.chain.receiver_address();
    const Agent node(lab.node(), configuration(ways[0], {"eth1"}, {"eth0"}));
    Traffic sink(lab.receiver(), "sink --port 6000");
    Traffic reflector(lab.receiver(), "reflect --port 7000");
    Traffic flood(lab.host(),
                  fmt::format("flood --to {} --port 6000 --from-port 5001 --mbit 300 --seconds 70", to));
    Traffic probe(lab.host(), fmt::format("probe --to {} --port 7000 --from-port 5000 --hz {} --seconds 70",
                                          to, scaled(200)));
    const auto marked = [&](int port) {
        return std::ranges::any_of(node.flows(), [&](const json &flow) { return flow["dport"] == port; });
    };
    ASSERT_TRUE(eventually(3, [&] { return marked(6000); }));
    const std::uint64_t begin = now_ns();
    const std::string why =
        node.command({"explain", fmt::format("udp {}:5001 {}:6000", lab.chain.host_address(), to), "--port",
                      "eth1"})
            .out;
    EXPECT_THAT(why, testing::AllOf(testing::HasSubstr("isolated into 1:20"),
                                    testing::HasSubstr("first reason local"),
                                    testing::HasSubstr("local      congested a queue here; ends in"),
                                    testing::HasSubstr(" asked (the heaviest flow had ")));
    EXPECT_TRUE(eventually(2, [&] { return class_stats(lab.node(), "eth1", "1:20").backlog > scaled(200); }));
    for (int round = 0; round < 3; round++) {
        mark_as_if_local(node, lab.node(), "eth1", 5000, lab.chain.host_address(), to, 7000);
        EXPECT_TRUE(marked(7000));
        const std::uint64_t before = now_ns();
        EXPECT_TRUE(eventually(3, [&] { return !marked(7000); })) << node.flows().dump(1);
        fmt::print("light flow returned after {} ms\n", (now_ns() - before) / 1'000'000);
        EXPECT_TRUE(marked(6000));
    }
    while (now_ns() - begin < 60'000'000'000) {
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
        ASSERT_TRUE(marked(6000));
    }
    EXPECT_EQ(marked_total(node.status(), "eth1"), 4) << "the elephant once, and the light flow three times";
    EXPECT_EQ(queue_status(node, "eth1")["restored_total"], 3);
}

} // namespace
