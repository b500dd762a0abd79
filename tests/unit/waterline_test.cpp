// SPDX-License-Identifier: Apache-2.0
#include <spillway/waterline.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace {

constexpr std::uint64_t one = SPILLWAY_PROBABILITY_ONE;
constexpr std::uint32_t most = 0xffffffffU;

spillway_waterline line(std::uint32_t low, std::uint32_t high, std::uint64_t probability = one) {
    return {.probability = probability, .low = low, .high = high, .unit = SPILLWAY_UNIT_BYTES, .set = 1};
}

/// R1 in exact arithmetic: floor(2^32 p). Written as the requirement is, not as the header is.
std::uint64_t exact(const spillway_waterline &waterline, std::uint64_t amount) {
    if (amount > waterline.high)
        return one;
    if (amount <= waterline.low)
        return 0;
    const auto above = static_cast<unsigned __int128>(amount) - waterline.low;
    const auto span = static_cast<unsigned __int128>(waterline.high) - waterline.low;
    return static_cast<std::uint64_t>(waterline.probability * above / span);
}

TEST(Waterline, EveryAmountOfEverySmallPairIsExact) {
    for (std::uint32_t low = 0; low <= 24; low++)
        for (std::uint32_t high = low; high <= 24; high++)
            for (const std::uint64_t preset :
                 {std::uint64_t{0}, std::uint64_t{1}, one / 10, one / 3, one - 1, one})
                for (std::uint64_t amount = 0; amount <= 30; amount++) {
                    const spillway_waterline waterline = line(low, high, preset);
                    ASSERT_EQ(spillway_probability(&waterline, amount), exact(waterline, amount))
                        << low << " " << high << " " << preset << " " << amount;
                    const spillway_level wanted = amount > high  ? SPILLWAY_LEVEL_ABOVE
                                                  : amount > low ? SPILLWAY_LEVEL_BETWEEN
                                                                 : SPILLWAY_LEVEL_BELOW;
                    ASSERT_EQ(spillway_level_of(&waterline, amount), wanted) << low << " " << high;
                }
}

TEST(Waterline, EdgesOfTheWholeDomainAreExact) {
    const std::vector<std::uint32_t> lines{0, 1, 2, 1500, most / 2, most - 1, most};
    const std::vector<std::uint64_t> presets{0, 1, one / 2, one - 1, one};
    for (const std::uint32_t low : lines)
        for (const std::uint32_t high : lines) {
            if (low > high)
                continue;
            for (const std::uint64_t preset : presets)
                for (const std::uint64_t base :
                     {std::uint64_t{low}, std::uint64_t{high}, one, ~std::uint64_t{0} - 1})
                    for (int offset = -1; offset <= 1; offset++) {
                        const std::uint64_t amount = base + static_cast<std::uint64_t>(offset);
                        const spillway_waterline waterline = line(low, high, preset);
                        ASSERT_EQ(spillway_probability(&waterline, amount), exact(waterline, amount))
                            << low << " " << high << " " << preset << " " << amount;
                    }
        }
}

TEST(Waterline, OneLineIsNeverBetween) {
    for (const std::uint32_t both : {0U, 1U, 200000U, most}) {
        const spillway_waterline waterline = line(both, both, one / 2);
        EXPECT_EQ(spillway_level_of(&waterline, both), SPILLWAY_LEVEL_BELOW);
        EXPECT_EQ(spillway_level_of(&waterline, std::uint64_t{both} + 1), SPILLWAY_LEVEL_ABOVE);
        EXPECT_FALSE(spillway_congested(&waterline, both, 0));
        EXPECT_TRUE(spillway_congested(&waterline, std::uint64_t{both} + 1, most));
    }
}

TEST(Waterline, ProbabilityZeroMarksOnlyAboveHigh) {
    const spillway_waterline waterline = line(10, 20, 0);
    for (std::uint64_t amount = 0; amount <= 20; amount++)
        EXPECT_FALSE(spillway_congested(&waterline, amount, 0)) << amount;
    EXPECT_TRUE(spillway_congested(&waterline, 21, most));
}

TEST(Waterline, ProbabilityOneIsReachedAtHigh) {
    const spillway_waterline waterline = line(10, 20, one);
    EXPECT_TRUE(spillway_congested(&waterline, 20, most));
    EXPECT_FALSE(spillway_congested(&waterline, 19, most));
    EXPECT_FALSE(spillway_congested(&waterline, 10, 0));
}

TEST(Waterline, DecidesByTheRandomNumberExactly) {
    const spillway_waterline waterline = line(50000, 200000, one / 10);
    const std::uint64_t p = spillway_probability(&waterline, 125000);
    EXPECT_EQ(p, one / 20); // half way: half of the preset
    EXPECT_TRUE(spillway_congested(&waterline, 125000, static_cast<std::uint32_t>(p - 1)));
    EXPECT_FALSE(spillway_congested(&waterline, 125000, static_cast<std::uint32_t>(p)));
}

TEST(Waterline, NeverFallsWhenAmountOrPresetRise) {
    for (const auto &[low, high] : {std::pair{0U, most}, std::pair{1000U, 1007U}, std::pair{0U, 1U}}) {
        std::uint64_t before = 0;
        for (std::uint64_t step = 0; step <= 1000; step++) {
            const spillway_waterline waterline = line(low, high, one / 7);
            const std::uint64_t now = spillway_probability(&waterline, (one + 10) / 1000 * step);
            EXPECT_GE(now, before);
            before = now;
        }
    }
    std::uint64_t before = 0;
    for (std::uint64_t preset = 0; preset <= one; preset += one / 64) {
        const spillway_waterline waterline = line(0, most, preset);
        const std::uint64_t now = spillway_probability(&waterline, most / 3);
        EXPECT_GE(now, before);
        before = now;
    }
    EXPECT_GT(before, 0U);
}

TEST(Waterline, NoWaterlineIsUnknownAndMarksNothing) {
    spillway_waterline waterline = line(0, 0);
    waterline.set = 0;
    EXPECT_EQ(spillway_level_of(&waterline, ~0ULL), SPILLWAY_LEVEL_UNKNOWN);
    EXPECT_FALSE(spillway_congested(&waterline, ~0ULL, 0));
}

TEST(Waterline, AmountIsWhatWaitsOnceThePacketIsAdded) {
    spillway_waterline waterline = line(0, 0);
    EXPECT_EQ(spillway_amount(&waterline, 123500, 7, 1500), 125000U);
    EXPECT_EQ(spillway_amount(&waterline, most, 7, most), 2 * std::uint64_t{most}); // does not wrap
    waterline.unit = SPILLWAY_UNIT_PACKETS;
    EXPECT_EQ(spillway_amount(&waterline, 123500, 7, 65000), 8U);
}

} // namespace
