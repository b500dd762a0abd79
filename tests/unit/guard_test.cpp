// SPDX-License-Identifier: Apache-2.0
#include <spillway/guard.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace {

constexpr std::uint32_t most = 0xffffffffU;

TEST(Guard, WindowsAreCutFromTheClock) {
    EXPECT_EQ(spillway_window(0, 100), 0U);
    EXPECT_EQ(spillway_window(99, 100), 0U);
    EXPECT_EQ(spillway_window(100, 100), 1U);
    EXPECT_EQ(spillway_window(7, 0), 7U); // settings not filled in yet: no division by zero
}

TEST(Guard, SlotAddsUpItsOwnFlow) {
    spillway_suspect slot{};
    EXPECT_EQ(spillway_suspect_add(&slot, 1, 0, 5, 1000), 1000U);
    EXPECT_EQ(spillway_suspect_add(&slot, 1, 0, 5, 500), 1500U);
    EXPECT_EQ(slot.window, 5U);
}

TEST(Guard, NewWindowStartsAtZeroForTheSameFlowAndForOthers) {
    spillway_suspect slot{.tag = 1, .window = 5, .bytes = 9000, .queue = 0};
    EXPECT_EQ(spillway_suspect_add(&slot, 1, 0, 6, 100), 100U);
    EXPECT_EQ(spillway_suspect_add(&slot, 2, 0, 7, 60), 60U);
    EXPECT_EQ(slot.tag, 2U);
}

TEST(Guard, OtherFlowWearsTheSlotDownBeforeItTakesIt) {
    spillway_suspect slot{.tag = 1, .window = 5, .bytes = 250, .queue = 0};
    EXPECT_EQ(spillway_suspect_add(&slot, 2, 0, 5, 100), 0U); // 150 left
    EXPECT_EQ(spillway_suspect_add(&slot, 2, 0, 5, 100), 0U); // 50 left
    EXPECT_EQ(slot.tag, 1U);
    EXPECT_EQ(spillway_suspect_add(&slot, 2, 0, 5, 100), 100U);
    EXPECT_EQ(slot.tag, 2U);
}

TEST(Guard, SameFlowInAnotherQueueIsAnotherFlow) {
    spillway_suspect slot{.tag = 1, .window = 5, .bytes = 250, .queue = 0};
    EXPECT_EQ(spillway_suspect_add(&slot, 1, 3, 5, 100), 0U);
    EXPECT_EQ(slot.bytes, 150U);
}

TEST(Guard, SumSaturates) {
    spillway_suspect slot{.tag = 1, .window = 5, .bytes = most - 10, .queue = 0};
    EXPECT_EQ(spillway_suspect_add(&slot, 1, 0, 5, 10), most);
    EXPECT_EQ(spillway_suspect_add(&slot, 1, 0, 5, 11), most);
    EXPECT_EQ(spillway_suspect_add(&slot, 1, 0, 5, most), most);
}

TEST(Guard, HeaviestIsOfThisWindowOrTheLastOneOnly) {
    const __u64 heaviest[2] = {spillway_heaviest_word(6, 400), spillway_heaviest_word(5, 900)};
    EXPECT_EQ(spillway_heaviest(heaviest, 5), 900U);
    EXPECT_EQ(spillway_heaviest(heaviest, 6), 900U);
    EXPECT_EQ(spillway_heaviest(heaviest, 7), 400U);
    EXPECT_EQ(spillway_heaviest(heaviest, 8), 0U);
    EXPECT_EQ(spillway_heaviest(heaviest, 4), 0U);
}

TEST(Guard, WindowNumberMayWrap) {
    const __u64 heaviest[2] = {spillway_heaviest_word(0, 1), spillway_heaviest_word(most, 900)};
    EXPECT_EQ(spillway_heaviest(heaviest, 0), 900U);
}

TEST(Guard, AsksForTheLargerOfMinimumAndShare) {
    EXPECT_EQ(spillway_guard_asks(15000, SPILLWAY_RATIO_ONE / 10, 0), 15000U);
    EXPECT_EQ(spillway_guard_asks(15000, SPILLWAY_RATIO_ONE / 2, 30000), 15000U);
    EXPECT_EQ(spillway_guard_asks(15000, SPILLWAY_RATIO_ONE / 2, 30002), 15001U);
    EXPECT_EQ(spillway_guard_asks(0, SPILLWAY_RATIO_ONE, most), most); // the heaviest itself is heavy
    EXPECT_EQ(spillway_guard_asks(0, 0, most), 0U);
    EXPECT_EQ(spillway_guard_asks(most, SPILLWAY_RATIO_ONE, most), most);
}

/// What `flows` flows with the given bytes a packet do in one window, each with a slot of its own, packets in
/// turn: which of them the guard lets through at the end.
std::vector<bool> heavy_after(const std::vector<std::uint32_t> &packet_bytes, int packets) {
    constexpr std::uint32_t window = 9;
    std::vector<spillway_suspect> slots(packet_bytes.size());
    __u64 heaviest[2] = {};
    std::vector<bool> heavy(packet_bytes.size());
    for (int i = 0; i < packets; i++)
        for (std::uint32_t flow = 0; flow < packet_bytes.size(); flow++) {
            const std::uint32_t sum = spillway_suspect_add(&slots[flow], flow, 0, window, packet_bytes[flow]);
            heaviest[window & 1U] = spillway_heaviest_word(
                window, std::max(sum, spillway_heaviest_bytes(heaviest[window & 1U], window)));
            heavy[flow] = sum >= spillway_guard_asks(15000, SPILLWAY_RATIO_ONE / 10,
                                                     spillway_heaviest(heaviest, window));
        }
    return heavy;
}

TEST(Guard, EqualFlowsAreAllHeavyHoweverMany) {
    for (const std::size_t flows : {1U, 2U, 100U, 1000U})
        EXPECT_EQ(heavy_after(std::vector<std::uint32_t>(flows, 1500), 10), std::vector<bool>(flows, true));
}

TEST(Guard, FlowsAreLightBeforeTheMinimum) {
    EXPECT_EQ(heavy_after({1500}, 9), std::vector{false});
    EXPECT_EQ(heavy_after({1500}, 10), std::vector{true});
}

TEST(Guard, LightFlowBesideAHeavyOneStaysLight) {
    // 149 bytes to 1500 is below a tenth however long it lasts; 150 is a tenth, and no longer spared.
    EXPECT_EQ(heavy_after({1500, 149}, 10000), (std::vector{true, false}));
    EXPECT_EQ(heavy_after({1500, 150}, 10000), (std::vector{true, true}));
}

} // namespace
