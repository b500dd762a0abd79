// SPDX-License-Identifier: Apache-2.0
#include "tests/lab/pause_frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <vector>

namespace spillway::lab {
namespace {

using testing::ElementsAreArray;

const PauseFrame pause{
    .source = {0x02, 0, 0, 0, 0, 0x2A}, .enabled = 0b0000'0011, .quanta = {0xFFFF, 0x1234, 0, 0, 0, 0, 0, 7}};

// Written out from IEEE 802.1Qbb: destination, source, 0x8808, 0x0101, enable vector, eight timers.
const std::vector<std::uint8_t> on_the_wire = {
    0x01, 0x80, 0xC2, 0x00, 0x00, 0x01, 0x02, 0x00, 0x00, 0x00, 0x00, 0x2A, 0x88, 0x08, 0x01,
    0x01, 0x00, 0x03, 0xFF, 0xFF, 0x12, 0x34, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x07, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00};

TEST(PauseFrame, IsWrittenAsTheStandardSays) {
    EXPECT_THAT(encode(pause), ElementsAreArray(on_the_wire));
}

TEST(PauseFrame, IsReadBack) {
    EXPECT_EQ(decode_pause(encode(pause)), pause);
    EXPECT_EQ(decode_pause(on_the_wire), pause);
}

TEST(PauseFrame, NeedsNoPadding) {
    EXPECT_EQ(decode_pause(std::span(on_the_wire).first(34)), pause);
}

TEST(PauseFrame, RefusesEveryShorterFrame) {
    for (std::size_t length = 0; length < 34; ++length)
        EXPECT_FALSE(decode_pause(std::span(on_the_wire).first(length))) << length << " bytes";
}

TEST(PauseFrame, RefusesOtherFrames) {
    // A byte each of destination, EtherType and opcode: anything else there is another kind of frame.
    for (const std::size_t at : {std::size_t{0}, std::size_t{5}, std::size_t{12}, std::size_t{13},
                                 std::size_t{14}, std::size_t{15}}) {
        auto bytes = on_the_wire;
        bytes[at] ^= 0x02U;
        EXPECT_FALSE(decode_pause(bytes)) << "byte " << at;
    }
}

TEST(PauseFrame, LastsQuantaOf512BitTimes) {
    EXPECT_EQ(pause_ns(0, 100'000'000), 0U);
    EXPECT_EQ(pause_ns(1, 1'000'000'000), 512U);
    EXPECT_EQ(pause_ns(0xFFFF, 100'000'000), 335'539'200U);
    EXPECT_EQ(pause_ns(0xFFFF, 10'000'000), 3'355'392'000U);
}

} // namespace
} // namespace spillway::lab
