// SPDX-License-Identifier: Apache-2.0
// The edit program: changes that user space asks for.
#include "agent/core/clock.h"
#include "tests/prog/rig.h"

#include <gtest/gtest.h>

#include <cstring>

namespace spillway::prog {
namespace {

constexpr std::uint64_t s = 1'000'000'000;

class Edit : public testing::Test {
  protected:
    Rig rig{Source::poll};
    spillway_flow_key key = key_of("udp 10.0.0.1:5000 10.0.0.2:6000", rig.ifindex());
    spillway_flow_key other = key_of("tcp [fd00::1]:1 [fd00::2]:2", rig.ifindex());

    static Bytes bytes_of(const spillway_edit &command) {
        Bytes bytes(sizeof(command));
        std::memcpy(bytes.data(), &command, sizeof(command));
        return bytes;
    }
};

TEST_F(Edit, CommandsOfAnotherShapeAreBad) {
    spillway_edit command{};
    command.abi = SPILLWAY_ABI;
    command.op = SPILLWAY_EDIT_MARK_MANUAL;
    command.key = key;
    for (std::size_t size = 14; size < sizeof(command); size++) {
        Bytes cut = bytes_of(command);
        cut.resize(size);
        EXPECT_EQ(rig.raw_edit(cut), SPILLWAY_EDIT_BAD) << size;
    }
    for (const std::uint32_t op : {0U, 11U, 0xffffffffU}) {
        command.op = op;
        EXPECT_EQ(rig.raw_edit(bytes_of(command)), SPILLWAY_EDIT_BAD) << op;
    }
    command.op = SPILLWAY_EDIT_MARK_MANUAL;
    for (const int abi : {0, SPILLWAY_ABI + 1, 0xffff}) {
        command.abi = static_cast<__u16>(abi);
        EXPECT_EQ(rig.raw_edit(bytes_of(command)), SPILLWAY_EDIT_BAD) << abi;
    }
    EXPECT_EQ(rig.flows(), 0U);
    command.abi = SPILLWAY_ABI;
    EXPECT_EQ(rig.raw_edit(bytes_of(command)), SPILLWAY_EDIT_DONE);
    EXPECT_EQ(rig.flows(), 1U);
}

TEST_F(Edit, MarkByHand) {
    const std::uint64_t before = now_ns();
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_MARK_MANUAL, key), SPILLWAY_EDIT_DONE);
    const auto flow = rig.flow(key);
    ASSERT_TRUE(flow);
    EXPECT_EQ(flow->mark, SPILLWAY_MARK_CONGESTED);
    EXPECT_EQ(flow->state, SPILLWAY_STATE_ISOLATED);
    EXPECT_EQ(flow->origin, SPILLWAY_ORIGIN_MANUAL);
    EXPECT_EQ(flow->manual, 1U);
    EXPECT_GE(flow->marked_ns, before);
    EXPECT_EQ(flow->last_seen_ns, flow->marked_ns);
    EXPECT_EQ(flow->packets, 0U);
    EXPECT_EQ(flow->classid, 0U);
    EXPECT_EQ(flow->local_until_ns, 0U);
    EXPECT_EQ(flow->cip_until_ns, 0U);
    EXPECT_EQ(rig.settings().gen, 1U);
    EXPECT_EQ(rig.port().entries, 1U);
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_MARK_MANUAL, key), SPILLWAY_EDIT_EXISTS);
    EXPECT_EQ(rig.settings().gen, 1U);
    EXPECT_EQ(rig.port().entries, 1U);
}

TEST_F(Edit, MarkByCip) {
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_MARK_CIP, key), SPILLWAY_EDIT_DONE);
    auto flow = *rig.flow(key);
    EXPECT_EQ(flow.origin, SPILLWAY_ORIGIN_CIP);
    EXPECT_EQ(flow.manual, 0U);
    EXPECT_EQ(flow.cip_until_ns, flow.marked_ns + rig.settings().life_ns);
    const std::uint64_t first = flow.cip_until_ns;
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_MARK_CIP, key), SPILLWAY_EDIT_EXISTS); // a refresh
    EXPECT_GT(rig.flow(key)->cip_until_ns, first);
    EXPECT_EQ(rig.flow(key)->marked_ns, flow.marked_ns);
}

TEST_F(Edit, ReasonsAddUp) {
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_MARK_CIP, key), SPILLWAY_EDIT_DONE);
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_MARK_MANUAL, key), SPILLWAY_EDIT_EXISTS);
    EXPECT_EQ(rig.flow(key)->manual, 1U);
    EXPECT_NE(rig.flow(key)->cip_until_ns, 0U);
}

TEST_F(Edit, MarkNeedsAServedPort) {
    for (const std::uint32_t port : {0U, 4711U}) {
        key.port = port;
        EXPECT_EQ(rig.edit(SPILLWAY_EDIT_MARK_MANUAL, key), SPILLWAY_EDIT_BAD) << port;
        EXPECT_EQ(rig.edit(SPILLWAY_EDIT_MARK_CIP, key), SPILLWAY_EDIT_BAD) << port;
    }
    EXPECT_EQ(rig.flows(), 0U);
    EXPECT_EQ(rig.settings().gen, 0U);
}

TEST_F(Edit, PortIsFoundAFewSlotsOn) {
    auto ports = rig.maps().ports();
    const auto moved = [&](std::uint32_t distance) {
        return &ports[(rig.ifindex() + distance) % SPILLWAY_PORTS_MAX];
    };
    const spillway_port filled = rig.port();
    rig.port().ifindex = 99; // somebody else's
    *moved(SPILLWAY_PORT_PROBES - 1) = filled;
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_MARK_MANUAL, key), SPILLWAY_EDIT_DONE);
    *moved(SPILLWAY_PORT_PROBES - 1) = {};
    *moved(SPILLWAY_PORT_PROBES) = filled;
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_MARK_MANUAL, other), SPILLWAY_EDIT_BAD);
}

TEST_F(Edit, UsedUpQuotaStillTakesReasonsForOldMarks) {
    rig.settings().quota = 1;
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_MARK_CIP, key), SPILLWAY_EDIT_DONE);
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_MARK_CIP, other), SPILLWAY_EDIT_QUOTA);
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_MARK_CIP, key), SPILLWAY_EDIT_EXISTS);
    EXPECT_EQ(rig.flows(), 1U);
}

TEST_F(Edit, FullTableSaysSo) {
    spillway_flow filler{};
    for (std::uint32_t i = 0; i < rig.maps().flows_capacity(); i++) {
        spillway_flow_key taken = key;
        taken.port = 100000 + i;
        rig.put(taken, filler);
    }
    const std::uint32_t before = rig.filter(key);
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_MARK_MANUAL, key), SPILLWAY_EDIT_TABLE_FULL);
    EXPECT_EQ(rig.filter(key), before);
    EXPECT_EQ(rig.settings().gen, 0U);
    EXPECT_EQ(rig.port().entries, 0U);
}

TEST_F(Edit, UnmarkTakesEveryReasonAndDrains) {
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_UNMARK, key), SPILLWAY_EDIT_NO_ENTRY);
    rig.edit(SPILLWAY_EDIT_MARK_CIP, key);
    rig.edit(SPILLWAY_EDIT_MARK_MANUAL, key);
    const std::uint64_t before = now_ns();
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_UNMARK, key), SPILLWAY_EDIT_DONE);
    const auto flow = *rig.flow(key);
    EXPECT_EQ(flow.state, SPILLWAY_STATE_DRAINING);
    EXPECT_EQ(flow.manual, 0U);
    EXPECT_EQ(flow.cip_until_ns, 0U);
    EXPECT_EQ(flow.local_until_ns, 0U);
    EXPECT_GE(flow.ended_ns, before);
    EXPECT_GE(flow.last_seen_ns, before); // what drained before that is not known
}

TEST_F(Edit, StepKeepsWhatAReasonHolds) {
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_STEP, key), SPILLWAY_EDIT_NO_ENTRY);
    rig.edit(SPILLWAY_EDIT_MARK_MANUAL, key);
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_STEP, key), SPILLWAY_EDIT_DONE);
    EXPECT_TRUE(rig.flow(key));
}

/// A flow whose reasons have ended, last seen a second ago.
spillway_flow ended_flow(Rig &rig) {
    spillway_flow flow{};
    flow.mark = SPILLWAY_MARK_CONGESTED;
    flow.state = SPILLWAY_STATE_ISOLATED;
    flow.last_seen_ns = now_ns() - s;
    flow.packets = 1;
    flow.classid = isolation;
    flow.queue = rig.port().first_queue;
    rig.port().entries = 1;
    rig.settings().clear_ns = 30 * s;
    return flow;
}

TEST_F(Edit, StepReleasesWhatHasDrained) {
    const spillway_flow flow = ended_flow(rig);
    rig.put(key, flow);
    rig.leaf(isolation).drained_before_ns = flow.last_seen_ns;
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_STEP, key), SPILLWAY_EDIT_DONE);
    EXPECT_EQ(rig.flow(key)->state, SPILLWAY_STATE_DRAINING);
    rig.leaf(isolation).drained_before_ns = now_ns();
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_STEP, key), SPILLWAY_EDIT_RELEASED);
    EXPECT_FALSE(rig.flow(key));
    EXPECT_EQ(rig.port().entries, 0U);
    EXPECT_EQ(rig.queue().restored_total, 1U);
    const auto events = rig.events(SPILLWAY_EVENT_RELEASED);
    ASSERT_EQ(events.size(), 1U);
    EXPECT_EQ(events[0].type, SPILLWAY_EVENT_RELEASED);
}

TEST_F(Edit, StepReleasesWhatWasNeverIsolated) {
    spillway_flow flow = ended_flow(rig);
    flow.packets = 0;
    flow.classid = 0;
    rig.put(key, flow);
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_STEP, key), SPILLWAY_EDIT_RELEASED);
    EXPECT_EQ(rig.queue().restored_total, 0U);
}

TEST_F(Edit, StepReleasesWhatIsOnAPortThatIsGone) {
    rig.edit(SPILLWAY_EDIT_MARK_MANUAL, key);
    rig.port().ifindex = 4711;
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_STEP, key), SPILLWAY_EDIT_RELEASED);
    EXPECT_EQ(rig.flows(), 0U);
}

TEST_F(Edit, StepReleasesWhatWaitedInAQueueThatIsGone) {
    rig.put(key, ended_flow(rig));
    rig.queue().ifindex = 4711;
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_STEP, key), SPILLWAY_EDIT_RELEASED);
    EXPECT_EQ(rig.queue().restored_total, 0U); // not that queue's
}

TEST_F(Edit, StepWaitsForTheClearTimeWhereNothingTells) {
    spillway_flow flow = ended_flow(rig);
    rig.put(key, flow);
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_STEP, key), SPILLWAY_EDIT_DONE);
    flow.state = SPILLWAY_STATE_DRAINING;
    flow.ended_ns = now_ns() - 29 * s;
    rig.put(key, flow);
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_STEP, key), SPILLWAY_EDIT_DONE);
    flow.ended_ns = now_ns() - 30 * s;
    rig.put(key, flow);
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_STEP, key), SPILLWAY_EDIT_RELEASED);
}

TEST_F(Edit, UpstreamIsAskedForCountedAndForgotten) {
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_CIP_SENT, key), SPILLWAY_EDIT_NO_ENTRY);
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_FORGET, key), SPILLWAY_EDIT_NO_ENTRY);
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_LEARN, key), SPILLWAY_EDIT_DONE);
    auto node = rig.upstream(key);
    ASSERT_TRUE(node);
    EXPECT_EQ(node->egress, rig.ifindex());
    EXPECT_EQ(node->sent, 0U);
    EXPECT_EQ(node->wanted_until_ns, rig.settings().learn_until_ns);
    EXPECT_GT(node->wanted_until_ns, now_ns());
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_CIP_SENT, key, 4711), SPILLWAY_EDIT_DONE);
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_CIP_SENT, key, 4712), SPILLWAY_EDIT_DONE);
    EXPECT_EQ(rig.upstream(key)->sent, 2U);
    EXPECT_EQ(rig.upstream(key)->next_due_ns, 4712U);
    key.port = other.port + 1; // the same flow through another port
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_LEARN, key), SPILLWAY_EDIT_DONE);
    EXPECT_EQ(rig.upstream(key)->egress, key.port);
    EXPECT_EQ(rig.upstream(key)->sent, 2U);
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_FORGET, key), SPILLWAY_EDIT_DONE);
    EXPECT_FALSE(rig.upstream(key));
}

TEST_F(Edit, FilterCountsTheMarksOfASlot) {
    spillway_flow_key same_slot = key; // the port is no part of the slot
    same_slot.port = rig.other_ifindex();
    rig.maps().ports()[rig.other_ifindex()].ifindex = rig.other_ifindex();
    EXPECT_EQ(rig.filter(key), 0U);
    rig.edit(SPILLWAY_EDIT_MARK_MANUAL, key);
    rig.edit(SPILLWAY_EDIT_MARK_MANUAL, key); // exists
    EXPECT_EQ(rig.filter(key), 1U);
    rig.edit(SPILLWAY_EDIT_MARK_CIP, same_slot);
    EXPECT_EQ(rig.filter(key), 2U);
    EXPECT_EQ(rig.filter(other), 0U);
    for (const spillway_flow_key &each : {same_slot, key}) {
        const std::uint32_t before = rig.filter(key);
        rig.edit(SPILLWAY_EDIT_UNMARK, each);
        EXPECT_EQ(rig.filter(key), before);
        EXPECT_EQ(rig.edit(SPILLWAY_EDIT_STEP, each), SPILLWAY_EDIT_RELEASED);
        EXPECT_EQ(rig.filter(key), before - 1);
    }
}

TEST_F(Edit, FilterForgetsWhatFoundNoRoom) {
    rig.settings().quota = 0;
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_MARK_MANUAL, key), SPILLWAY_EDIT_QUOTA);
    EXPECT_EQ(rig.filter(key), 0U);
}

TEST_F(Edit, CountAdds) {
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_COUNT, key, 3, SPILLWAY_CIP_SENT), SPILLWAY_EDIT_DONE);
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_COUNT, key, 4, SPILLWAY_CIP_SENT), SPILLWAY_EDIT_DONE);
    EXPECT_EQ(rig.counter(SPILLWAY_CIP_SENT), 7U);
    EXPECT_EQ(rig.counters().size(), 1U);
}

TEST_F(Edit, CipMarkLastsAsLongAsItSays) {
    const auto lasts = [&] {
        const spillway_flow flow = rig.flow(key).value();
        return flow.cip_until_ns - flow.marked_ns;
    };
    ASSERT_EQ(rig.edit(SPILLWAY_EDIT_MARK_CIP, key, 5'000'000'000), SPILLWAY_EDIT_DONE);
    EXPECT_EQ(lasts(), 5'000'000'000U);
    rig.settings().life_ns = 3'000'000'000;
    ASSERT_EQ(rig.edit(SPILLWAY_EDIT_MARK_CIP, key), SPILLWAY_EDIT_EXISTS);
    EXPECT_LT(lasts(), 5'000'000'000U) << "that of this node: 3 s from now";
}

// A restore CIP takes back what CIPs asked for, and nothing else.
TEST_F(Edit, EndOfCipLeavesOtherReasons) {
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_END_CIP, key), SPILLWAY_EDIT_NO_ENTRY);
    ASSERT_EQ(rig.edit(SPILLWAY_EDIT_MARK_CIP, key), SPILLWAY_EDIT_DONE);
    ASSERT_EQ(rig.edit(SPILLWAY_EDIT_MARK_MANUAL, key), SPILLWAY_EDIT_EXISTS);
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_END_CIP, key), SPILLWAY_EDIT_DONE);
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_STEP, key), SPILLWAY_EDIT_DONE);
    EXPECT_EQ(rig.flow(key)->origin, SPILLWAY_ORIGIN_MANUAL);
    EXPECT_EQ(rig.flow(key)->state, SPILLWAY_STATE_ISOLATED);
    EXPECT_EQ(rig.flow(key)->cip_until_ns, 0U);
    ASSERT_EQ(rig.edit(SPILLWAY_EDIT_UNMARK, key), SPILLWAY_EDIT_DONE);
    rig.leaf(isolation).drained_before_ns = now_ns() + 1'000'000'000;
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_STEP, key), SPILLWAY_EDIT_RELEASED);
    const auto events = rig.events(SPILLWAY_EVENT_RELEASED);
    ASSERT_EQ(events.size(), 1U);
    EXPECT_LT(events[0].amount, 1'000'000'000U) << "it was not silent";
}

TEST_F(Edit, LocalMarkIsLikeOneOfOurQueue) {
    ASSERT_EQ(rig.edit(SPILLWAY_EDIT_MARK_LOCAL, key), SPILLWAY_EDIT_DONE);
    const spillway_flow flow = rig.flow(key).value();
    EXPECT_EQ(flow.origin, SPILLWAY_ORIGIN_LOCAL);
    EXPECT_EQ(flow.local_until_ns, flow.marked_ns + rig.settings().life_ns);
    EXPECT_EQ(flow.cip_until_ns, 0U);
    EXPECT_EQ(flow.manual, 0U);
}

} // namespace
} // namespace spillway::prog
