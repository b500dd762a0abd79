// SPDX-License-Identifier: Apache-2.0
/// `panic` and `resume` under traffic: every packet passes untouched at once, whether an agent runs or not,
/// and nothing is forgotten by it.
#include "tests/netns/scenario.h"

#include <gmock/gmock.h>

namespace {

using namespace spillway::lab;
using nlohmann::json;
using testing::HasSubstr;

class Panic : public testing::TestWithParam<Way> {
  protected:
    Bottleneck lab;
    const std::string to = lab.chain.receiver_address();
    Agent node{lab.node(), configuration(GetParam(), {"eth1"}, {"eth0"})};

    /// Packets that were put into the isolation class so far, whether they left, wait or were dropped.
    [[nodiscard]] std::uint64_t isolated() const {
        const ClassStats stats = class_stats(lab.node(), "eth1", "1:20");
        return stats.packets + stats.backlog + stats.dropped;
    }
    [[nodiscard]] std::uint64_t cips_sent() const {
        return port_status(node.status(), "eth0")["cip"]["sent"];
    }
    void command(const char *word) const {
        const Output done = node.command({word});
        EXPECT_EQ(done.code, 0) << done.err;
        EXPECT_THAT(done.out, HasSubstr("resume"));
    }
    /// For a while no packet of the elephant is isolated, and no CIP sent.
    void expect_untouched() const {
        EXPECT_EQ(node.status()["mode"], "panic");
        const auto packets = isolated();
        const auto cips = cips_sent();
        EXPECT_FALSE(eventually(0.5, [&] { return isolated() != packets || cips_sent() != cips; }));
    }
};

TEST_P(Panic, HoldsWhateverTheAgentDoes) {
    Traffic sink(lab.receiver(), "sink --port 6000");
    const Traffic flood(lab.host(), fmt::format("flood --to {} --port 6000 --mbit 300 --seconds 60", to));
    ASSERT_TRUE(eventually(3, [&] { return node.flows().size() == 1 && cips_sent() > 0; }));
    command("panic");
    const auto marked = marked_total(node.status(), "eth1");
    expect_untouched();
    EXPECT_THAT(node.log(), HasSubstr("panic: every packet passes untouched"));
    EXPECT_THAT(node.command({"status"}).out, HasSubstr("resume"));

    node.reload(configuration(GetParam(), {"eth1"}, {"eth0"}));
    EXPECT_TRUE(
        eventually(3, [&] { return node.log().find("configuration reloaded") != std::string::npos; }));
    expect_untouched();
    node.kill();
    expect_untouched();
    node.start();
    expect_untouched();
    EXPECT_EQ(marked_total(node.status(), "eth1"), marked) << "nothing was marked";

    const auto packets = isolated();
    const auto cips = cips_sent();
    EXPECT_EQ(node.command({"resume"}).out, fmt::format("instance {}: resumed\n", node.instance()));
    EXPECT_TRUE(eventually(3, [&] { return isolated() > packets + scaled(1000) && cips_sent() > cips; }));
    EXPECT_EQ(node.status()["mode"], "isolate");
    EXPECT_EQ(node.flows().size(), 1U);
    EXPECT_TRUE(eventually(1, [&] { return node.log().find("resumed") != std::string::npos; }));
}

// No agent, a mark by hand: it is there before, during and after.
TEST_P(Panic, WithoutAnAgent) {
    const Words flow{"udp", "10.0.1.1:5000", to + ":6000", "--port", "eth1"};
    const auto change = [&](const char *word) {
        Words all{word};
        all.insert(all.end(), flow.begin(), flow.end());
        return node.command(all);
    };
    ASSERT_EQ(change("mark").code, 0);
    node.stop();
    Traffic sink(lab.receiver(), "sink --port 6000");
    Traffic steady(lab.host(),
                   fmt::format("flood --to {} --port 6000 --from-port 5000 --mbit 10 --seconds 60", to));
    ASSERT_TRUE(eventually(3, [&] { return isolated() > scaled(100); }));
    command("panic");
    expect_untouched();
    EXPECT_EQ(node.flows()[0]["origin"], "manual");
    EXPECT_EQ(node.flows()[0]["state"], "isolated");
    EXPECT_THAT(node.command({"flows"}).err, HasSubstr("in panic"));
    EXPECT_THAT(change("mark").out, HasSubstr("in panic"));
    expect_untouched();
    command("resume");
    const auto packets = isolated();
    EXPECT_TRUE(eventually(3, [&] { return isolated() > packets + scaled(100); }));
    EXPECT_EQ(node.command({"resume"}).out,
              fmt::format("instance {}: was not in panic; nothing changed\n", node.instance()));

    node.start();
    ASSERT_EQ(change("unmark").code, 0);
    EXPECT_TRUE(eventually(3, [&] { return node.flows().empty(); })) << node.flows(true).dump(1);
    steady.stop();
    const json got = sink.stop();
    EXPECT_EQ(got["lost"], 0);
}

// A CIP passes like any other frame, and marks nothing.
TEST_P(Panic, TakesNoCip) {
    const Agent host(lab.host(), configuration(GetParam(), {"eth1"}));
    ASSERT_EQ(host.command({"panic"}).code, 0);
    Traffic sink(lab.receiver(), "sink --port 6000");
    const Traffic flood(lab.host(), fmt::format("flood --to {} --port 6000 --mbit 300 --seconds 60", to));
    ASSERT_TRUE(eventually(3, [&] { return cips_sent() > 2; }));
    EXPECT_EQ(port_status(host.status(), "eth1")["cip"]["received"], 0);
    EXPECT_TRUE(host.flows(true).empty());
    ASSERT_EQ(host.command({"resume"}).code, 0);
    EXPECT_TRUE(eventually(3, [&] { return host.flows().size() == 1; }));
}

INSTANTIATE_TEST_SUITE_P(With, Panic, testing::ValuesIn(ways), way_name);

} // namespace
