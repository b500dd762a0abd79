// SPDX-License-Identifier: Apache-2.0
/// The laboratory itself: what it makes is there, works, is gone afterwards; and the problem that the project
/// solves shows in it.
#include "tests/netns/fixture.h"

#include <csignal>
#include <filesystem>
#include <fmt/format.h>
#include <gmock/gmock.h>

namespace {

using namespace spillway::lab;
using nlohmann::json;

bool exists(const std::string &ns) {
    return std::filesystem::exists("/run/netns/" + ns);
}

/// An ordinary bottleneck: 200 Mbit/s, one FIFO for all.
void shared_fifo(const Namespace &ns, const std::string &port) {
    ns.tc(fmt::format("qdisc add dev {} root handle 1: htb default 10", port));
    ns.tc(fmt::format("class add dev {} parent 1: classid 1:10 htb rate 200mbit burst 32k cburst 32k", port));
    ns.tc(fmt::format("qdisc add dev {} parent 1:10 handle 10: pfifo limit 1000", port));
}

std::string probe(const std::string &to, double seconds) {
    return fmt::format("probe --to {} --port 9100 --seconds {}", to, seconds);
}

std::string flood(const std::string &to, double seconds) {
    return fmt::format("flood --to {} --port 9000 --from-port 5000 --mbit 300 --seconds {}", to, seconds);
}

TEST(Fixture, NamespaceEndsWithItsObject) {
    std::string name;
    {
        const Namespace ns("sw1");
        name = ns.name();
        EXPECT_TRUE(exists(name));
        EXPECT_EQ(run(ns, words("ip -br link show lo")).code, 0);
    }
    EXPECT_FALSE(exists(name));
}

TEST(Fixture, NamespaceEndsWhenTheTestThrows) {
    std::string name;
    EXPECT_THROW(
        {
            const Namespace ns("sw1");
            name = ns.name();
            ns.ip("link set missing up");
        },
        std::runtime_error);
    EXPECT_FALSE(name.empty());
    EXPECT_FALSE(exists(name));
}

TEST(Fixture, CommandsSeeTheNamespaceAndTheBpfFileSystem) {
    const Namespace ns("sw1");
    const Output links = run(ns, words("ip -br link"));
    EXPECT_EQ(links.code, 0);
    EXPECT_THAT(links.out, testing::StartsWith("lo "));
    EXPECT_EQ(std::ranges::count(links.out, '\n'), 1);
    EXPECT_EQ(run(ns, words("stat -f -c %T /sys/fs/bpf")).out, "bpf_fs\n");
    EXPECT_EQ(run(ns, {"cat"}, "from standard input").out, "from standard input");
    EXPECT_EQ(run(ns, {"sh", "-c", "echo complaint >&2; exit 7"}).code, 7);
    EXPECT_EQ(run(ns, {"sh", "-c", "kill -9 $$"}).code, 128 + SIGKILL);
    const Output missing = run(ns, {"no-such-program"});
    EXPECT_EQ(missing.code, 127);
    EXPECT_THAT(missing.err, testing::HasSubstr("no-such-program: No such file"));
}

TEST(Fixture, ProcessEndsWithItsObject) {
    const Namespace ns("sw1");
    pid_t pid = 0;
    {
        Process sleeper(ns, {"sleep", "60"});
        pid = sleeper.pid();
        EXPECT_TRUE(sleeper.running());
        EXPECT_EQ(sleeper.wait(0.05), std::nullopt);
    }
    EXPECT_EQ(::kill(pid, 0), -1);

    Process sleeper(ns, {"sleep", "60"});
    sleeper.signal(SIGTERM);
    EXPECT_EQ(sleeper.wait(5), 128 + SIGTERM);
    EXPECT_FALSE(sleeper.running());
}

TEST(Fixture, WhatAKilledTestLeftIsSwept) {
    const Namespace ns("sw1");
    Process dead({"true"});
    ASSERT_EQ(dead.wait(5), 0);
    const std::string left_over = fmt::format("spw-{}-1-sw1", dead.pid());
    const std::string others = fmt::format("spx-{}-1-sw1", dead.pid());
    ASSERT_EQ(run({"ip", "netns", "add", left_over}).code, 0);
    ASSERT_EQ(run({"ip", "netns", "add", others}).code, 0);
    EXPECT_EQ(run({"/proc/self/exe", "--gtest_filter=Fixture.NamespaceEndsWithItsObject"}).code, 0);
    EXPECT_FALSE(exists(left_over));
    EXPECT_TRUE(exists(others));
    EXPECT_TRUE(exists(ns.name()));
    EXPECT_EQ(run({"ip", "netns", "del", others}).code, 0);
}

TEST(Fixture, EventuallyTellsWhetherItHeld) {
    int looks = 0;
    EXPECT_TRUE(eventually(5, [&] { return ++looks == 3; }));
    EXPECT_EQ(looks, 3);
    EXPECT_FALSE(eventually(0.05, [] { return false; }));
}

TEST(Fixture, CaptureSeesInjectedFrames) {
    const Chain chain(0);
    Capture all(chain.receiver(), "eth0");
    Capture ours(chain.receiver(), "eth0", {.ethertype = 0x88b5, .limit = 2});
    Capture sent(chain.host(), "eth1", {.ethertype = 0x88b5, .outgoing = true});
    Capture silent(chain.host(), "eth1", {.ethertype = 0x88b5});

    std::vector<std::uint8_t> frame = {0x02, 0, 0, 0, 1, 0, 0x02, 0, 0, 0, 0, 1, 0x88, 0xb5};
    frame.resize(60, 0xaa);
    std::vector<std::uint8_t> other = frame;
    other[13] = 0xb6;
    std::vector<std::uint8_t> tagged = frame;
    const std::vector<std::uint8_t> tag = {0x81, 0x00, 0x60, 0x07};
    tagged.insert(tagged.begin() + 12, tag.begin(), tag.end());

    const std::uint64_t before = now_ns();
    inject(chain.host(), "eth1", other);
    inject(chain.host(), "eth1", frame);
    inject(chain.host(), "eth1", tagged);
    inject(chain.host(), "eth1", frame);
    EXPECT_TRUE(eventually(2, [&] { return all.frames().size() == 4 && ours.lost() == 1; }));
    EXPECT_EQ(all.lost(), 0U);

    const auto seen = ours.frames();
    ASSERT_EQ(seen.size(), 2U);
    EXPECT_EQ(seen[0].bytes, frame);
    EXPECT_EQ(seen[0].vlan_tci, std::nullopt);
    EXPECT_FALSE(seen[0].outgoing);
    EXPECT_GE(seen[0].time_ns + 1'000'000, before); // two clocks, read one after the other
    EXPECT_LE(seen[0].time_ns, now_ns() + 1'000'000);
    EXPECT_EQ(seen[1].bytes, frame);
    EXPECT_EQ(seen[1].vlan_tci, 0x6007);

    ASSERT_TRUE(eventually(2, [&] { return !sent.frames().empty(); }));
    EXPECT_TRUE(sent.frames().front().outgoing);
    EXPECT_TRUE(silent.frames().empty());
}

TEST(Fixture, ChainsReachTheReceiver) {
    for (const std::vector<unsigned> &bridged : std::vector<std::vector<unsigned>>{{}, {1}, {1, 2}, {2}}) {
        const Chain chain(2, {.bridged = bridged});
        // Not one ARP or neighbour discovery frame on the way.
        Capture arp(chain.receiver(), "eth0", {.ethertype = 0x0806, .outgoing = true});
        Traffic reflector(chain.receiver(), "reflect --port 9100");
        unsigned received = 0;
        for (const int family : {4, 6}) {
            const json seen = Traffic(chain.host(), probe(chain.receiver_address(family), 0.2)).result();
            EXPECT_EQ(seen["loss"], 0.0) << "family " << family << ", bridged " << json(bridged);
            EXPECT_GE(seen["received"], 200);
            received += seen["received"].get<unsigned>();
        }
        EXPECT_EQ(reflector.stop()["received"], received);
        EXPECT_TRUE(arp.frames().empty());
    }
}

TEST(Fixture, ElephantFillsTheQueueAndTheVictimWaits) {
    const Chain chain(2);
    shared_fifo(chain.node(2), "eth1");
    const std::string to = chain.receiver_address();
    Traffic reflector(chain.receiver(), "reflect --port 9100");
    Traffic sink(chain.receiver(), "sink --port 9000");

    const json alone = Traffic(chain.host(), probe(to, 1)).result();
    EXPECT_EQ(alone["loss"], 0.0);
    EXPECT_LT(alone["p50_us"], 2000);

    Traffic elephant(chain.host(), flood(to, 3));
    const json crowded = Traffic(chain.host(), probe(to, 2)).result();
    EXPECT_GT(crowded["p50_us"], 10'000);
    const json sent = elephant.result();
    EXPECT_GT(sent["mbit"], 290);

    const json delivered = sink.stop();
    EXPECT_EQ(delivered["late"], 0);
    EXPECT_GT(delivered["lost"], 0);
    EXPECT_NEAR(delivered["mbit"].get<double>(), 198, 6); // of 200 Mbit/s with Ethernet headers
    ASSERT_EQ(delivered["flows"].size(), 1U);
    EXPECT_EQ(delivered["flows"][0]["from"], chain.host_address());
    EXPECT_EQ(delivered["flows"][0]["from_port"], 5000);
    // What is missing was dropped there, and nowhere else.
    EXPECT_EQ(class_stats(chain.node(2), "eth1", "1:10").dropped,
              sent["packets"].get<std::uint64_t>() - delivered["received"].get<std::uint64_t>() +
                  crowded["lost"].get<std::uint64_t>());
    std::cout << fmt::format("alone {}\ncrowded {}\nsent {}\ndelivered {}\n", alone.dump(), crowded.dump(),
                             sent.dump(), delivered.dump());
}

TEST(Fixture, TcpElephantsFillTheBottleneck) {
    const Chain chain(1);
    shared_fifo(chain.node(1), "eth1");
    for (const int family : {4, 6}) {
        Traffic sink(chain.receiver(), "tcp-sink --port 9200");
        Traffic elephants(chain.host(), fmt::format("tcp-send --to {} --port 9200 --flows 4 --seconds 3",
                                                    chain.receiver_address(family)));
        const json sent = elephants.result();
        const json delivered = sink.stop();
        EXPECT_EQ(delivered["connections"].size(), 4U);
        EXPECT_GT(delivered["mbit"], 150);
        EXPECT_LT(delivered["mbit"], 200);
        EXPECT_GT(sent["flows"][0]["rtt_us"], 5000);
    }
}

TEST(Fixture, AgentStartsStopsAndLeavesNothing) {
    const Chain chain(1);
    const Namespace &node = chain.node(1);
    setup(node, "eth1", "200mbit");
    const json config = {{"ports", {{{"name", "eth1"}}}}};
    std::string pins;
    std::string file;
    {
        Agent agent(node, config);
        pins = "/sys/fs/bpf/spillway/" + agent.instance();
        file = agent.config_file();
        EXPECT_TRUE(std::filesystem::exists(pins));
        EXPECT_EQ(agent.status()["ports"][0]["name"], "eth1");
        EXPECT_EQ(agent.flows(), json::array());
        agent.kill();
        EXPECT_EQ(agent.status()["agent"]["running"], false);
        agent.start();
        EXPECT_EQ(agent.status()["agent"]["pid"], agent.process().pid());
        EXPECT_EQ(agent.stop(), 0);
    }
    EXPECT_FALSE(std::filesystem::exists(pins));
    EXPECT_FALSE(std::filesystem::exists(file));
    EXPECT_THROW(Agent(node, {{"ports", "none"}}), std::runtime_error); // ends at once with exit code 2
}

TEST(Fixture, BadTrafficOptionsAreRefused) {
    const Namespace ns("host");
    EXPECT_THROW(Traffic(ns, "flood --to 10.0.0.1 --port 9000 --seconds 1"), std::runtime_error);
    EXPECT_THROW(Traffic(ns, "probe --to nobody --port 9100 --seconds 1"), std::runtime_error);
    Traffic first(ns, "sink --port 9000");
    EXPECT_THROW(Traffic(ns, "sink --port 9000"), std::runtime_error);
}

} // namespace
