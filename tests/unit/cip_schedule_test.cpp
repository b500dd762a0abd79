// SPDX-License-Identifier: Apache-2.0
#include "agent/core/cip_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace spillway {
namespace {

constexpr std::uint64_t ms = 1'000'000;
constexpr std::uint64_t second = 1000 * ms;
constexpr CipLimits limits{
    .refresh_ns = 100 * ms, .life_ns = second, .max_per_flow = 3, .max_per_second = 10};

TEST(CipSchedule, FirstOnesComeApartByRefreshThenByAQuarterOfALife) {
    EXPECT_EQ(next_due(limits, 1, second), second + 100 * ms);
    EXPECT_EQ(next_due(limits, 2, second), second + 100 * ms);
    EXPECT_EQ(next_due(limits, 3, second), second + 250 * ms);
    EXPECT_EQ(next_due(limits, 1000, second), second + 250 * ms);
}

TEST(CipSchedule, RepeatIsDueAtItsTimeNotBefore) {
    EXPECT_FALSE(repeat_due(limits, 1, 500, true, 499));
    EXPECT_TRUE(repeat_due(limits, 1, 500, true, 500));
}

TEST(CipSchedule, LaterRepeatsNeedABusyIsolationQueue) {
    EXPECT_TRUE(repeat_due(limits, 2, 500, false, 500));
    EXPECT_FALSE(repeat_due(limits, 3, 500, false, 500));
    EXPECT_TRUE(repeat_due(limits, 3, 500, true, 500));
}

/// Whatever asks, however often: within T of congestion no link carries more than design §9's bound.
TEST(CipSchedule, BoundHoldsForAnySequenceOfRequests) {
    for (unsigned seed = 0; seed < 300; seed++) {
        std::mt19937_64 random(seed);
        const CipLimits some{.refresh_ns = (1 + random() % 400) * ms,
                             .life_ns = (100 + random() % 4000) * ms,
                             .max_per_flow = 3,
                             .max_per_second = 10};
        const std::uint64_t gap = 1 + random() % (500 * ms);
        std::uint64_t now = 0;
        std::uint64_t due = 0;
        std::uint32_t sent = 0;
        for (int request = 0; request < 2000; request++) {
            now += random() % gap;
            if (now < due)
                continue;
            sent++;
            due = next_due(some, sent, now);
            const std::uint64_t quarter = some.life_ns / 4;
            ASSERT_LE(sent, 3 + (now + quarter - 1) / quarter) << "seed " << seed << " at " << now;
        }
        EXPECT_GT(sent, 3U);
    }
}

TEST(CipSchedule, RefreshThatAlwaysAsksIsSentOften) {
    // Half of the bound at least, so that the upstream mark does not run out though some are lost.
    std::uint64_t due = 0;
    std::uint32_t sent = 0;
    for (std::uint64_t now = 0; now <= 10 * second; now += ms)
        if (repeat_due(limits, sent, due, true, now))
            due = next_due(limits, ++sent, now);
    EXPECT_GE(sent, 40U);
    EXPECT_LE(sent, 43U);
}

TEST(RateLimit, AllAtOnceThenNoneForTheRestOfTheSecond) {
    RateLimit rate;
    for (int i = 0; i < 10; i++)
        EXPECT_TRUE(rate.take(10, second)) << i;
    EXPECT_FALSE(rate.take(10, second));
    EXPECT_FALSE(rate.take(10, 2 * second - 1));
    EXPECT_TRUE(rate.take(10, 2 * second));
}

TEST(RateLimit, OneASecond) {
    RateLimit rate;
    EXPECT_TRUE(rate.take(1, 5));
    EXPECT_FALSE(rate.take(1, second + 4));
    EXPECT_TRUE(rate.take(1, second + 5));
}

TEST(RateLimit, LowerLimitHoldsAtOnce) {
    RateLimit rate;
    for (int i = 0; i < 5; i++)
        EXPECT_TRUE(rate.take(1000, second));
    EXPECT_FALSE(rate.take(5, second + ms));
    EXPECT_TRUE(rate.take(6, second + ms));
}

/// IEEE 802.3 counts slow protocol frames in any second, wherever it begins.
TEST(RateLimit, NeverMoreInAnySecond) {
    for (unsigned seed = 0; seed < 100; seed++) {
        std::mt19937_64 random(seed);
        const auto per_second = static_cast<std::uint32_t>(1 + random() % 30);
        RateLimit rate;
        std::vector<std::uint64_t> taken;
        std::uint64_t now = random() % second;
        for (int request = 0; request < 3000; request++) {
            now += random() % (request % 100 == 0 ? 3 * second : 40 * ms);
            if (rate.take(per_second, now))
                taken.push_back(now);
        }
        for (std::size_t i = 0; i + per_second < taken.size(); i++)
            ASSERT_GE(taken[i + per_second] - taken[i], second) << "seed " << seed;
        EXPECT_GT(taken.size(), per_second);
    }
}

TEST(RateLimit, GivesAllThatItMayWhenAskedAllTheTime) {
    RateLimit rate;
    int taken = 0;
    for (std::uint64_t now = 0; now < 10 * second; now += ms)
        taken += rate.take(10, now) ? 1 : 0;
    EXPECT_EQ(taken, 100);
}

} // namespace
} // namespace spillway
