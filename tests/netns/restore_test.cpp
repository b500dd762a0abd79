// SPDX-License-Identifier: Apache-2.0
/// The priority comes back: after silence, after calm, and never before the last isolated packet has left.
#include "tests/netns/scenario.h"

#include <optional>

namespace {

using namespace spillway::lab;
using nlohmann::json;

class Restore : public testing::TestWithParam<Way> {};

// Must show 5: within 2 s after the elephant stops nothing is marked, at the congested node not before 1 s; a
// new start below the waterline goes the normal way.
TEST_P(Restore, AfterSilence) {
    const Bottleneck lab;
    const std::string to = lab.chain.receiver_address();
    const Agent node(lab.node(), configuration(GetParam(), {"eth1"}, {"eth0"}));
    const Agent host(lab.host(), configuration(GetParam(), {"eth1"}));
    Traffic sink(lab.receiver(), "sink --port 6000");
    Capture arrivals(lab.node(), "eth0", {.ethertype = 0x0800, .limit = 400000});
    Traffic(lab.host(), fmt::format("flood --to {} --port 6000 --from-port 5000 --mbit 300 --seconds 2", to))
        .result();
    EXPECT_EQ(node.flows().size(), 1U);
    EXPECT_EQ(host.flows().size(), 1U);
    EXPECT_TRUE(eventually(4, [&] { return node.flows().empty(); }));
    const std::uint64_t node_released = now_ns();
    EXPECT_TRUE(eventually(4, [&] { return host.flows().empty(); }));
    const std::uint64_t host_released = now_ns();
    ASSERT_FALSE(arrivals.frames().empty());
    const std::uint64_t stopped = arrivals.frames().back().time_ns;
    EXPECT_GE(node_released - stopped, 1'000'000'000U);
    EXPECT_LE(node_released - stopped, within_ns(2));
    EXPECT_LE(host_released - stopped, within_ns(2));

    const std::uint64_t isolated = class_stats(lab.node(), "eth1", "1:20").packets;
    const std::uint64_t normal = class_stats(lab.node(), "eth1", "1:10").packets;
    Traffic(lab.host(), fmt::format("flood --to {} --port 6000 --from-port 5000 --mbit 20 --seconds 1", to))
        .result();
    EXPECT_TRUE(eventually(
        2, [&] { return class_stats(lab.node(), "eth1", "1:10").packets > normal + scaled(1000); }));
    EXPECT_EQ(class_stats(lab.node(), "eth1", "1:20").packets, isolated);
    EXPECT_TRUE(node.flows().empty());
}

// B2: a flow that never pauses gets its priority back once the queues have been calm for max_flow_life, in
// order (B3).
TEST_P(Restore, OfAFlowThatNeverPauses) {
    const Bottleneck lab;
    const Agent node(lab.node(), configuration(GetParam(), {"eth1"}, {"eth0"}));
    std::optional<Traffic> sink(std::in_place, lab.receiver(), "sink --port 6000");
    Traffic flood(lab.host(), fmt::format("flood --to {} --port 6000 --mbit 300 --seconds 1.5 --then 10:5",
                                          lab.chain.receiver_address()));
    EXPECT_TRUE(eventually(3, [&] { return node.flows().size() == 1; }));
    EXPECT_TRUE(eventually(3, [&] { return class_stats(lab.node(), "eth1", "1:20").backlog == 0; }));
    // Moving down may overtake, and giving back may not: a fresh sink sees only the latter.
    sink->stop();
    sink.emplace(lab.receiver(), "sink --port 6000");
    ASSERT_EQ(node.flows().size(), 1U) << "still isolated";
    EXPECT_TRUE(eventually(5, [&] { return node.flows().empty(); })) << node.flows().dump(1);
    flood.result();
    EXPECT_EQ(port_status(node.status(), "eth1")["queues"][0]["restored_total"], 1);
    const json got = sink->stop();
    EXPECT_GT(got["received"], scaled(1000));
    EXPECT_EQ(got["late"], 0) << got.dump(1);
}

// Must show 5 (B3): a flow released while others keep the isolation queue busy: no late packet.
TEST_P(Restore, WhileOthersKeepTheIsolationQueueBusy) {
    const Bottleneck lab("100mbit");
    const std::string to = lab.chain.receiver_address();
    const Agent node(lab.node(), configuration(GetParam(), {"eth1"}, {"eth0"}));
    Traffic heavy_sink(lab.receiver(), "sink --port 6000");
    std::optional<Traffic> other_sink(std::in_place, lab.receiver(), "sink --port 6001");
    Traffic heavy(lab.host(), fmt::format("flood --to {} --port 6000 --mbit 120 --seconds 9", to));
    // Each alone is more than the port carries, so both are found. The other one is then silent for longer
    // than the idle time, and light.
    Traffic other(lab.host(),
                  fmt::format("flood --to {} --port 6001 --mbit 120 --seconds 2 --then 0:2.5 10:2", to));
    EXPECT_TRUE(eventually(3, [&] { return node.flows().size() == 2; })) << node.flows().dump(1);
    // Moving down may overtake, and giving back may not: a fresh sink sees the end of the former at most.
    std::this_thread::sleep_for(std::chrono::seconds(1));
    other_sink->stop();
    other_sink.emplace(lab.receiver(), "sink --port 6001");
    EXPECT_TRUE(eventually(5, [&] { return node.flows().size() == 1; })) << node.flows().dump(1);
    EXPECT_GT(class_stats(lab.node(), "eth1", "1:20").backlog, 50U) << "the isolation queue is busy";
    const std::uint64_t normal = class_stats(lab.node(), "eth1", "1:10").packets;
    other.result();
    EXPECT_GT(class_stats(lab.node(), "eth1", "1:10").packets, normal + scaled(1000))
        << "it goes the normal way";
    heavy.result();
    EXPECT_EQ(innocent(node.flows(), 6000, 1).size(), 0U);
    const json got = other_sink->stop();
    EXPECT_GT(got["received"], scaled(1000));
    EXPECT_EQ(got["late"], 0) << got.dump(1);
}

INSTANTIATE_TEST_SUITE_P(With, Restore, testing::ValuesIn(ways), way_name);

} // namespace
