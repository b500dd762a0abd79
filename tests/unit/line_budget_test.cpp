// SPDX-License-Identifier: Apache-2.0
#include "agent/core/line_budget.h"

#include <gtest/gtest.h>

namespace spillway {
namespace {

constexpr std::uint64_t second = 1'000'000'000;

TEST(LineBudget, GivesSoManyASecond) {
    LineBudget budget(2);
    EXPECT_TRUE(budget.take(5 * second));
    EXPECT_TRUE(budget.take(5 * second + 1));
    EXPECT_FALSE(budget.take(6 * second - 1));
    EXPECT_TRUE(budget.take(6 * second));
}

TEST(LineBudget, CountsWhatItRefused) {
    LineBudget budget(1);
    EXPECT_EQ(budget.withheld(), 0U);
    for (int i = 0; i < 5; i++)
        budget.take(second);
    EXPECT_EQ(budget.withheld(), 4U);
    EXPECT_EQ(budget.withheld(), 0U);
}

} // namespace
} // namespace spillway
