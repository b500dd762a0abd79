// SPDX-License-Identifier: Apache-2.0
// How priority fields rank, over their whole domain.
#include <gtest/gtest.h>
#include <spillway/priority.h>

#include <algorithm>
#include <vector>

namespace spillway {
namespace {

TEST(Priority, PcpRanksAs8021qSays) {
    std::vector<__u32> order{0, 1, 2, 3, 4, 5, 6, 7};
    std::ranges::sort(order, {}, spillway_pcp_rank);
    EXPECT_EQ(order, (std::vector<__u32>{1, 0, 2, 3, 4, 5, 6, 7}));
    for (__u32 a = 0; a <= SPILLWAY_PCP_MAX; a++)
        for (__u32 b = 0; b < a; b++)
            EXPECT_NE(spillway_pcp_rank(a), spillway_pcp_rank(b)) << a << " " << b;
}

TEST(Priority, LowerEffortIsTheLowestDscpAndOthersRankByNumber) {
    for (__u32 a = 0; a <= SPILLWAY_DSCP_MAX; a++)
        for (__u32 b = 0; b <= SPILLWAY_DSCP_MAX; b++) {
            const bool a_lowest = a == 1 || a == 8;
            const bool b_lowest = b == 1 || b == 8;
            const bool below = a_lowest ? !b_lowest : !b_lowest && a < b;
            EXPECT_EQ(spillway_dscp_rank(a) < spillway_dscp_rank(b), below) << a << " " << b;
        }
}

TEST(Priority, RewrittenFieldsKeepTheirOtherBits) {
    for (__u32 tci = 0; tci <= 0xffff; tci++)
        for (const __u32 pcp : {0U, 1U, 6U, 7U}) {
            const __u16 fresh = spillway_tci_with_pcp(static_cast<__u16>(tci), pcp);
            ASSERT_EQ(fresh & 0x1fffU, tci & 0x1fffU);
            ASSERT_EQ(fresh >> 13U, pcp);
        }
    for (__u32 tos = 0; tos <= 0xff; tos++)
        for (__u32 dscp = 0; dscp <= SPILLWAY_DSCP_MAX; dscp++) {
            const __u8 fresh = spillway_tos_with_dscp(static_cast<__u8>(tos), dscp);
            ASSERT_EQ(fresh & 3U, tos & 3U);
            ASSERT_EQ(fresh >> 2U, dscp);
        }
}

} // namespace
} // namespace spillway
