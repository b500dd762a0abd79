// SPDX-License-Identifier: Apache-2.0
#include "tests/prog/rig.h"

#include <gtest/gtest.h>

namespace spillway::prog {
namespace {

using namespace packet;

const Bytes heavy = (Ethernet{} / IPv4{} / Udp{} / zeros(958)).bytes(); ///< 1000 bytes

class Isolate : public testing::TestWithParam<Source> {};
INSTANTIATE_TEST_SUITE_P(, Isolate, testing::Values(Source::kernel, Source::poll), [](const auto &info) {
    return info.param == Source::kernel ? "kernel" : "poll";
});

TEST_P(Isolate, EmptyQueueLetsEverythingPass) {
    Rig rig(GetParam());
    EXPECT_EQ(rig.isolate(heavy).priority, 0U);
    EXPECT_EQ(rig.flows(), 0U);
}

} // namespace
} // namespace spillway::prog
