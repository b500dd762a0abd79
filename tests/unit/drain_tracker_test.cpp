// SPDX-License-Identifier: Apache-2.0
#include "agent/core/drain_tracker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <random>

namespace spillway {
namespace {

TEST(DrainTracker, KnowsNothingAtFirst) {
    DrainTracker tracker;
    EXPECT_EQ(tracker.read(100, 5000, 0, 0, true), 0U);
}

TEST(DrainTracker, EmptyQueueHasSentAllThatCameBefore) {
    DrainTracker tracker;
    EXPECT_EQ(tracker.read(100, 0, 0, 0, true), 100U);
    EXPECT_EQ(tracker.read(200, 0, 0, 0, false), 200U);
}

TEST(DrainTracker, OrderedQueueIsDrainedOnceItSentWhatItHeld) {
    DrainTracker tracker;
    EXPECT_EQ(tracker.read(100, 3000, 1000, 0, true), 0U); // position 4000
    EXPECT_EQ(tracker.read(200, 3000, 3999, 0, true), 0U);
    EXPECT_EQ(tracker.read(300, 3000, 4000, 0, true), 100U);
    EXPECT_EQ(tracker.read(400, 3000, 6999, 0, true), 200U); // position 6999 of time 200
}

TEST(DrainTracker, MarginIsWaitedForToo) {
    DrainTracker tracker;
    tracker.read(100, 3000, 1000, 500, true);
    EXPECT_EQ(tracker.read(200, 3000, 4499, 500, true), 0U);
    EXPECT_EQ(tracker.read(300, 3000, 4500, 500, true), 100U);
}

TEST(DrainTracker, UnorderedQueueIsDrainedOnlyWhenEmpty) {
    DrainTracker tracker;
    EXPECT_EQ(tracker.read(50, 0, 0, 0, false), 50U);
    EXPECT_EQ(tracker.read(100, 3000, 1000, 0, false), 50U);
    EXPECT_EQ(tracker.read(200, 3000, 9000, 0, false), 50U);
    EXPECT_EQ(tracker.read(300, 0, 12000, 0, false), 300U);
}

TEST(DrainTracker, RestartedCounterForgetsPositions) {
    DrainTracker tracker;
    tracker.read(100, 3000, 50000, 0, true); // position 53000
    EXPECT_EQ(tracker.read(200, 3000, 10, 0, true), 0U);
    EXPECT_EQ(tracker.read(300, 3000, 3009, 0, true), 0U);
    EXPECT_EQ(tracker.read(400, 3000, 3010, 0, true), 200U); // by the position taken after the restart
    EXPECT_EQ(tracker.read(500, 0, 3010, 0, true), 500U);
}

TEST(DrainTracker, ReplacedQueueTookEverythingAlong) {
    DrainTracker tracker;
    tracker.read(100, 3000, 50000, 0, true);
    tracker.replaced(150);
    EXPECT_EQ(tracker.read(200, 3000, 0, 0, true), 150U);
    EXPECT_EQ(tracker.read(300, 3000, 3000, 0, true), 200U);
}

TEST(DrainTracker, LongStandstillIsStillAnswered) {
    DrainTracker tracker;
    for (std::uint64_t t = 1; t <= 10000; t++)
        EXPECT_EQ(tracker.read(t, 3000, 0, 0, true), 0U);
    // All that was held has gone, and more is waiting: an early moment is known, and then later ones.
    const std::uint64_t early = tracker.read(10001, 3000, 3000, 0, true);
    EXPECT_GT(early, 0U);
    EXPECT_EQ(tracker.read(10002, 3000, 6000, 0, true), 10001U);
}

/// A FIFO of bytes with random arrivals and departures: what the tracker calls drained has left, and what
/// left long ago is called drained.
TEST(DrainTracker, NeverSaysDrainedTooEarlyForARandomFifo) {
    for (unsigned seed = 0; seed < 50; seed++) {
        std::mt19937 random(seed);
        DrainTracker tracker;
        struct Waiting {
            std::uint64_t time;
            std::uint64_t bytes;
        };
        std::deque<Waiting> fifo;
        std::uint64_t backlog = 0;
        std::uint64_t sent = 0;
        std::uint64_t before = 0;
        for (std::uint64_t t = 1; t <= 3000; t++) {
            if (random() % 3 != 0) {
                const std::uint64_t bytes = 64 + random() % 1436;
                fifo.push_back({t, bytes});
                backlog += bytes;
            }
            if (random() % 3 != 0 && !fifo.empty()) {
                backlog -= fifo.front().bytes;
                sent += fifo.front().bytes;
                fifo.pop_front();
            }
            if (random() % 4 == 0) {
                const std::uint64_t drained = tracker.read(t, backlog, sent, 0, true);
                ASSERT_GE(drained, before);
                ASSERT_LE(drained, t);
                if (!fifo.empty()) {
                    ASSERT_LE(drained, fifo.front().time) << "seed " << seed << " at " << t;
                }
                before = drained;
            }
        }
        EXPECT_GT(before, 2000U) << "seed " << seed;
    }
}

} // namespace
} // namespace spillway
