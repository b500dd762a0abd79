// SPDX-License-Identifier: Apache-2.0
// How a marked flow gets its priority back: the TC program's steps, with a real leaf or the agent's readings.
#include "agent/core/clock.h"
#include "tests/prog/rig.h"

#include <gtest/gtest.h>

#include <linux/pkt_cls.h>

#include <cstdint>
#include <thread>
#include <vector>

namespace spillway::prog {
namespace {

using namespace packet;

constexpr std::uint64_t ms = 1'000'000;
constexpr std::uint64_t s = 1000 * ms;

const Bytes packet_of_flow = (Ethernet{} / IPv4{} / Udp{} / zeros(958)).bytes();

/// A flow marked long ago whose packets keep coming. Times of the node: idle 1 s, life 1 s, clear 30 s.
class ReleaseBase : public testing::Test {
  protected:
    explicit ReleaseBase(Source source)
        : rig(source), key(key_of("udp 10.0.0.1:5000 10.0.0.2:6000", rig.ifindex())) {
        rig.settings().idle_ns = s;
        rig.settings().life_ns = s;
        rig.settings().clear_ns = 30 * s;
        const std::uint64_t now = now_ns();
        flow.mark = SPILLWAY_MARK_CONGESTED;
        flow.state = SPILLWAY_STATE_ISOLATED;
        flow.origin = SPILLWAY_ORIGIN_LOCAL;
        flow.marked_ns = now - 10 * s;
        flow.last_seen_ns = now;
        flow.packets = 5;
        flow.bytes = 5000;
        flow.classid = isolation;
        flow.queue = rig.port().first_queue;
        flow.drain_generation = 1;
        rig.settings().gen = 1;
        rig.port().entries = 1;
    }

    /// Writes the flow as it is to be found, and sends a packet of it; true when it was isolated.
    bool isolated() {
        rig.put(key, flow);
        return again();
    }
    /// Another packet; what the program made of the flow is in `flow`.
    bool again() {
        const std::uint32_t priority = rig.isolate(packet_of_flow).priority;
        EXPECT_TRUE(priority == isolation || priority == 0) << priority;
        if (const auto left = rig.flow(key))
            flow = *left;
        return priority == isolation;
    }
    [[nodiscard]] bool there() const { return rig.flow(key).has_value(); }

    Rig rig;
    spillway_flow_key key;
    spillway_flow flow{};
};

class Release : public ReleaseBase, public testing::WithParamInterface<Source> {
  protected:
    Release() : ReleaseBase(GetParam()) {}

    /// The isolation queue holds `bytes` from now on; with readings: all before `bytes` > 0 is not drained.
    void holds(std::uint32_t bytes) {
        rig.hold(isolation, bytes);
        rig.leaf(isolation).drained_before_ns = bytes == 0 ? now_ns() + s : 1;
        flow.drain_position = rig.source() == Source::kernel ? rig.counters(isolation).sent_bytes + bytes : 0;
    }
};

INSTANTIATE_TEST_SUITE_P(, Release, testing::Values(Source::kernel, Source::poll),
                         [](const auto &info) { return info.param == Source::kernel ? "kernel" : "poll"; });

TEST_P(Release, AtOnceWhenNoReasonHoldsAndTheQueueIsEmpty) {
    holds(0);
    EXPECT_FALSE(isolated());
    EXPECT_FALSE(there());
    EXPECT_EQ(rig.port().entries, 0U);
    EXPECT_EQ(rig.queue().restored_total, 1U);
    const auto events = rig.events(SPILLWAY_EVENT_RELEASED);
    ASSERT_EQ(events.size(), 1U);
    EXPECT_EQ(events[0].type, SPILLWAY_EVENT_RELEASED);
    EXPECT_EQ(events[0].queue, rig.port().first_queue);
    EXPECT_EQ(std::memcmp(&events[0].key, &key, sizeof(key)), 0);
}

TEST_P(Release, NotWhilePacketsOfTheFlowWait) {
    holds(5000);
    EXPECT_TRUE(isolated());
    EXPECT_EQ(flow.state, SPILLWAY_STATE_DRAINING);
    EXPECT_GT(flow.ended_ns, 0U);
    EXPECT_TRUE(again());
    EXPECT_EQ(flow.packets, 7U);
    EXPECT_EQ(rig.queue().restored_total, 0U);
    holds(0);
    EXPECT_FALSE(again());
    EXPECT_FALSE(there());
}

// What passed while nothing was isolated waits in the normal queue: it is no reason to keep the flow
// isolated, and none to release it before its isolated packets have left.
TEST_P(Release, WaitsForWhatWasIsolatedBeforeAPanic) {
    holds(5000);
    EXPECT_TRUE(isolated());
    const std::uint64_t isolated_before = flow.packets;
    rig.settings().panic = 1;
    EXPECT_FALSE(again());
    EXPECT_FALSE(again());
    EXPECT_EQ(flow.packets, isolated_before);
    EXPECT_EQ(flow.state, SPILLWAY_STATE_DRAINING);
    rig.settings().panic = 0;
    EXPECT_TRUE(again()) << "its packets still wait";
    holds(0);
    rig.settings().panic = 1;
    EXPECT_FALSE(again());
    EXPECT_TRUE(there()) << "a panic releases nothing";
    rig.settings().panic = 0;
    EXPECT_FALSE(again());
    EXPECT_FALSE(there());
}

// Nobody sees packets of the flow during a panic: they may have come all the time.
TEST_P(Release, APanicIsNoSilence) {
    holds(0);
    flow.local_until_ns = now_ns() + 1000 * s;
    flow.last_seen_ns = now_ns() - 20 * s;
    rig.put(key, flow);
    rig.settings().panic = 1;
    const std::uint64_t before = now_ns();
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_STEP, key), SPILLWAY_EDIT_DONE);
    EXPECT_GE(rig.flow(key).value().last_seen_ns, before);
    EXPECT_EQ(rig.flow(key).value().state, SPILLWAY_STATE_ISOLATED);
    rig.settings().panic = 0;
    EXPECT_TRUE(again());
    EXPECT_EQ(flow.state, SPILLWAY_STATE_ISOLATED);

    // One that was draining drains.
    flow.state = SPILLWAY_STATE_DRAINING;
    flow.local_until_ns = 0;
    flow.ended_ns = now_ns();
    rig.put(key, flow);
    holds(0);
    rig.settings().panic = 1;
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_STEP, key), SPILLWAY_EDIT_RELEASED);
}

TEST_P(Release, NotWhileAReasonHolds) {
    holds(0);
    struct Case {
        const char *what;
        std::uint64_t local, cip;
        std::uint32_t manual;
        spillway_origin origin;
    };
    const std::uint64_t later = now_ns() + 1000 * s;
    for (const Case &one :
         {Case{"local", later, 0, 0, SPILLWAY_ORIGIN_LOCAL}, Case{"cip", 0, later, 0, SPILLWAY_ORIGIN_CIP},
          Case{"manual", 0, 0, 1, SPILLWAY_ORIGIN_MANUAL},
          Case{"all", later, later, 1, SPILLWAY_ORIGIN_MANUAL}}) {
        SCOPED_TRACE(one.what);
        flow.local_until_ns = one.local;
        flow.cip_until_ns = one.cip;
        flow.manual = one.manual;
        flow.origin = SPILLWAY_ORIGIN_NONE;
        flow.last_seen_jiffies = 0;
        EXPECT_TRUE(isolated());
        EXPECT_EQ(flow.state, SPILLWAY_STATE_ISOLATED);
        EXPECT_EQ(flow.origin, one.origin);
    }
}

TEST_P(Release, AfterSilenceWithTheNextPacket) {
    holds(0);
    flow.cip_until_ns = now_ns() + 1000 * s;
    flow.last_seen_ns = now_ns() - s - SPILLWAY_LAST_SEEN_SLACK_NS - ms;
    EXPECT_FALSE(isolated());
    EXPECT_FALSE(there());
}

TEST_P(Release, LocalLastsWhileItsQueueIsAboveLow) {
    holds(0);
    flow.local_until_ns = 1; // long ago
    rig.hold(normal, 50000);
    rig.leaf(normal).polled_busy_ns = now_ns(); // as the agent's reading says
    EXPECT_TRUE(isolated());
    EXPECT_EQ(flow.origin, SPILLWAY_ORIGIN_LOCAL);
    EXPECT_EQ(rig.leaf(normal).busy_ns != 0, rig.source() == Source::kernel);
}

TEST_P(Release, CipLastsWhileItsIsolationQueueIsAboveLow) {
    holds(50000);
    flow.cip_until_ns = 1;
    rig.leaf(isolation).polled_busy_ns = rig.source() == Source::poll ? now_ns() : 0;
    EXPECT_TRUE(isolated());
    EXPECT_EQ(flow.state, SPILLWAY_STATE_ISOLATED);
    EXPECT_EQ(flow.origin, SPILLWAY_ORIGIN_CIP);
    EXPECT_EQ(rig.leaf(isolation).busy_ns != 0, rig.source() == Source::kernel);
}

TEST_P(Release, BusyQueuesDoNotCountWithoutAWaterline) {
    holds(0);
    rig.queue().waterline.set = 0;
    flow.cip_until_ns = 1;
    rig.leaf(isolation).busy_ns = rig.leaf(normal).busy_ns = now_ns();
    EXPECT_FALSE(isolated());
    EXPECT_FALSE(there());
}

TEST_P(Release, LocalEndsWhenTheAgentIsDeadThoughTheQueueIsBusy) {
    holds(0);
    flow.local_until_ns = now_ns() + 1000 * s;
    rig.settings().stale_agent_ns = 5 * s;
    rig.settings().heartbeat_ns = now_ns() - 6 * s - ms;
    rig.leaf(normal).busy_ns = now_ns();
    EXPECT_FALSE(isolated());
    EXPECT_FALSE(there());
}

TEST_P(Release, NewReasonRevivesADrainingMark) {
    holds(5000);
    EXPECT_TRUE(isolated());
    ASSERT_EQ(flow.state, SPILLWAY_STATE_DRAINING);
    ASSERT_EQ(rig.edit(SPILLWAY_EDIT_MARK_CIP, key), SPILLWAY_EDIT_EXISTS);
    EXPECT_TRUE(again());
    EXPECT_EQ(flow.state, SPILLWAY_STATE_ISOLATED);
    EXPECT_EQ(flow.origin, SPILLWAY_ORIGIN_CIP);
    EXPECT_EQ(flow.ended_ns, 0U);
}

TEST_P(Release, UnmarkedByHandDrainsToo) {
    holds(5000);
    flow.manual = 1;
    flow.local_until_ns = flow.cip_until_ns = now_ns() + 1000 * s;
    EXPECT_TRUE(isolated());
    ASSERT_EQ(rig.edit(SPILLWAY_EDIT_UNMARK, key), SPILLWAY_EDIT_DONE);
    EXPECT_TRUE(again());
    EXPECT_EQ(flow.state, SPILLWAY_STATE_DRAINING);
    holds(0);
    EXPECT_FALSE(again());
    EXPECT_FALSE(there());
}

TEST_P(Release, FlowIsolatedNowhereHasNothingToDrain) {
    rig.queue().isolation_count = 0;
    flow.classid = 0;
    EXPECT_FALSE(isolated());
    EXPECT_FALSE(there());
}

TEST_P(Release, LookedAtOnceAJiffyUntilItDrains) {
    holds(0);
    flow.local_until_ns = now_ns() + 1000 * s;
    EXPECT_TRUE(isolated());
    // Within the same jiffy nothing is asked; a later one finds that the reason ended.
    const std::uint64_t jiffies = flow.last_seen_jiffies;
    EXPECT_NE(jiffies, 0U);
    flow.local_until_ns = 1;
    rig.put(key, flow);
    std::this_thread::sleep_for(std::chrono::milliseconds(15));
    EXPECT_FALSE(again());
    EXPECT_FALSE(there());
}

TEST_P(Release, TwoCpusReleaseOnce) {
    holds(0);
    constexpr std::uint64_t rounds = 100;
    for (std::uint64_t round = 1; round <= rounds; round++) {
        rig.put(key, flow);
        rig.port().entries = 1;
        std::thread other([this] { rig.isolate(packet_of_flow); });
        rig.isolate(packet_of_flow);
        other.join();
        ASSERT_FALSE(there());
        ASSERT_EQ(rig.filter(key), 0U);
        ASSERT_EQ(rig.port().entries, 0U);
        ASSERT_EQ(rig.queue().restored_total, round);
    }
    EXPECT_EQ(rig.events(SPILLWAY_EVENT_RELEASED).size(), rounds);
}

/// A draining flow, and 5000 bytes in its isolation leaf.
class ReleaseByPosition : public ReleaseBase {
  protected:
    ReleaseByPosition() : ReleaseBase(Source::kernel) {
        rig.hold(isolation, 5000);
        sent = rig.counters(isolation).sent_bytes;
        rig.settings().drain_margin = 0;
        flow.state = SPILLWAY_STATE_DRAINING;
        flow.ended_ns = now_ns();
        flow.drain_generation = 1;
    }
    std::uint64_t sent = 0;
};

TEST_F(ReleaseByPosition, OthersMayWaitOnceOurBytesHaveLeft) {
    ASSERT_GT(sent, 0U);
    flow.drain_position = sent + 1;
    EXPECT_TRUE(isolated());
    // Now that packet's own position counts: behind everything that waits.
    EXPECT_EQ(flow.drain_position, sent + 5000 + 1000);
    EXPECT_EQ(flow.drain_base, sent);
    EXPECT_EQ(flow.drain_generation, 1U);
    flow.drain_position = sent;
    EXPECT_FALSE(isolated());
    EXPECT_FALSE(there());
}

TEST_F(ReleaseByPosition, MarginIsWaitedForToo) {
    ASSERT_GT(sent, 100U);
    rig.settings().drain_margin = 100;
    flow.drain_position = sent - 99;
    EXPECT_TRUE(isolated());
    flow.drain_position = sent - 100;
    EXPECT_FALSE(isolated());
}

TEST_F(ReleaseByPosition, OfAnotherLeafProvesNothing) {
    flow.drain_generation = 7;
    EXPECT_TRUE(isolated());
    EXPECT_EQ(flow.drain_generation, 1U); // of the packet that has just gone there
    flow.drain_generation = 7;
    rig.hold(isolation, 0);
    EXPECT_FALSE(isolated());
}

TEST_F(ReleaseByPosition, RestartedCounterProvesNothing) {
    flow.drain_base = sent + 1;
    flow.drain_position = 1;
    EXPECT_TRUE(isolated());
    flow.drain_base = sent;
    flow.drain_position = 1;
    EXPECT_FALSE(isolated());
}

TEST_F(ReleaseByPosition, NotedFromTheFirstDrainingPacketOn) {
    flow.state = SPILLWAY_STATE_ISOLATED;
    flow.local_until_ns = now_ns() + 1000 * s;
    EXPECT_TRUE(isolated());
    EXPECT_EQ(flow.drain_generation, 0U); // later packets of this jiffy will not be noted
    flow.local_until_ns = 1;
    flow.last_seen_jiffies = 0;
    EXPECT_TRUE(isolated());
    ASSERT_EQ(flow.state, SPILLWAY_STATE_DRAINING);
    EXPECT_EQ(flow.drain_position, sent + 5000 + 1000);
    EXPECT_EQ(flow.drain_generation, 1U);
}

TEST_F(ReleaseByPosition, AgentsReadingsProveItToo) {
    flow.drain_generation = 0; // as after a silence
    flow.last_seen_ns = now_ns() - s;
    rig.leaf(isolation).drained_before_ns = now_ns();
    EXPECT_FALSE(isolated());
}

TEST_F(ReleaseByPosition, IsWaitedForHoweverLong) {
    rig.settings().stale_agent_ns = s;
    rig.settings().heartbeat_ns = now_ns() - 2 * s; // nobody else will tell
    flow.drain_position = sent + 1;
    flow.ended_ns = now_ns() - 1000 * s;
    EXPECT_TRUE(isolated());
}

TEST_F(ReleaseByPosition, FlowThatMovesToAnotherLeafIsNotDrained) {
    flow.isolation = 1;
    flow.drain_position = 0;
    EXPECT_TRUE(isolated());
    EXPECT_EQ(flow.isolation, 0U);
}

TEST_F(ReleaseByPosition, QueueThatIsNoFifoMustBeEmptyOrDrainedByTime) {
    rig.leaf(isolation).positions = 0;
    EXPECT_TRUE(isolated());
    flow.last_seen_ns = now_ns() - ms;
    rig.leaf(isolation).drained_before_ns = now_ns();
    EXPECT_FALSE(isolated());
    flow.last_seen_ns = now_ns();
    rig.leaf(isolation).drained_before_ns = 0;
    rig.hold(isolation, 0);
    EXPECT_FALSE(isolated());
}

class ReleaseByTime : public ReleaseBase {
  protected:
    ReleaseByTime() : ReleaseBase(Source::poll) {
        rig.hold(isolation, 5000);
        rig.settings().stale_agent_ns = 5 * s;
        rig.settings().heartbeat_ns = now_ns();
        flow.state = SPILLWAY_STATE_DRAINING;
        flow.ended_ns = now_ns();
    }
};

TEST_F(ReleaseByTime, LastPacketMustHaveBeenInTheQueueBefore) {
    flow.last_seen_ns = now_ns() - 10 * ms;
    rig.leaf(isolation).drained_before_ns = flow.last_seen_ns + SPILLWAY_ENQUEUE_SLACK_NS;
    EXPECT_TRUE(isolated());
    flow.last_seen_ns = rig.leaf(isolation).drained_before_ns - SPILLWAY_ENQUEUE_SLACK_NS - 1;
    EXPECT_FALSE(isolated());
}

TEST_F(ReleaseByTime, PacketsOfTheLastJiffyAreAllowedForBeforeItDrains) {
    flow.state = SPILLWAY_STATE_ISOLATED;
    flow.last_seen_ns = now_ns() - 50 * ms;
    rig.leaf(isolation).drained_before_ns = flow.last_seen_ns + SPILLWAY_LAST_SEEN_SLACK_NS;
    EXPECT_TRUE(isolated());
    flow.state = SPILLWAY_STATE_ISOLATED;
    flow.last_seen_jiffies = 0;
    flow.last_seen_ns = rig.leaf(isolation).drained_before_ns - 11 * ms;
    EXPECT_FALSE(isolated());
}

TEST_F(ReleaseByTime, NotKnownYetIsWaitedForWhileTheAgentReads) {
    rig.leaf(isolation).drained_before_ns = 0;
    flow.ended_ns = now_ns() - 1000 * s;
    EXPECT_TRUE(isolated());
}

TEST_F(ReleaseByTime, WithoutReadingsTheClearTimeDecides) {
    rig.leaf(isolation).drained_before_ns = 0;
    rig.leaf(isolation).read_ns = 0;
    flow.ended_ns = now_ns() - 29 * s;
    EXPECT_TRUE(isolated());
    flow.ended_ns = now_ns() - 30 * s;
    EXPECT_FALSE(isolated());
}

TEST_F(ReleaseByTime, DeadAgentsReadingsAreNoReadings) {
    rig.leaf(isolation).drained_before_ns = 1;
    rig.settings().heartbeat_ns = now_ns() - 6 * s;
    rig.leaf(isolation).read_ns = rig.settings().heartbeat_ns;
    flow.ended_ns = now_ns() - 29 * s;
    EXPECT_TRUE(isolated());
    flow.ended_ns = now_ns() - 30 * s;
    EXPECT_FALSE(isolated());
}

// ---- B10: a flow that turns out light

/// The flow's last window has just ended; in it the heaviest flow of the queue enqueued 100000 bytes.
class Reconsider : public ReleaseBase {
  protected:
    Reconsider() : ReleaseBase(Source::poll) {
        const std::uint64_t now = now_ns();
        rig.settings().window_ns = now / 10; // long, and window 10 has just begun
        rig.settings().guard = 1;
        rig.settings().guard_min_bytes = 50000; // plays no part
        rig.settings().guard_min_ratio = SPILLWAY_RATIO_ONE / 10;
        rig.queue().heaviest[1] = spillway_heaviest_word(9, 100000);
        rig.hold(isolation, 0);
        rig.leaf(isolation).drained_before_ns = now + 3600 * s;
        rig.leaf(isolation).polled_busy_ns = now; // the congestion lasts
        flow.local_until_ns = now + 3600 * s;
        flow.marked_ns = rig.settings().window_ns * 8;
        flow.window = 9;
        flow.window_bytes = 9000;
        flow.light_windows = SPILLWAY_LIGHT_WINDOWS - 1;
    }
};

TEST_F(Reconsider, LightFlowGetsItsPriorityBackThoughCongestionLasts) {
    EXPECT_FALSE(isolated());
    EXPECT_FALSE(there());
}

TEST_F(Reconsider, NotBeforeItWasLightForAFewWindows) {
    flow.light_windows = 0;
    EXPECT_TRUE(isolated());
    EXPECT_EQ(flow.light_windows, 1U);
    EXPECT_EQ(flow.window, 10U);
}

TEST_F(Reconsider, HeavyFlowIsKeptAndStartsAnew) {
    flow.window_bytes = 11000;
    EXPECT_TRUE(isolated());
    EXPECT_EQ(flow.light_windows, 0U);
}

TEST_F(Reconsider, StarvedElephantIsTheHeaviestAllTheSame) {
    rig.queue().heaviest[1] = spillway_heaviest_word(9, 9000);
    EXPECT_TRUE(isolated());
    EXPECT_EQ(flow.light_windows, 0U);
}

TEST_F(Reconsider, WithoutAMeasureNothingIsJudged) {
    rig.queue().heaviest[1] = spillway_heaviest_word(7, 100000); // of another window
    flow.window_bytes = 0;
    EXPECT_TRUE(isolated());
    EXPECT_EQ(flow.light_windows, SPILLWAY_LIGHT_WINDOWS - 1U);
}

TEST_F(Reconsider, WindowInWhichItWasMarkedIsNotJudged) {
    flow.marked_ns = rig.settings().window_ns * 9;
    EXPECT_TRUE(isolated());
    EXPECT_EQ(flow.light_windows, SPILLWAY_LIGHT_WINDOWS - 1U);
}

TEST_F(Reconsider, OtherReasonsHold) {
    flow.cip_until_ns = now_ns() + 3600 * s;
    EXPECT_TRUE(isolated());
    EXPECT_EQ(flow.origin, SPILLWAY_ORIGIN_CIP);
    EXPECT_EQ(flow.local_until_ns, 0U);
}

TEST_F(Reconsider, WithoutTheGuardThereIsNoShare) {
    rig.settings().guard = 0;
    EXPECT_TRUE(isolated());
}

// What waits keeps it from draining: its packets are let go until it has drained.
TEST_F(Reconsider, LightFlowThatCannotDrainIsHandedOver) {
    rig.leaf(isolation).drained_before_ns = 1;
    flow.state = SPILLWAY_STATE_DRAINING;
    flow.local_until_ns = 0;
    flow.light_windows = SPILLWAY_LIGHT_WINDOWS;
    flow.window = 10;
    flow.ended_ns = now_ns() - 3 * rig.settings().window_ns;
    flow.last_seen_ns = flow.ended_ns;
    rig.put(key, flow);
    EXPECT_EQ(rig.isolate(packet_of_flow).verdict, TC_ACT_SHOT);
    EXPECT_EQ(rig.counter(SPILLWAY_LOST_HANDOVER), 1U);
    EXPECT_EQ(rig.flow(key)->last_seen_ns, flow.last_seen_ns) << "nothing of it went to the queue";
    rig.leaf(isolation).drained_before_ns = now_ns();
    EXPECT_EQ(rig.isolate(packet_of_flow).verdict, TC_ACT_UNSPEC);
    EXPECT_FALSE(there());
}

TEST_F(Reconsider, IsolatedFlowsAreAmongTheHeaviest) {
    flow.window_bytes = 200000;
    EXPECT_TRUE(isolated());
    EXPECT_EQ(rig.queue().heaviest[1], spillway_heaviest_word(9, 200000));
}

} // namespace
} // namespace spillway::prog
