// SPDX-License-Identifier: Apache-2.0
#include <spillway/mark.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace {

constexpr std::uint64_t ms = 1'000'000;
constexpr std::uint64_t slack = SPILLWAY_LAST_SEEN_SLACK_NS;
constexpr std::uint64_t idle = 1000 * ms;
constexpr std::uint64_t life = 2000 * ms;
constexpr std::uint64_t clear = 30000 * ms;
constexpr std::uint64_t stale = 5000 * ms;
constexpr std::uint64_t t0 = 1'000'000 * ms; ///< when the mark is made

/// A flow marked at t0 whose packets keep coming, on a node whose agent lives and whose queues are calm.
class Mark : public testing::Test {
  protected:
    spillway_flow flow{};
    spillway_mark_times times{.idle_ns = idle,
                              .life_ns = life,
                              .clear_ns = clear,
                              .stale_agent_ns = stale,
                              .heartbeat_ns = t0,
                              .queue_busy_ns = 0,
                              .isolation_busy_ns = 0};

    Mark() {
        flow.mark = SPILLWAY_MARK_CONGESTED;
        flow.state = SPILLWAY_STATE_ISOLATED;
        flow.marked_ns = t0;
        flow.last_seen_ns = t0;
    }
    void local() { flow.local_until_ns = t0 + life; }
    void cip() { flow.cip_until_ns = t0 + life; }
    void manual() { flow.manual = 1; }

    /// A step at `now`, a packet having come just before; true when the flow is released.
    bool step(std::uint64_t now, spillway_drained drained = SPILLWAY_DRAINED_NO) {
        flow.last_seen_ns = now;
        return spillway_mark_step(&flow, &times, drained, now) != 0;
    }
    /// A step of a flow of which no packet came.
    bool silent_step(std::uint64_t now, spillway_drained drained = SPILLWAY_DRAINED_NO) {
        return spillway_mark_step(&flow, &times, drained, now) != 0;
    }
    spillway_origin holds(std::uint64_t now) {
        flow.last_seen_ns = now;
        return spillway_holds(&flow, &times, now);
    }
};

TEST_F(Mark, HoldsWhileAnyReasonHolds) {
    // Every set of reasons: bit 0 local, bit 1 cip, bit 2 manual. First one in the order manual, local, cip.
    for (unsigned reasons = 0; reasons < 8; reasons++) {
        flow.local_until_ns = (reasons & 1U) != 0 ? t0 + 1 : 0;
        flow.cip_until_ns = (reasons & 2U) != 0 ? t0 + 1 : 0;
        flow.manual = (reasons & 4U) != 0 ? 1 : 0;
        const spillway_origin wanted = (reasons & 4U) != 0   ? SPILLWAY_ORIGIN_MANUAL
                                       : (reasons & 1U) != 0 ? SPILLWAY_ORIGIN_LOCAL
                                       : (reasons & 2U) != 0 ? SPILLWAY_ORIGIN_CIP
                                                             : SPILLWAY_ORIGIN_NONE;
        EXPECT_EQ(holds(t0), wanted) << reasons;
    }
}

TEST_F(Mark, LocalEndsAfterItsTime) {
    local();
    EXPECT_EQ(holds(t0 + life - 1), SPILLWAY_ORIGIN_LOCAL);
    EXPECT_EQ(holds(t0 + life), SPILLWAY_ORIGIN_NONE);
}

TEST_F(Mark, CipEndsAfterItsTime) {
    cip();
    EXPECT_EQ(holds(t0 + life - 1), SPILLWAY_ORIGIN_CIP);
    EXPECT_EQ(holds(t0 + life), SPILLWAY_ORIGIN_NONE);
}

TEST_F(Mark, ManualNeverEndsByItself) {
    manual();
    EXPECT_FALSE(silent_step(t0 + 1000 * clear, SPILLWAY_DRAINED_YES));
    EXPECT_EQ(flow.state, SPILLWAY_STATE_ISOLATED);
    EXPECT_EQ(flow.origin, SPILLWAY_ORIGIN_MANUAL);
}

TEST_F(Mark, OriginFollowsTheReasonThatIsLeft) {
    local();
    flow.cip_until_ns = t0 + life + 100;
    manual();
    step(t0);
    EXPECT_EQ(flow.origin, SPILLWAY_ORIGIN_MANUAL);
    flow.manual = 0;
    step(t0 + 1);
    EXPECT_EQ(flow.origin, SPILLWAY_ORIGIN_LOCAL);
    step(t0 + life);
    EXPECT_EQ(flow.origin, SPILLWAY_ORIGIN_CIP);
    step(t0 + life + 100);
    EXPECT_EQ(flow.state, SPILLWAY_STATE_DRAINING);
    EXPECT_EQ(flow.origin, SPILLWAY_ORIGIN_CIP); // the last that held
}

TEST_F(Mark, IdleEndsLocalAndCipWithASlackOfOneJiffy) {
    local();
    flow.local_until_ns = t0 + 10 * idle;
    times.queue_busy_ns = t0 + 10 * idle;
    EXPECT_FALSE(silent_step(t0 + idle + slack - 1, SPILLWAY_DRAINED_YES));
    EXPECT_EQ(flow.state, SPILLWAY_STATE_ISOLATED);
    EXPECT_FALSE(silent_step(t0 + idle + slack, SPILLWAY_DRAINED_NO));
    EXPECT_EQ(flow.state, SPILLWAY_STATE_DRAINING);

    flow = {};
    cip();
    flow.last_seen_ns = t0;
    flow.cip_until_ns = t0 + 10 * idle;
    EXPECT_EQ(spillway_holds(&flow, &times, t0 + idle + slack - 1), SPILLWAY_ORIGIN_CIP);
    EXPECT_EQ(spillway_holds(&flow, &times, t0 + idle + slack), SPILLWAY_ORIGIN_NONE);
}

TEST_F(Mark, ClockOfAnotherCpuMayBeBehind) {
    local();
    cip();
    flow.last_seen_ns = t0 + 5; // written by a CPU whose clock is ahead
    EXPECT_FALSE(spillway_idle(&flow, &times, t0));
    EXPECT_EQ(spillway_holds(&flow, &times, t0), SPILLWAY_ORIGIN_LOCAL);
    flow.ended_ns = t0 + 5;
    flow.state = SPILLWAY_STATE_DRAINING;
    flow.local_until_ns = flow.cip_until_ns = 0;
    EXPECT_FALSE(silent_step(t0, SPILLWAY_DRAINED_UNKNOWN)); // not released an age too early
}

TEST_F(Mark, LocalLastsWhileEitherQueueIsBusy) {
    local();
    times.heartbeat_ns = t0 + 10 * life;
    times.queue_busy_ns = t0 + 3 * life;
    EXPECT_EQ(holds(t0 + 4 * life - 1), SPILLWAY_ORIGIN_LOCAL);
    EXPECT_EQ(holds(t0 + 4 * life), SPILLWAY_ORIGIN_NONE);
    times.isolation_busy_ns = t0 + 5 * life;
    EXPECT_EQ(holds(t0 + 6 * life - 1), SPILLWAY_ORIGIN_LOCAL);
    EXPECT_EQ(holds(t0 + 6 * life), SPILLWAY_ORIGIN_NONE);
    times.queue_busy_ns = t0 - 100 * life; // calm for long: the mark still has its own time
    times.isolation_busy_ns = 0;
    EXPECT_EQ(holds(t0 + life - 1), SPILLWAY_ORIGIN_LOCAL);
}

TEST_F(Mark, CipLastsWhileTheIsolationQueueIsBusyAndNotForTheOther) {
    cip();
    times.queue_busy_ns = t0 + 3 * life;
    EXPECT_EQ(holds(t0 + life), SPILLWAY_ORIGIN_NONE);
    times.isolation_busy_ns = t0 + 3 * life;
    EXPECT_EQ(holds(t0 + 4 * life - 1), SPILLWAY_ORIGIN_CIP);
    EXPECT_EQ(holds(t0 + 4 * life), SPILLWAY_ORIGIN_NONE);
}

TEST_F(Mark, BusyQueueMakesNoReason) {
    times.queue_busy_ns = t0;
    times.isolation_busy_ns = t0;
    EXPECT_EQ(holds(t0), SPILLWAY_ORIGIN_NONE);
    flow.cip_until_ns = t0 + 10; // only this one is a reason, and only local asks for the queue
    times.isolation_busy_ns = 0;
    EXPECT_EQ(holds(t0 + 10), SPILLWAY_ORIGIN_NONE);
}

TEST_F(Mark, WithoutWaterlineTheCipsTimeAloneCounts) {
    cip(); // busy times are 0 there
    EXPECT_EQ(spillway_cip_until(&flow, &times), flow.cip_until_ns);
}

TEST_F(Mark, DeadAgentEndsLocalButNotCip) {
    local();
    const std::uint64_t limit = t0 + stale + life; // the last heartbeat was at t0
    flow.local_until_ns = limit + 5000 * ms;
    times.queue_busy_ns = times.isolation_busy_ns = limit + 5000 * ms;
    EXPECT_EQ(holds(limit - 1), SPILLWAY_ORIGIN_LOCAL);
    EXPECT_EQ(holds(limit), SPILLWAY_ORIGIN_NONE);
    cip();
    EXPECT_EQ(holds(limit), SPILLWAY_ORIGIN_CIP);
    times.heartbeat_ns = t0 + 1; // a heartbeat is not a reason, but moves the limit
    EXPECT_EQ(holds(limit), SPILLWAY_ORIGIN_LOCAL);
}

TEST_F(Mark, DrainsFromWhenItsLastReasonEnded) {
    local();
    EXPECT_FALSE(step(t0 + life + 7, SPILLWAY_DRAINED_NO));
    EXPECT_EQ(flow.state, SPILLWAY_STATE_DRAINING);
    EXPECT_EQ(flow.ended_ns, t0 + life + 7);
    EXPECT_FALSE(step(t0 + life + 9, SPILLWAY_DRAINED_NO));
    EXPECT_EQ(flow.ended_ns, t0 + life + 7);
    EXPECT_EQ(flow.mark, SPILLWAY_MARK_CONGESTED); // still isolated
}

TEST_F(Mark, ReleasedAtOnceWhenDrained) {
    local();
    EXPECT_TRUE(step(t0 + life, SPILLWAY_DRAINED_YES));
}

TEST_F(Mark, DrainedSaysNothingWhileAReasonHolds) {
    local();
    EXPECT_FALSE(step(t0 + life - 1, SPILLWAY_DRAINED_YES));
    EXPECT_EQ(flow.state, SPILLWAY_STATE_ISOLATED);
}

TEST_F(Mark, NotDrainedIsNeverReleased) {
    local();
    step(t0 + life);
    EXPECT_FALSE(step(t0 + 1000 * clear, SPILLWAY_DRAINED_NO));
    EXPECT_TRUE(step(t0 + 1000 * clear, SPILLWAY_DRAINED_YES));
}

TEST_F(Mark, UnknownIsReleasedAfterTheClearTime) {
    local();
    EXPECT_FALSE(step(t0 + life, SPILLWAY_DRAINED_UNKNOWN));
    EXPECT_FALSE(step(t0 + life + clear - 1, SPILLWAY_DRAINED_UNKNOWN));
    EXPECT_TRUE(step(t0 + life + clear, SPILLWAY_DRAINED_UNKNOWN));
}

TEST_F(Mark, EndedReasonsAreForgotten) {
    local();
    cip();
    step(t0 + life);
    EXPECT_EQ(flow.local_until_ns, 0U);
    EXPECT_EQ(flow.cip_until_ns, 0U);
    // The queues get busy again: no reason of this flow any more.
    times.queue_busy_ns = times.isolation_busy_ns = t0 + life + 1;
    EXPECT_FALSE(step(t0 + life + 2, SPILLWAY_DRAINED_NO));
    EXPECT_EQ(flow.state, SPILLWAY_STATE_DRAINING);
}

TEST_F(Mark, ReasonThatOutlastsSilenceDoesNotReviveTheMark) {
    cip();
    flow.cip_until_ns = t0 + 10 * idle;
    EXPECT_FALSE(silent_step(t0 + idle + slack, SPILLWAY_DRAINED_NO));
    EXPECT_FALSE(step(t0 + idle + slack + 1, SPILLWAY_DRAINED_NO)); // the flow speaks again
    EXPECT_EQ(flow.state, SPILLWAY_STATE_DRAINING);
}

TEST_F(Mark, NewReasonRevivesADrainingMark) {
    for (const auto &[reason, origin] :
         {std::pair{1, SPILLWAY_ORIGIN_LOCAL}, std::pair{2, SPILLWAY_ORIGIN_CIP},
          std::pair{3, SPILLWAY_ORIGIN_MANUAL}}) {
        flow.local_until_ns = flow.cip_until_ns = flow.manual = 0;
        flow.state = SPILLWAY_STATE_ISOLATED;
        step(t0 + 1);
        ASSERT_EQ(flow.state, SPILLWAY_STATE_DRAINING);
        flow.local_until_ns = reason == 1 ? t0 + 10 : 0;
        flow.cip_until_ns = reason == 2 ? t0 + 10 : 0;
        flow.manual = reason == 3 ? 1 : 0;
        EXPECT_FALSE(step(t0 + 2, SPILLWAY_DRAINED_YES)) << reason;
        EXPECT_EQ(flow.state, SPILLWAY_STATE_ISOLATED) << reason;
        EXPECT_EQ(flow.origin, origin);
        EXPECT_EQ(flow.ended_ns, 0U);
    }
}

TEST_F(Mark, PositionOfAnEmptyLeafIsAlwaysDrained) {
    flow.drain_generation = 3;
    flow.drain_position = 5000;
    EXPECT_TRUE(spillway_drained_by_position(&flow, 0, 0, 3, 100));
    EXPECT_TRUE(spillway_drained_by_position(&flow, 0, 0, 4, 100));
}

TEST_F(Mark, PositionAndMarginMustHaveBeenSent) {
    flow.drain_generation = 3;
    flow.drain_base = 1000;
    flow.drain_position = 5000;
    EXPECT_FALSE(spillway_drained_by_position(&flow, 1, 5099, 3, 100));
    EXPECT_TRUE(spillway_drained_by_position(&flow, 1, 5100, 3, 100));
}

TEST_F(Mark, PositionOfAnotherLeafOrARestartedCounterProvesNothing) {
    flow.drain_generation = 3;
    flow.drain_base = 1000;
    flow.drain_position = 5000;
    EXPECT_FALSE(spillway_drained_by_position(&flow, 1, 1ULL << 40U, 4, 100));
    flow.drain_position = 500; // as after a restart: lower than the base
    EXPECT_FALSE(spillway_drained_by_position(&flow, 1, 999, 3, 100));
    EXPECT_TRUE(spillway_drained_by_position(&flow, 1, 1000, 3, 100));
}

TEST_F(Mark, TimeMustBeAfterTheLastPacketWasSurelyInTheQueue) {
    flow.state = SPILLWAY_STATE_DRAINING;
    flow.last_seen_ns = t0;
    EXPECT_FALSE(spillway_drained_by_time(&flow, t0 - 1));
    EXPECT_FALSE(spillway_drained_by_time(&flow, t0 + SPILLWAY_ENQUEUE_SLACK_NS));
    EXPECT_TRUE(spillway_drained_by_time(&flow, t0 + SPILLWAY_ENQUEUE_SLACK_NS + 1));
}

TEST_F(Mark, TimeAllowsForTheJiffyInWhichTheLastPacketCame) {
    // Isolated flows are looked at once a jiffy: packets may have come after last_seen_ns.
    EXPECT_FALSE(spillway_drained_by_time(&flow, t0 + slack + SPILLWAY_ENQUEUE_SLACK_NS));
    EXPECT_TRUE(spillway_drained_by_time(&flow, t0 + slack + SPILLWAY_ENQUEUE_SLACK_NS + 1));
    // The same is true of a flow that just begins to drain and sends nothing more.
    local();
    silent_step(t0 + idle + slack);
    ASSERT_EQ(flow.state, SPILLWAY_STATE_DRAINING);
    EXPECT_FALSE(spillway_drained_by_time(&flow, t0 + slack + SPILLWAY_ENQUEUE_SLACK_NS));
    EXPECT_TRUE(spillway_drained_by_time(&flow, t0 + slack + SPILLWAY_ENQUEUE_SLACK_NS + 1));
}

/// Packets of a light flow that cannot drain are let go for a while, once.
TEST(HandOver, OnlyOfALightFlowAfterTwoWindowsForThree) {
    constexpr std::uint64_t window = 100;
    spillway_flow flow{};
    flow.state = SPILLWAY_STATE_DRAINING;
    flow.ended_ns = 1000;
    const auto hands_over = [&](std::uint64_t now) { return spillway_hands_over(&flow, window, now) != 0; };
    EXPECT_FALSE(hands_over(1300)) << "it was heavy";
    flow.light_windows = SPILLWAY_LIGHT_WINDOWS;
    EXPECT_FALSE(hands_over(900)) << "another CPU's clock";
    EXPECT_FALSE(hands_over(1199));
    EXPECT_TRUE(hands_over(1200));
    EXPECT_TRUE(hands_over(1499));
    EXPECT_FALSE(hands_over(1500));
    EXPECT_FALSE(hands_over(1300)) << "once";
    flow.light_windows = SPILLWAY_LIGHT_WINDOWS;
    flow.state = SPILLWAY_STATE_ISOLATED;
    EXPECT_FALSE(hands_over(1300)) << "a new reason came";
}

} // namespace
