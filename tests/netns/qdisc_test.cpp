// SPDX-License-Identifier: Apache-2.0
/// Qdiscs of every kind: the heavy flow is found, isolated and given back, or `check` says what to use
/// instead and the port waits.
#include "tests/netns/lacking.h"
#include "tests/netns/scenario.h"

#include <gmock/gmock.h>

namespace {

using namespace spillway::lab;
using nlohmann::json;
using testing::HasSubstr;

/// A qdisc tree on eth1 that sends 200 Mbit/s at most.
struct Tree {
    const char *name;
    std::vector<std::string> commands; ///< `tc` words; RATE stands for the rate
    const char *normal;                ///< class
    const char *isolation;             ///< class
    bool drain_known;                  ///< the isolation leaf is a FIFO
};

const std::string all_normal = " priomap 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1";

std::string with_rate(std::string command) {
    if (const auto at = command.find("RATE"); at != std::string::npos)
        command.replace(at, 4, fmt::format("{}mbit", scaled(200)));
    return "tc " + command;
}

/// HTB with the classes of `setup` and leaves of the given kind.
std::vector<std::string> htb_with(const std::string &leaf) {
    return {"qdisc add dev eth1 root handle 1: htb default 10",
            "class add dev eth1 parent 1: classid 1:1 htb rate RATE burst 25000 cburst 25000 quantum 65536",
            "class add dev eth1 parent 1:1 classid 1:10 htb rate RATE prio 1 quantum 65536",
            "class add dev eth1 parent 1:1 classid 1:20 htb rate 100kbit ceil RATE prio 2 quantum 65536",
            "qdisc add dev eth1 parent 1:10 handle 10: " + leaf,
            "qdisc add dev eth1 parent 1:20 handle 20: " + leaf};
}

/// Three bands below what paces them.
std::vector<std::string> bands_below(std::vector<std::string> pacer, const std::string &kind) {
    pacer.push_back("qdisc add dev eth1 parent 1:1 handle 2: " + kind + all_normal);
    for (const int band : {1, 2, 3})
        pacer.push_back(fmt::format("qdisc add dev eth1 parent 2:{0} handle 2{0}: pfifo limit 1000", band));
    return pacer;
}

const std::vector<std::string> tbf{
    "qdisc add dev eth1 root handle 1: tbf rate RATE burst 25000 limit 2000000"};
const std::vector<std::string> one_class{
    "qdisc add dev eth1 root handle 1: htb default 1",
    "class add dev eth1 parent 1: classid 1:1 htb rate RATE burst 25000 quantum 65536"};

const std::vector<Tree> trees{
    {"PrioBelowTbf", bands_below(tbf, "prio bands 3"), "2:2", "2:3", true},
    {"PrioBelowHtb", bands_below(one_class, "prio bands 3"), "2:2", "2:3", true},
    {"EtsBelowTbf", bands_below(tbf, "ets bands 3 strict 1 quanta 301286 1514"), "2:2", "2:3", true},
    {"EtsBelowHtb", bands_below(one_class, "ets bands 3 strict 1 quanta 301286 1514"), "2:2", "2:3", true},
    {"BfifoLeaves", htb_with("bfifo limit 1000000"), "1:10", "1:20", true},
    {"PfifoFastLeaves", htb_with("pfifo_fast"), "1:10", "1:20", false},
    {"FqCodelLeaves", htb_with("fq_codel"), "1:10", "1:20", false},
    {"CakeLeaves", htb_with("cake"), "1:10", "1:20", false},
    {"NestedHtb",
     {one_class[0], one_class[1], "qdisc add dev eth1 parent 1:1 handle 2: htb default 10",
      "class add dev eth1 parent 2: classid 2:1 htb rate RATE burst 25000 quantum 65536",
      "class add dev eth1 parent 2:1 classid 2:10 htb rate RATE prio 1 quantum 65536",
      "class add dev eth1 parent 2:1 classid 2:20 htb rate 100kbit ceil RATE prio 2 quantum 65536",
      "qdisc add dev eth1 parent 2:10 handle 210: pfifo limit 1000",
      "qdisc add dev eth1 parent 2:20 handle 220: pfifo limit 1000"},
     "2:10",
     "2:20",
     true},
    {"DeepHtb",
     {"qdisc add dev eth1 root handle 1: htb default 10",
      "class add dev eth1 parent 1: classid 1:1 htb rate RATE burst 25000 quantum 65536",
      "class add dev eth1 parent 1:1 classid 1:2 htb rate RATE quantum 65536",
      "class add dev eth1 parent 1:2 classid 1:10 htb rate RATE prio 1 quantum 65536",
      "class add dev eth1 parent 1:2 classid 1:20 htb rate 100kbit ceil RATE prio 2 quantum 65536"},
     "1:10",
     "1:20",
     true},
};

json watching(const std::string &port, const std::string &normal, const std::string &isolation) {
    return {{"name", port},
            {"queues",
             {{{"class", normal},
               {"isolate_class", isolation},
               {"waterline", {{"low", 50000}, {"high", 200000}, {"probability", 0.1}}}}}}};
}

class Qdiscs : public testing::TestWithParam<std::tuple<Tree, Way>> {};

// The heavy flow is found and isolated, the light one is not; the priority is given back.
TEST_P(Qdiscs, IsolateAndGiveBack) {
    const auto &[tree, way] = GetParam();
    const Chain chain(1);
    const Namespace &node = chain.node(1);
    for (const std::string &command : tree.commands)
        SPILLWAY_MAKE_OR_SKIP(node, with_rate(command));
    const std::string to = chain.receiver_address();
    const Agent agent(node, {{"ports", {watching("eth1", tree.normal, tree.isolation), {{"name", "eth0"}}}},
                             {"detection", way.detection},
                             {"cip", way.cip}});
    const Output checked = agent.command({"check", "--config", agent.config_file()});
    EXPECT_EQ(checked.code, 0) << checked.err;
    const auto degraded = port_status(agent.status(), "eth1")["degraded"];
    EXPECT_EQ(std::ranges::find(degraded, "drain_unknown") == degraded.end(), tree.drain_known) << degraded;

    Traffic reflector(chain.receiver(), "reflect --port 7000");
    Traffic sink(chain.receiver(), "sink --port 6000");
    Traffic probe(chain.host(), fmt::format("probe --to {} --port 7000 --hz 50 --seconds 3", to));
    Traffic flood(chain.host(),
                  fmt::format("flood --to {} --port 6000 --from-port 5000 --mbit 300 --seconds 20", to));
    EXPECT_TRUE(eventually(3, [&] { return agent.flows().size() == 1; })) << agent.status().dump(1);
    const std::uint64_t before = class_stats(node, "eth1", tree.isolation).packets;
    EXPECT_TRUE(eventually(
        2, [&] { return class_stats(node, "eth1", tree.isolation).packets > before + scaled(1000); }));
    const json flows = agent.flows();
    ASSERT_EQ(flows.size(), 1U) << flows.dump(1);
    EXPECT_EQ(flows[0]["dport"], 6000);
    EXPECT_EQ(flows[0]["class"], tree.isolation);
    probe.result();
    flood.stop();
    EXPECT_EQ(marked_total(agent.status(), "eth1"), 1U) << "the light flow was not marked";

    EXPECT_TRUE(eventually(5, [&] { return agent.flows().empty(); })) << agent.flows().dump(1);
    const std::uint64_t isolated = class_stats(node, "eth1", tree.isolation).packets;
    const std::uint64_t normal = class_stats(node, "eth1", tree.normal).packets;
    Traffic(chain.host(), fmt::format("flood --to {} --port 6000 --from-port 5000 --mbit 20 --seconds 1", to))
        .result();
    EXPECT_TRUE(eventually(
        2, [&] { return class_stats(node, "eth1", tree.normal).packets > normal + scaled(1000); }));
    EXPECT_EQ(class_stats(node, "eth1", tree.isolation).packets, isolated);
}

INSTANTIATE_TEST_SUITE_P(Of, Qdiscs, testing::Combine(testing::ValuesIn(trees), testing::ValuesIn(ways)),
                         [](const auto &info) {
                             return std::string(std::get<0>(info.param).name) + std::get<1>(info.param).name;
                         });

// ---- what `setup --kind` makes

class SetupKind : public testing::TestWithParam<const char *> {};

// The tree is made once, served, and an isolated flow goes through its last band.
TEST_P(SetupKind, MakesATreeThatIsServed) {
    const Chain chain(1);
    const Namespace &node = chain.node(1);
    const Words setup_kind{spillway_program(), "setup", "eth1", "--kind", GetParam()};
    SPILLWAY_MAKE_OR_SKIP(node, setup_kind);
    const Output again = run(node, setup_kind);
    EXPECT_EQ(again.code, 0) << again.err;
    EXPECT_EQ(again.out, "eth1: has this tree already; nothing to do\n");

    json port = watching("eth1", "1:2", "1:3");
    port["cip_class"] = "1:1";
    const Agent agent(node, {{"ports", {port}}});
    EXPECT_EQ(agent.command({"check", "--config", agent.config_file()}).code, 0);
    for (const json &reason : port_status(agent.status(), "eth1")["degraded"])
        EXPECT_NE(reason, "drain_unknown") << "its leaves are FIFOs";
    Traffic sink(chain.receiver(), "sink --port 6000 --ports 2");
    ASSERT_EQ(
        agent
            .command({"mark",
                      fmt::format("udp {}:5000 {}:6000", chain.host_address(), chain.receiver_address()),
                      "--port", "eth1"})
            .code,
        0);
    Traffic(chain.host(), fmt::format("flood --to {} --port 6000 --from-port 5000 --mbit 10 --flows 2 "
                                      "--seconds 1",
                                      chain.receiver_address()))
        .result();
    EXPECT_GT(class_stats(node, "eth1", "1:2").packets, scaled(200));
    EXPECT_GT(class_stats(node, "eth1", "1:3").packets, scaled(200));
    EXPECT_EQ(sink.stop()["lost"], 0);
}

// A tree of another kind, or somebody else's, is replaced with --force only.
TEST_P(SetupKind, ReplacesOnlyWithForce) {
    const Chain chain(1);
    const Namespace &node = chain.node(1);
    const Words setup_kind{spillway_program(), "setup", "eth1", "--kind", GetParam()};
    SPILLWAY_MAKE_OR_SKIP(node, setup_kind);
    const Output refused = run(node, {spillway_program(), "setup", "eth1", "--rate", "100mbit"});
    EXPECT_EQ(refused.code, 1);
    EXPECT_THAT(refused.err, HasSubstr(fmt::format("the tree of --kind {} already", GetParam())));
    must(node, {spillway_program(), "setup", "eth1", "--rate", "100mbit", "--force"});
    EXPECT_EQ(run(node, setup_kind).code, 1);
    must(node, {spillway_program(), "setup", "eth1", "--kind", GetParam(), "--force"});
    must(node, words("tc qdisc change dev eth1 parent 1:2 handle 12: pfifo limit 50"));
    const Output changed = run(node, setup_kind);
    EXPECT_EQ(changed.code, 1);
    EXPECT_THAT(changed.err, HasSubstr("changed since"));
}

INSTANTIATE_TEST_SUITE_P(Of, SetupKind, testing::Values("prio", "ets"),
                         [](const auto &info) { return std::string(info.param); });

// B4: beside a normal queue that is never empty ets keeps a share for the isolated flow; prio does not.
TEST(Starvation, EtsKeepsAShareAndPrioDoesNot) {
    for (const bool ets : {false, true}) {
        SCOPED_TRACE(ets ? "ets" : "prio");
        const Chain chain(1);
        const Namespace &node = chain.node(1);
        for (const std::string &command :
             bands_below(tbf, ets ? "ets bands 3 strict 1 quanta 301286 1514" : "prio bands 3"))
            SPILLWAY_MAKE_OR_SKIP(node, with_rate(command));
        // Without a waterline nothing is marked but by hand.
        const Agent agent(
            node,
            {{"ports", {{{"name", "eth1"}, {"queues", {{{"class", "2:2"}, {"isolate_class", "2:3"}}}}}}}});
        const std::string to = chain.receiver_address();
        Traffic busy_sink(chain.receiver(), "sink --port 6001");
        Traffic busy(chain.host(), fmt::format("flood --to {} --port 6001 --mbit 400 --seconds 60", to));
        ASSERT_TRUE(eventually(2, [&] { return class_stats(node, "eth1", "2:2").backlog > 500; }));
        ASSERT_EQ(agent
                      .command({"mark", fmt::format("udp {}:5000 {}:6000", chain.host_address(), to),
                                "--port", "eth1"})
                      .code,
                  0);
        const std::uint64_t before = class_stats(node, "eth1", "2:3").packets;
        Traffic(chain.host(),
                fmt::format("flood --to {} --port 6000 --from-port 5000 --mbit 40 --seconds 1", to))
            .result();
        EXPECT_GT(class_stats(node, "eth1", "2:2").backlog, 0U) << "the normal queue was never empty";
        const std::uint64_t isolated = class_stats(node, "eth1", "2:3").packets - before;
        // 0.5 % of 200 Mbit/s for a second are 86 packets; traffic lasts longer where the machine is slow.
        if (ets)
            EXPECT_GT(isolated, scaled(40));
        else
            EXPECT_EQ(isolated, 0U);
        busy.stop();
    }
}

// ---- whole ports

// fq_codel and cake as what holds all packets of a port: the flow is found there, and lowered by its fields.
TEST(WholePort, FqCodelAndCakeWithRewrite) {
    struct Whole {
        std::vector<std::string> commands;
        const char *queue;
    };
    for (const Whole &whole : {Whole{{tbf[0], "qdisc add dev eth1 parent 1:1 handle 2: fq_codel"}, "1:1"},
                               Whole{{"qdisc add dev eth1 root handle 1: cake bandwidth RATE"}, "root"}}) {
        SCOPED_TRACE(whole.commands.back());
        const Chain chain(1);
        const Namespace &node = chain.node(1);
        for (const std::string &command : whole.commands)
            SPILLWAY_MAKE_OR_SKIP(node, with_rate(command));
        const Agent agent(node, {{"ports",
                                  {{{"name", "eth1"},
                                    {"queues", {{{"class", whole.queue}, {"waterline", {{"high", 100000}}}}}},
                                    {"rewrite", {{"dscp", 1}}}}}}});
        EXPECT_EQ(agent.command({"check", "--config", agent.config_file()}).code, 0);
        Capture wire(chain.receiver(), "eth0", {.ethertype = 0x0800, .limit = 400000});
        Traffic sink(chain.receiver(), "sink --port 6000");
        Traffic flood(chain.host(), fmt::format("flood --to {} --port 6000 --mbit 300 --seconds 20",
                                                chain.receiver_address()));
        EXPECT_TRUE(eventually(3, [&] { return agent.flows().size() == 1; })) << agent.status().dump(1);
        EXPECT_TRUE(eventually(3, [&] {
            const auto frames = wire.frames();
            const auto lowered = std::ranges::count_if(frames, [](const Frame &frame) {
                return frame.bytes.size() > 15 && frame.bytes[15] == 0x04;
            });
            return lowered > static_cast<long>(scaled(1000));
        }));
        flood.stop();
        EXPECT_TRUE(eventually(5, [&] { return agent.flows().empty(); })) << agent.flows().dump(1);
    }
}

// ---- refused: what to do is said by `check`, and the port waits until it is done

struct Refused {
    const char *name;
    std::vector<std::string> commands;
    const char *normal;
    const char *isolation; ///< empty: none, the fields are rewritten
    const char *sentence;
    const char *waiting;
};

const std::vector<Refused> refusals{
    {"Mq", {"qdisc add dev eth1 root handle 1: mq"}, "1:1", "1:2", "has 4 transmit queues", "no_class"},
    {"MqRoot",
     {"qdisc add dev eth1 root handle 1: mq"},
     "root",
     "",
     "packets wait in the queues below it",
     "no_class"},
    {"HtbBelowMq",
     {"qdisc add dev eth1 root handle 1: mq", "qdisc add dev eth1 parent 1:1 handle 10: htb default 10",
      "class add dev eth1 parent 10: classid 10:10 htb rate RATE prio 0 quantum 65536",
      "class add dev eth1 parent 10: classid 10:20 htb rate RATE prio 1 quantum 65536"},
     "10:10",
     "10:20",
     "has 4 transmit queues",
     "no_class"},
    {"Mqprio",
     {"qdisc add dev eth1 root handle 1: mqprio num_tc 2 map 0 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 "
      "queues 2@0 2@2 hw 0"},
     "1:1",
     "1:3",
     "has 4 transmit queues",
     "no_class"},
    {"Multiq",
     {"qdisc add dev eth1 root handle 1: multiq"},
     "1:1",
     "1:2",
     "has 4 transmit queues",
     "no_class"},
    {"PfifoFastRoot",
     {"qdisc add dev eth1 root handle 1: pfifo_fast"},
     "root",
     "",
     "counts by processor",
     "no_class"},
};

class RefusedQdiscs : public testing::TestWithParam<Refused> {};

TEST_P(RefusedQdiscs, SayWhatToUse) {
    const Refused &refused = GetParam();
    const Chain chain(1, {.link = {.queues = 4}});
    const Namespace &node = chain.node(1);
    for (const std::string &command : refused.commands)
        SPILLWAY_MAKE_OR_SKIP(node, with_rate(command));
    json port{{"name", "eth1"}, {"queues", {{{"class", refused.normal}, {"waterline", {{"high", 100000}}}}}}};
    if (*refused.isolation != 0)
        port["queues"][0]["isolate_class"] = refused.isolation;
    else
        port["rewrite"] = {{"dscp", 1}};
    const Agent agent(node, {{"ports", {port}}}, false);
    ASSERT_TRUE(eventually(3, [&] {
        return port_status(agent.status(), "eth1")["waiting"] == refused.waiting;
    })) << agent.status().dump(1);
    EXPECT_THAT(agent.log(), HasSubstr(refused.sentence));
    const Output checked = agent.command({"check", "--config", agent.config_file()});
    EXPECT_EQ(checked.code, 2);
    EXPECT_THAT(checked.err, HasSubstr(refused.sentence));
    EXPECT_THAT(checked.err, HasSubstr("spillway setup eth1 --rate RATE"));
}

INSTANTIATE_TEST_SUITE_P(Kind, RefusedQdiscs, testing::ValuesIn(refusals),
                         [](const auto &info) { return std::string(info.param.name); });

// The remedy holds: with the tree of `setup` a port of several transmit queues is served.
TEST(TransmitQueues, OfOnePortShareTheTreeOfSetup) {
    const Chain chain(1, {.link = {.queues = 4}});
    const Namespace &node = chain.node(1);
    node.tc("qdisc add dev eth1 root mq"); // handed out by the kernel, a handle marks it as somebody's
    EXPECT_EQ(run(node, {spillway_program(), "setup", "eth1", "--rate", "100mbit"}).code, 1);
    node.tc("qdisc del dev eth1 root");
    // Four flows, by hash in several transmit queues of a port without this tree. Each alone is more than the
    // port carries, so that all are found.
    setup(node, "eth1", "50mbit");
    const Agent agent(node, configuration(ways[0], {"eth1"}, {"eth0"}));
    Traffic sink(chain.receiver(), "sink --port 6000 --ports 4");
    Traffic flood(chain.host(), fmt::format("flood --to {} --port 6000 --flows 4 --mbit 400 --seconds 20",
                                            chain.receiver_address()));
    EXPECT_TRUE(eventually(3, [&] { return agent.flows().size() == 4; })) << agent.flows().dump(1);
    EXPECT_TRUE(eventually(2, [&] { return class_stats(node, "eth1", "1:20").packets > scaled(2000); }));
    flood.stop();
    EXPECT_TRUE(eventually(5, [&] { return agent.flows().empty(); }));
}

// A role without a waterline reads nothing: there pfifo_fast will do.
TEST(PfifoFast, ServesWhereNothingIsRead) {
    const Chain chain(1);
    chain.node(1).tc("qdisc add dev eth1 root pfifo_fast");
    const Agent agent(
        chain.node(1),
        {{"ports", {{{"name", "eth1"}, {"queues", {{{"class", "root"}}}}, {"rewrite", {{"dscp", 1}}}}}}});
    EXPECT_EQ(agent.command({"check", "--config", agent.config_file()}).code, 0);
}

// ---- the receive side

// R1d: packets that arrive wait in the qdisc of an ifb; the flow is found there and its upstream node told.
TEST(ReceiveSide, IfbIsAPort) {
    const Chain chain(1);
    const Namespace &node = chain.node(1);
    SPILLWAY_MAKE_OR_SKIP(node, "ip link add ifb0 type ifb");
    node.ip("link set ifb0 up");
    setup(node, "ifb0", "200mbit");
    node.tc("qdisc add dev eth0 clsact");
    SPILLWAY_MAKE_OR_SKIP(node, "tc filter add dev eth0 ingress protocol ip u32 match u32 0 0 action mirred "
                                "egress redirect dev ifb0");
    setup(chain.host(), "eth1", "1gbit");
    const Agent agent(node, configuration(ways[0], {"ifb0"}, {"eth0"}));
    const Agent host(chain.host(), configuration(ways[0], {"eth1"}));
    Traffic sink(chain.receiver(), "sink --port 6000");
    Traffic flood(chain.host(),
                  fmt::format("flood --to {} --port 6000 --mbit 300 --seconds 20", chain.receiver_address()));
    EXPECT_TRUE(eventually(3, [&] { return agent.flows().size() == 1; })) << agent.status().dump(1);
    EXPECT_TRUE(eventually(2, [&] { return class_stats(node, "ifb0", "1:20").packets > scaled(1000); }));
    EXPECT_TRUE(eventually(2, [&] { return host.flows().size() == 1; })) << host.status().dump(1);
    EXPECT_EQ(agent.flows()[0]["upstream"]["port"], "eth0");
    flood.stop();
    EXPECT_GT(sink.stop()["received"], scaled(1000));
    EXPECT_TRUE(eventually(5, [&] { return agent.flows().empty() && host.flows().empty(); }));
}

} // namespace
