// SPDX-License-Identifier: Apache-2.0
// The TC egress program: which packets it judges, when it marks a flow, and what it does to a marked one.
// Release is in release_test.cpp.
#include "agent/core/clock.h"
#include "tests/prog/rig.h"

#include <gtest/gtest.h>

#include <bpf/bpf.h>
#include <linux/pkt_cls.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <sched.h>
#include <thread>
#include <vector>

namespace spillway::prog {
namespace {

using namespace packet;

constexpr std::uint32_t length = 1000;
constexpr std::uint32_t above = high_waterline; ///< with one more packet

/// A UDP packet of 1000 bytes; flows differ by their source port.
Bytes udp(std::uint16_t sport = 5000) {
    return (Ethernet{} / IPv4{} / Udp{.sport = sport} / zeros(length - 42)).bytes();
}

std::string flow_of(std::uint16_t sport) {
    return "udp 10.0.0.1:" + std::to_string(sport) + " 10.0.0.2:6000";
}

class Isolate : public testing::TestWithParam<Source> {
  protected:
    Rig rig{GetParam()};

    /// The program lets every packet go on, unchanged; its priority tells what was done.
    std::uint32_t priority(const Bytes &packet, const Skb &skb = {}) {
        const Outcome outcome = rig.isolate(packet, skb);
        EXPECT_EQ(outcome.verdict, TC_ACT_UNSPEC);
        EXPECT_EQ(outcome.packet, packet);
        return outcome.priority;
    }
    spillway_flow_key key(std::uint16_t sport = 5000) { return key_of(flow_of(sport), rig.ifindex()); }
    bool marked(std::uint16_t sport = 5000) { return rig.flow(key(sport)).has_value(); }
};

INSTANTIATE_TEST_SUITE_P(, Isolate, testing::Values(Source::kernel, Source::poll),
                         [](const auto &info) { return info.param == Source::kernel ? "kernel" : "poll"; });

TEST_P(Isolate, UncongestedTrafficPasses) {
    rig.hold(normal, low_waterline - length);
    for (const std::uint32_t before : {0U, 6U, normal, isolation, cip_class})
        EXPECT_EQ(priority(udp(), {.priority = before}), before);
    EXPECT_EQ(priority((Ethernet{} / IPv4{.header_words = 2} / Udp{}).bytes()), 0U); // not even looked at
    EXPECT_EQ(rig.flows(), 0U);
    EXPECT_TRUE(rig.counters().empty());
    EXPECT_EQ(rig.settings().gen, 0U);
}

TEST_P(Isolate, PanicLetsEveryPacketPassUntouched) {
    ASSERT_EQ(rig.edit(SPILLWAY_EDIT_MARK_MANUAL, key(7)), SPILLWAY_EDIT_DONE);
    rig.hold(normal, above);
    const spillway_flow before = rig.flow(key(7)).value();
    const spillway_queue queue = rig.queue();
    const auto passes_all = [&] {
        for (const std::uint16_t sport : {std::uint16_t{7}, std::uint16_t{8}}) // marked, and to be marked
            EXPECT_EQ(priority(udp(sport), {.priority = 6, .ingress_ifindex = rig.other_ifindex()}), 6U);
        priority((Ethernet{} / IPv4{.header_words = 2} / Udp{}).bytes());
    };
    rig.settings().panic = 1;
    passes_all();
    const spillway_flow after = rig.flow(key(7)).value();
    EXPECT_EQ(std::memcmp(&after, &before, sizeof(before)), 0);
    EXPECT_EQ(std::memcmp(&rig.queue(), &queue, sizeof(queue)), 0);
    EXPECT_EQ(rig.flows(), 1U);
    EXPECT_FALSE(rig.upstream(key(8)));
    EXPECT_TRUE(rig.events().empty());
    EXPECT_TRUE(rig.counters().empty());

    rig.settings().panic = 0;
    EXPECT_EQ(priority(udp(7), {.priority = 6}), isolation);
    EXPECT_EQ(priority(udp(8), {.priority = 6}), isolation);
    EXPECT_EQ(rig.flows(), 2U);
}

TEST_P(Isolate, OneWaterlineIsJudgedWithThePacketItself) {
    rig.queue().waterline.low = high_waterline;
    struct Case {
        const char *what;
        std::uint32_t waiting;
        std::uint32_t wire_len;
        bool marks;
    };
    std::uint16_t sport = 1;
    for (const Case &one : {
             Case{"one below", high_waterline - length - 1, 0, false},
             Case{"equal", high_waterline - length, 0, false},
             Case{"one above", high_waterline - length + 1, 0, true},
             Case{"a large packet to an empty queue", 0, high_waterline + 1, true},
             Case{"one just not too large", 0, high_waterline, false},
         }) {
        SCOPED_TRACE(one.what);
        sport++;
        rig.hold(normal, one.waiting);
        EXPECT_EQ(priority(udp(sport), {.wire_len = one.wire_len}), one.marks ? isolation : 0);
        EXPECT_EQ(marked(sport), one.marks);
    }
}

TEST_P(Isolate, BetweenTwoWaterlinesProbabilityDecides) {
    struct Case {
        const char *what;
        std::uint32_t waiting; ///< this packet included
        std::uint64_t preset;
        double probability;
    };
    constexpr std::uint64_t one = SPILLWAY_PROBABILITY_ONE;
    constexpr int flows = 2000;
    std::uint16_t sport = 1;
    for (const Case &row : {
             Case{"at low never", low_waterline, one, 0},
             Case{"at high with the preset 1", high_waterline, one, 1},
             Case{"between with the preset 0", high_waterline - 1, 0, 0},
             Case{"above high even with the preset 0", high_waterline + 1, 0, 1},
             Case{"at high with the preset 0.3", high_waterline, one / 10 * 3, 0.3},
             Case{"half way with the preset 0.6", (low_waterline + high_waterline) / 2, one / 10 * 6, 0.3},
         }) {
        SCOPED_TRACE(row.what);
        rig.queue().waterline.probability = row.preset;
        rig.hold(normal, row.waiting - length);
        int marks = 0;
        for (int i = 0; i < flows; i++)
            marks += priority(udp(++sport)) == isolation ? 1 : 0;
        const double sigma = std::sqrt(flows * row.probability * (1 - row.probability));
        EXPECT_NEAR(marks, flows * row.probability, 5 * sigma);
    }
}

TEST_P(Isolate, PacketsAreCountedWhereTheUnitSaysSo) {
    rig.queue().waterline.unit = SPILLWAY_UNIT_PACKETS;
    rig.queue().waterline.low = rig.queue().waterline.high = 3;
    rig.hold(normal, 1000); // two packets
    EXPECT_EQ(priority(udp(1), {.wire_len = 65000}), 0U);
    rig.hold(normal, 1500);
    EXPECT_EQ(priority(udp(2)), isolation);
}

TEST_P(Isolate, QueueWithoutWaterlineDetectsNothing) {
    rig.queue().waterline.set = 0;
    rig.hold(normal, above);
    EXPECT_EQ(priority(udp()), 0U);
    EXPECT_EQ(rig.flows(), 0U);
}

TEST_P(Isolate, PortNobodyServesIsLeftAlone) {
    rig.hold(normal, above);
    EXPECT_EQ(priority(udp(), {.ifindex = rig.other_ifindex()}), 0U);
    rig.port().queue_count = 0;
    EXPECT_EQ(priority(udp()), 0U);
    EXPECT_EQ(rig.flows(), 0U);
}

TEST_P(Isolate, LeafThatIsNotThereMarksNothing) {
    rig.hold(normal, above);
    rig.leaf(normal).generation = 0;
    EXPECT_EQ(priority(udp()), 0U);
    EXPECT_EQ(rig.flows(), 0U);
}

TEST_P(Isolate, MarkSaysWhatWasMarked) {
    rig.hold(normal, above);
    const std::uint64_t before = now_ns();
    EXPECT_EQ(priority(udp(), {.ingress_ifindex = 77, .wire_len = 2000}), isolation);
    const auto flow = rig.flow(key());
    ASSERT_TRUE(flow);
    EXPECT_EQ(flow->mark, SPILLWAY_MARK_CONGESTED);
    EXPECT_EQ(flow->state, SPILLWAY_STATE_ISOLATED);
    EXPECT_EQ(flow->origin, SPILLWAY_ORIGIN_LOCAL);
    EXPECT_EQ(flow->manual, 0U);
    EXPECT_GE(flow->marked_ns, before);
    EXPECT_LE(flow->marked_ns, now_ns());
    EXPECT_EQ(flow->last_seen_ns, flow->marked_ns);
    EXPECT_EQ(flow->local_until_ns, flow->marked_ns + rig.settings().life_ns);
    EXPECT_EQ(flow->cip_until_ns, 0U);
    EXPECT_EQ(flow->packets, 1U);
    EXPECT_EQ(flow->bytes, 2000U);
    EXPECT_EQ(flow->classid, isolation);
    EXPECT_EQ(flow->queue, rig.port().first_queue);
    EXPECT_EQ(flow->isolation, 0U);
    EXPECT_EQ(flow->ingress, 77U);
    EXPECT_EQ(rig.settings().gen, 1U);
    EXPECT_EQ(rig.port().entries, 1U);
    EXPECT_EQ(rig.queue().marked_total, 1U);
    EXPECT_EQ(rig.queue(1).marked_total, 0U);
}

TEST_P(Isolate, EventHoldsTheHeadersVerbatim) {
    rig.hold(normal, above);
    const Packet inner = IPv4{.tos = 0x10, .id = 4711, .options = Bytes(4, 1)} /
                         Tcp{.sequence = 0xdeadbeef, .options = Bytes(12, 1)} / zeros(900);
    const Bytes ip = inner.bytes();
    Packet tagged = Ethernet{} / Vlan{.id = 5, .pcp = 3};
    EXPECT_EQ(priority((tagged / Raw{.content = ip, .name_ = {.ethertype = 0x0800}}).bytes()), isolation);
    const auto events = rig.events();
    ASSERT_EQ(events.size(), 1U);
    EXPECT_EQ(events[0].type, SPILLWAY_EVENT_MARKED);
    EXPECT_EQ(events[0].queue, rig.port().first_queue);
    EXPECT_EQ(events[0].amount, above + 18 + ip.size());
    const spillway_flow_key tcp = key_of("tcp 10.0.0.1:5000 10.0.0.2:6000", rig.ifindex());
    EXPECT_EQ(std::memcmp(&events[0].key, &tcp, sizeof(tcp)), 0);
    ASSERT_EQ(events[0].length, 24U + 32U); // both headers with their options, and nothing of the payload
    EXPECT_TRUE(std::equal(events[0].bytes, events[0].bytes + 56, ip.begin()));
}

TEST_P(Isolate, EventsAreCountedWhenTheRingIsFull) {
    rig.hold(normal, above);
    constexpr int flows = 4000; // an event takes 352 bytes of a mebibyte
    for (int i = 0; i < flows; i++)
        priority(udp(static_cast<std::uint16_t>(i + 1)));
    const std::size_t events = rig.events().size();
    EXPECT_LT(events, 3000U);
    EXPECT_EQ(rig.counter(SPILLWAY_LOST_EVENTS, 0), flows - events);
    EXPECT_EQ(rig.flows(), static_cast<std::size_t>(flows)); // marked all the same
    EXPECT_EQ(priority(udp(5001)), isolation);
    EXPECT_EQ(rig.events().size(), 1U); // there is room again
}

TEST_P(Isolate, MarkedFlowIsIsolatedAndCounted) {
    ASSERT_EQ(rig.edit(SPILLWAY_EDIT_MARK_MANUAL, key()), SPILLWAY_EDIT_DONE);
    EXPECT_EQ(priority(udp()), isolation);
    EXPECT_EQ(priority(udp(), {.priority = 6, .wire_len = 5000}), isolation);
    EXPECT_EQ(priority(udp(), {.priority = normal, .ingress_ifindex = 9}), isolation);
    EXPECT_EQ(priority(udp(1)), 0U); // another flow
    const auto flow = rig.flow(key());
    ASSERT_TRUE(flow);
    EXPECT_EQ(flow->packets, 3U);
    EXPECT_EQ(flow->bytes, 7000U);
    EXPECT_EQ(flow->classid, isolation);
    EXPECT_EQ(flow->ingress, 9U);
    EXPECT_EQ(rig.flows(), 1U);
    EXPECT_EQ(rig.queue().marked_total, 1U); // once, with its first packet
}

TEST_P(Isolate, LastSeenAdvances) {
    ASSERT_EQ(rig.edit(SPILLWAY_EDIT_MARK_MANUAL, key()), SPILLWAY_EDIT_DONE);
    auto flow = *rig.flow(key());
    flow.last_seen_ns -= 1'000'000'000;
    flow.last_seen_jiffies = 0;
    rig.put(key(), flow);
    const std::uint64_t before = now_ns();
    priority(udp());
    EXPECT_GE(rig.flow(key())->last_seen_ns, before);
}

TEST_P(Isolate, NeverRaisesAndLeavesOtherClassesAlone) {
    ASSERT_EQ(rig.edit(SPILLWAY_EDIT_MARK_MANUAL, key()), SPILLWAY_EDIT_DONE);
    rig.hold(normal, above);
    for (const std::uint32_t before : {isolation, second_isolation, cip_class, 0x10030U})
        EXPECT_EQ(priority(udp(), {.priority = before}), before);
    EXPECT_EQ(rig.flow(key())->packets, 0U);
    EXPECT_EQ(priority(udp(1), {.priority = isolation}), isolation);
    EXPECT_EQ(rig.flows(), 1U);
}

TEST_P(Isolate, PriorityChoosesTheQueue) {
    struct Case {
        const char *what;
        std::uint32_t before;
        std::uint32_t after;
    };
    rig.hold(normal, above);
    rig.hold(second, above);
    std::uint16_t sport = 1;
    for (const Case &one : {
             Case{"no class", 0, isolation},
             Case{"a small priority", 6, isolation},
             Case{"the first queue's class", normal, isolation},
             Case{"the second queue's class", second, second_isolation},
             Case{"a class of another tree", 0x20011, isolation},
             Case{"an unknown class of the tree", 0x10030, 0x10030},
             Case{"the root of the tree", 0x10000, 0x10000},
         }) {
        SCOPED_TRACE(one.what);
        EXPECT_EQ(priority(udp(++sport), {.priority = one.before}), one.after);
        EXPECT_EQ(marked(sport), one.after != one.before);
    }
    EXPECT_EQ(rig.queue(0).marked_total, 4U);
    EXPECT_EQ(rig.queue(1).marked_total, 1U);
}

TEST_P(Isolate, EachQueueIsJudgedByItsOwnBacklog) {
    rig.hold(second, above);
    EXPECT_EQ(priority(udp(1)), 0U);
    EXPECT_EQ(priority(udp(2), {.priority = second}), second_isolation);
}

TEST_P(Isolate, WithoutATreeEveryPacketIsTheFirstQueues) {
    rig.port().root_major = 0;
    rig.hold(normal, above);
    EXPECT_EQ(priority(udp(1), {.priority = second}), isolation);
}

TEST_P(Isolate, RootQueueIsJudgedWhole) {
    rig.hold(normal, above - 5000);
    rig.hold(second, 5000);
    if (rig.source() == Source::poll)
        rig.leaf(normal).backlog_bytes = above; // as the root's reading would say
    rig.leaf(normal).classid = SPILLWAY_CLASS_ROOT;
    EXPECT_EQ(priority(udp()), isolation);
}

TEST_P(Isolate, QueueWithoutIsolationClassDetectsOnly) {
    rig.hold(normal, above);
    rig.queue().isolation_count = 0;
    EXPECT_EQ(priority(udp(), {.priority = 6}), 6U);
    EXPECT_EQ(priority(udp(), {.priority = 6}), 6U);
    ASSERT_TRUE(marked());
    EXPECT_EQ(rig.flow(key())->packets, 2U);
    EXPECT_EQ(rig.flow(key())->classid, 0U);
    EXPECT_EQ(rig.events().size(), 1U);
}

TEST_P(Isolate, FlowsSpreadOverSeveralIsolationClasses) {
    rig.queue().isolation[1] = rig.leaf(second_isolation);
    rig.queue().isolation_count = 2;
    rig.hold(normal, above);
    int first = 0;
    for (std::uint16_t sport = 1; sport <= 400; sport++) {
        const std::uint32_t chosen = priority(udp(sport));
        ASSERT_TRUE(chosen == isolation || chosen == second_isolation);
        EXPECT_EQ(priority(udp(sport)), chosen) << "a flow stays where it is";
        EXPECT_EQ(rig.flow(key(sport))->isolation, chosen == isolation ? 0U : 1U);
        first += chosen == isolation ? 1 : 0;
    }
    EXPECT_NEAR(first, 200, 50);
}

// ---- which queue: match by priority, PCP and DSCP

class Match : public Isolate {
  protected:
    Match() {
        rig.hold(normal, above);
        rig.hold(second, above);
    }

    /// The queue that a packet is taken for: its isolation class, since both queues are congested.
    std::uint32_t queue_of(const Packet &packet, std::uint32_t before = 0) {
        const Outcome outcome =
            rig.isolate((packet / Udp{.sport = ++sport_} / zeros(500)).bytes(), {.priority = before});
        return outcome.priority;
    }
    void match(std::size_t number, const spillway_match &match) {
        rig.queue(number).match = match;
        rig.port().flags |= SPILLWAY_PORT_MATCH | SPILLWAY_PORT_MATCH_FIELDS;
    }

  private:
    std::uint16_t sport_ = 0;
};

INSTANTIATE_TEST_SUITE_P(, Match, testing::Values(Source::kernel, Source::poll),
                         [](const auto &info) { return info.param == Source::kernel ? "kernel" : "poll"; });

TEST_P(Match, ByPriority) {
    match(1, {.dscp = 0,
              .priorities = {3, 5, 0, 0, 0, 0, 0, 0},
              .flags = SPILLWAY_MATCH_PRIORITY,
              .priority_count = 2,
              .pcp = 0,
              .reserved = 0});
    EXPECT_EQ(queue_of(Ethernet{} / IPv4{}, 3), second_isolation);
    EXPECT_EQ(queue_of(Ethernet{} / IPv4{}, 5), second_isolation);
    EXPECT_EQ(queue_of(Ethernet{} / IPv4{}, 4), isolation);
    EXPECT_EQ(queue_of(Ethernet{} / IPv4{}, 0), isolation) << "what is beyond the count is no priority";
    EXPECT_EQ(queue_of(Ethernet{} / IPv4{}, second), second_isolation) << "by its class";
    EXPECT_EQ(queue_of(Ethernet{} / IPv4{}, cip_class), cip_class) << "an unmonitored class is no queue";
}

TEST_P(Match, ByPcpOfTheOuterTag) {
    match(1, {.dscp = 0,
              .priorities = {},
              .flags = SPILLWAY_MATCH_PCP,
              .priority_count = 0,
              .pcp = 1U << 5U,
              .reserved = 0});
    EXPECT_EQ(queue_of(Ethernet{} / Vlan{.pcp = 5} / IPv4{}), second_isolation);
    EXPECT_EQ(queue_of(Ethernet{} / Vlan{.pcp = 4} / IPv4{}), isolation);
    EXPECT_EQ(queue_of(Ethernet{} / Vlan{.pcp = 5, .proto = 0x88a8} / Vlan{.pcp = 1} / IPv6{}),
              second_isolation);
    EXPECT_EQ(queue_of(Ethernet{} / Vlan{.pcp = 1} / Vlan{.pcp = 5} / IPv4{}), isolation);
    EXPECT_EQ(queue_of(Ethernet{} / IPv4{}), isolation);
    match(1, {.dscp = 0,
              .priorities = {},
              .flags = SPILLWAY_MATCH_PCP,
              .priority_count = 0,
              .pcp = 1,
              .reserved = 0});
    EXPECT_EQ(queue_of(Ethernet{} / IPv4{}), second_isolation) << "without a tag it has PCP 0";
}

TEST_P(Match, ByDscp) {
    match(1, {.dscp = std::uint64_t{1} << 46U | 1U,
              .priorities = {},
              .flags = SPILLWAY_MATCH_DSCP,
              .priority_count = 0,
              .pcp = 0,
              .reserved = 0});
    EXPECT_EQ(queue_of(Ethernet{} / IPv4{.tos = 46U << 2U | 3U}), second_isolation);
    EXPECT_EQ(queue_of(Ethernet{} / IPv6{.traffic_class = 46U << 2U | 1U, .flow_label = 0xfffff}),
              second_isolation);
    EXPECT_EQ(queue_of(Ethernet{} / Vlan{} / Vlan{} / IPv6{.traffic_class = 0}), second_isolation);
    EXPECT_EQ(queue_of(Ethernet{} / IPv4{.tos = 45U << 2U}), isolation);
    EXPECT_EQ(queue_of(Ethernet{} / IPv6{.traffic_class = 63U << 2U}), isolation);
}

TEST_P(Match, AllFieldsHaveToHoldAndTheFirstQueueHasIt) {
    const spillway_match both{.dscp = 1,
                              .priorities = {6, 0, 0, 0, 0, 0, 0, 0},
                              .flags = SPILLWAY_MATCH_PRIORITY | SPILLWAY_MATCH_DSCP,
                              .priority_count = 1,
                              .pcp = 0,
                              .reserved = 0};
    match(1, both);
    EXPECT_EQ(queue_of(Ethernet{} / IPv4{}, 6), second_isolation);
    EXPECT_EQ(queue_of(Ethernet{} / IPv4{.tos = 4}, 6), isolation);
    EXPECT_EQ(queue_of(Ethernet{} / IPv4{}, 5), isolation);
    match(0, both);
    EXPECT_EQ(queue_of(Ethernet{} / IPv4{}, 6), isolation);
}

TEST_P(Match, TheRestGoesToTheFirstQueueWithoutOne) {
    match(0, {.dscp = 0,
              .priorities = {},
              .flags = SPILLWAY_MATCH_PCP,
              .priority_count = 0,
              .pcp = 1U << 7U,
              .reserved = 0});
    rig.port().flags |= SPILLWAY_PORT_MATCH;
    rig.port().fallback = 1;
    EXPECT_EQ(queue_of(Ethernet{} / IPv4{}), second_isolation);
    EXPECT_EQ(queue_of(Ethernet{} / IPv4{}, normal), isolation) << "by its class";
    rig.port().fallback = 2; // every queue has a match
    EXPECT_EQ(queue_of(Ethernet{} / IPv4{}, 6), 6U);
    EXPECT_EQ(queue_of(Ethernet{} / Vlan{.pcp = 7} / IPv4{}, 6), isolation);
}

// ---- VXLAN (R2d): a flow of a tunnel is the inner one and its VNI

TEST_P(Isolate, TwoTenantsWithTheSameFiveTupleAreTwoFlows) {
    const auto of_tenant = [](std::uint32_t vni) {
        return (Ethernet{} / IPv4{.src = "10.9.0.1", .dst = "10.9.0.2"} / Udp{.dport = SPILLWAY_VXLAN_PORT} /
                Vxlan{.vni = vni} / Ethernet{} / IPv4{} / Udp{} / zeros(800))
            .bytes();
    };
    rig.hold(normal, above);
    EXPECT_EQ(priority(of_tenant(7)), isolation);
    rig.hold(normal, 0);
    EXPECT_EQ(priority(of_tenant(7)), isolation);
    EXPECT_EQ(priority(of_tenant(8)), 0U);
    EXPECT_EQ(priority(udp()), 0U) << "nor is the same flow outside a tunnel";
    EXPECT_TRUE(rig.flow(key_of(flow_of(5000) + " vni 7", rig.ifindex())));
    EXPECT_EQ(rig.flows(), 1U);
    const auto events = rig.events(SPILLWAY_EVENT_MARKED);
    ASSERT_EQ(events.size(), 1U);
    EXPECT_EQ(events[0].length, 20U + 8 + 8 + 14 + 20 + 8) << "all headers, from the outer IP header on";
}

// ---- B11: mode observe

TEST_P(Isolate, ObserveCountsAndTellsAndChangesNothing) {
    ASSERT_EQ(rig.edit(SPILLWAY_EDIT_MARK_MANUAL, key(7)), SPILLWAY_EDIT_DONE);
    rig.settings().observe = 1;
    rig.settings().guard = 1;
    rig.settings().guard_min_bytes = 2 * length;
    rig.hold(normal, above);
    EXPECT_EQ(priority(udp(7), {.priority = 6}), 6U) << "marked before";
    for (int i = 0; i < 5; i++)
        EXPECT_EQ(priority(udp(8), {.priority = 6, .ingress_ifindex = rig.other_ifindex()}), 6U);
    EXPECT_FALSE(marked(8));
    EXPECT_EQ(rig.queue().would_mark_total, 1U) << "once for a flow and window";
    EXPECT_EQ(rig.queue().marked_total, 0U);
    EXPECT_FALSE(rig.upstream(key(8))) << "nobody will be told";
    EXPECT_EQ(rig.events(SPILLWAY_EVENT_WOULD_MARK).size(), 1U);
}

// ---- B6: a suspect is an event and a count

TEST_P(Isolate, HalfOfWhatTheGuardAsksMakesASuspectOnce) {
    rig.settings().guard = 1;
    rig.settings().guard_min_bytes = 10 * length;
    rig.hold(normal, above);
    for (int i = 0; i < 4; i++)
        priority(udp());
    EXPECT_EQ(rig.queue().suspect_total, 0U);
    for (int i = 0; i < 5; i++)
        priority(udp());
    EXPECT_EQ(rig.queue().suspect_total, 1U);
    const auto events = rig.events();
    ASSERT_EQ(events.size(), 1U);
    EXPECT_EQ(events[0].type, SPILLWAY_EVENT_SUSPECT);
    EXPECT_EQ(events[0].amount, 5 * length);
    EXPECT_FALSE(marked());
}

// ---- R5: every flow has an entry

class FullTable : public testing::Test {
  protected:
    Rig rig{Source::poll, Table::full};

    spillway_flow_key key(std::uint16_t sport = 5000) { return key_of(flow_of(sport), rig.ifindex()); }
    spillway_flow flow(std::uint16_t sport = 5000) { return rig.flow(key(sport)).value(); }
    std::uint32_t priority(std::uint16_t sport = 5000) { return rig.isolate(udp(sport)).priority; }
};

TEST_F(FullTable, FlowsAreEnteredWithTheSecondMark) {
    const std::uint64_t before = now_ns();
    for (int i = 0; i < 3; i++)
        EXPECT_EQ(priority(), 0U);
    EXPECT_EQ(flow().mark, SPILLWAY_MARK_NORMAL);
    EXPECT_EQ(flow().state, SPILLWAY_STATE_NORMAL);
    EXPECT_GE(flow().last_seen_ns, before);
    EXPECT_EQ(flow().packets, 3U);
    EXPECT_EQ(flow().bytes, 3 * length);
    EXPECT_EQ(rig.settings().gen, 0U) << "no mark";
    EXPECT_EQ(rig.port().entries, 1U);
    EXPECT_EQ(rig.port().unmarked, 1U);
}

TEST_F(FullTable, FirstMarkTakesTheEntryOver) {
    priority();
    rig.hold(normal, above);
    EXPECT_EQ(priority(), isolation);
    EXPECT_EQ(flow().mark, SPILLWAY_MARK_CONGESTED);
    EXPECT_EQ(flow().packets, 1U) << "isolated ones from now on";
    EXPECT_EQ(rig.port().entries, 1U);
    EXPECT_EQ(rig.port().unmarked, 0U);
    EXPECT_EQ(rig.settings().gen, 1U);
    EXPECT_EQ(priority(), isolation);
}

TEST_F(FullTable, MarkByHandAndByCipToo) {
    for (const auto op : {SPILLWAY_EDIT_MARK_MANUAL, SPILLWAY_EDIT_MARK_CIP}) {
        const std::uint16_t sport = op;
        priority(sport);
        EXPECT_EQ(rig.edit(op, key(sport)), SPILLWAY_EDIT_DONE);
        EXPECT_EQ(priority(sport), isolation);
    }
    EXPECT_EQ(rig.port().entries, 2U);
    EXPECT_EQ(rig.port().unmarked, 0U);
}

TEST_F(FullTable, ReleaseGivesTheSecondMarkBack) {
    ASSERT_EQ(rig.edit(SPILLWAY_EDIT_MARK_MANUAL, key()), SPILLWAY_EDIT_DONE);
    EXPECT_EQ(priority(), isolation);
    ASSERT_EQ(rig.edit(SPILLWAY_EDIT_UNMARK, key()), SPILLWAY_EDIT_DONE);
    rig.leaf(isolation).drained_before_ns = now_ns() + 1'000'000'000;
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_STEP, key()), SPILLWAY_EDIT_RELEASED);
    EXPECT_EQ(flow().mark, SPILLWAY_MARK_NORMAL);
    EXPECT_EQ(rig.port().entries, 1U);
    EXPECT_EQ(rig.port().unmarked, 1U);
    EXPECT_EQ(priority(), 0U);
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_UNMARK, key()), SPILLWAY_EDIT_NO_ENTRY) << "there is no mark to take";
}

TEST_F(FullTable, SilentEntriesAreClearedAndOthersStay) {
    priority();
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_STEP, key()), SPILLWAY_EDIT_DONE);
    rig.settings().clear_ns = 1;
    EXPECT_EQ(rig.edit(SPILLWAY_EDIT_STEP, key()), SPILLWAY_EDIT_RELEASED);
    EXPECT_EQ(rig.flows(), 0U);
    EXPECT_EQ(rig.port().entries, 0U);
    EXPECT_EQ(rig.port().unmarked, 0U);
    EXPECT_TRUE(rig.events().empty());
}

TEST_F(FullTable, MarksAlwaysHaveRoomAndRefusedEntriesAreCounted) {
    rig.settings().quota = 100;
    rig.settings().unmarked_quota = 75;
    for (std::uint16_t sport = 1; sport <= 100; sport++)
        priority(sport);
    EXPECT_EQ(rig.flows(), 75U);
    EXPECT_EQ(rig.counter(SPILLWAY_LOST_ENTRIES), 25U);
    rig.hold(normal, above);
    for (std::uint16_t sport = 1; sport <= 100; sport++)
        EXPECT_EQ(priority(sport), isolation) << sport;
    EXPECT_EQ(rig.port().entries, 100U);
    EXPECT_EQ(rig.port().unmarked, 0U);
    EXPECT_EQ(rig.counter(SPILLWAY_LOST_TABLE_FULL), 0U);
}

TEST_F(FullTable, TwoCpusMarkOnce) {
    rig.hold(normal, above);
    for (std::uint16_t sport = 1; sport <= 200; sport++) {
        rig.hold(normal, 0);
        priority(sport);
        rig.hold(normal, above);
        std::thread other([&] { rig.isolate(udp(sport)); });
        rig.isolate(udp(sport));
        other.join();
        EXPECT_EQ(flow(sport).mark, SPILLWAY_MARK_CONGESTED);
    }
    EXPECT_EQ(rig.queue().marked_total, 200U);
    EXPECT_EQ(rig.port().entries, 200U);
    EXPECT_EQ(rig.port().unmarked, 0U);
}

// ----

TEST_P(Isolate, MarkOfAnotherPortIsNoMarkHere) {
    spillway_flow_key elsewhere = key();
    elsewhere.port = rig.other_ifindex();
    rig.maps().ports()[rig.other_ifindex()].ifindex = rig.other_ifindex();
    ASSERT_EQ(rig.edit(SPILLWAY_EDIT_MARK_MANUAL, elsewhere), SPILLWAY_EDIT_DONE);
    EXPECT_EQ(priority(udp()), 0U);
}

TEST_P(Isolate, FlowsAreFoundInEveryKindOfPacket) {
    struct Case {
        const char *what;
        Packet packet;
        const char *flow;
    };
    const char *const udp4 = "udp 10.0.0.1:5000 10.0.0.2:6000";
    for (const Case &one : {
             Case{"UDP", Ethernet{} / IPv4{} / Udp{} / zeros(18), udp4},
             Case{"IP options", Ethernet{} / IPv4{.options = Bytes(40, 1)} / Udp{}, udp4},
             Case{"one tag", Ethernet{} / Vlan{} / IPv4{} / Udp{} / zeros(18), udp4},
             Case{"two tags", Ethernet{} / Vlan{.proto = 0x88a8} / Vlan{} / IPv4{} / Udp{} / zeros(18), udp4},
             Case{"TCP", Ethernet{} / IPv4{} / Tcp{} / zeros(18), "tcp 10.0.0.1:5000 10.0.0.2:6000"},
             Case{"ICMP", Ethernet{} / IPv4{} / Icmp{} / zeros(18), "icmp 10.0.0.1 10.0.0.2"},
             Case{"a first fragment", Ethernet{} / IPv4{.more_fragments = true} / Udp{} / zeros(24),
                  "udp 10.0.0.1 10.0.0.2"},
             Case{"a later fragment", Ethernet{} / IPv4{.protocol = 17, .fragment_offset = 3} / zeros(24),
                  "udp 10.0.0.1 10.0.0.2"},
             Case{"UDP over IPv6", Ethernet{} / IPv6{} / Udp{}, "udp [fd00::1]:5000 [fd00::2]:6000"},
             Case{"extension headers",
                  Ethernet{} / Vlan{} / IPv6{} / Extension{.kind = 0, .extra = 3} / Extension{.kind = 43} /
                      Fragment{} / Authentication{.words = 6} / Extension{} / Extension{} / Tcp{},
                  "tcp [fd00::1]:5000 [fd00::2]:6000"},
             Case{"a fragment of IPv6", Ethernet{} / IPv6{} / Fragment{.more = true} / Udp{} / zeros(8),
                  "udp fd00::1 fd00::2"},
         }) {
        SCOPED_TRACE(one.what);
        const spillway_flow_key marked = key_of(one.flow, rig.ifindex());
        ASSERT_EQ(priority(one.packet.bytes()), 0U);
        const auto made = rig.edit(SPILLWAY_EDIT_MARK_MANUAL, marked);
        ASSERT_EQ(made, SPILLWAY_EDIT_DONE);
        EXPECT_EQ(priority(one.packet.bytes()), isolation);
        ASSERT_EQ(rig.edit(SPILLWAY_EDIT_UNMARK, marked), SPILLWAY_EDIT_DONE);
        rig.leaf(isolation).drained_before_ns = now_ns() + 1'000'000'000;
        ASSERT_EQ(rig.edit(SPILLWAY_EDIT_STEP, marked), SPILLWAY_EDIT_RELEASED);
        EXPECT_EQ(priority(one.packet.bytes()), 0U);
    }
}

TEST_P(Isolate, PacketThatCannotBeReadPassesAndIsCounted) {
    rig.hold(normal, above);
    EXPECT_EQ(priority((Ethernet{.type = 0x0806} / zeros(46)).bytes()), 0U);
    EXPECT_EQ(priority((Ethernet{} / Vlan{.type = 0x0806} / zeros(46)).bytes()), 0U);
    EXPECT_EQ(rig.counter(SPILLWAY_LOST_PARSE), 0U); // not IP: not ours to read
    Packet chain = Ethernet{} / IPv6{};
    for (int i = 0; i <= SPILLWAY_EXTENSIONS_MAX; i++)
        chain = chain / Extension{};
    std::uint64_t count = 0;
    for (const Packet &packet :
         {Ethernet{} / IPv4{.header_words = 2} / Udp{}, Ethernet{} / IPv4{} / Tcp{.header_words = 4},
          Ethernet{} / IPv4{.version = 7} / Udp{}, Ethernet{} / Vlan{} / Vlan{} / Vlan{} / IPv4{} / Udp{},
          chain / Udp{}}) {
        EXPECT_EQ(priority(packet.bytes()), 0U);
        EXPECT_EQ(rig.counter(SPILLWAY_LOST_PARSE), ++count);
    }
    EXPECT_EQ(rig.flows(), 0U);
}

TEST_P(Isolate, CutPacketPassesOrIsItsFlow) {
    rig.hold(normal, above);
    struct Case {
        Packet packet;
        std::size_t
            shortest; ///< that BPF_PROG_TEST_RUN takes: it wants a whole IP header behind its EtherType
        std::size_t needs;
    };
    for (const auto &[packet, shortest, needs] :
         {Case{Ethernet{} / Vlan{} / IPv4{.options = Bytes(8, 1)} / Tcp{}, 14, 66},
          Case{Ethernet{} / Vlan{} / IPv6{} / Udp{}, 14, 66},
          Case{Ethernet{} / IPv6{} / Extension{} / Tcp{}, 54, 82}}) {
        const Bytes whole = packet.bytes();
        for (std::size_t size = shortest; size <= whole.size(); size++) {
            Bytes cut = whole;
            cut.resize(size);
            EXPECT_EQ(priority(cut), size < needs ? 0 : isolation) << size;
        }
    }
    EXPECT_EQ(rig.flows(), 3U);
}

TEST_P(Isolate, UsedUpQuotaIsCountedAndNotIsolated) {
    rig.hold(normal, above);
    rig.settings().quota = 1;
    EXPECT_EQ(priority(udp(1)), isolation);
    EXPECT_EQ(priority(udp(2), {.priority = 6}), 6U);
    EXPECT_EQ(priority(udp(2), {.priority = normal}), normal);
    EXPECT_EQ(rig.counter(SPILLWAY_LOST_TABLE_FULL), 2U);
    EXPECT_EQ(priority(udp(1)), isolation); // who has a mark keeps it
    EXPECT_EQ(rig.flows(), 1U);
    EXPECT_EQ(rig.settings().gen, 1U);
    EXPECT_EQ(rig.queue().marked_total, 1U);
    EXPECT_EQ(rig.events().size(), 1U);
}

TEST_P(Isolate, FullTableIsCountedAndNotIsolated) {
    rig.hold(normal, above);
    spillway_flow flow{};
    flow.mark = SPILLWAY_MARK_CONGESTED;
    for (std::uint32_t i = 0; i < rig.maps().flows_capacity(); i++) {
        spillway_flow_key other = key();
        other.port = 100000 + i;
        rig.put(other, flow);
    }
    EXPECT_EQ(priority(udp(), {.priority = 6}), 6U);
    EXPECT_EQ(rig.counter(SPILLWAY_LOST_TABLE_FULL), 1U);
    EXPECT_EQ(rig.settings().gen, 0U);
    EXPECT_EQ(rig.port().entries, 0U);
}

TEST_P(Isolate, GateIsOpenAfterAMarkUntilASweepFoundNone) {
    rig.hold(normal, above);
    EXPECT_EQ(rig.settings().gen, rig.settings().swept);
    priority(udp());
    EXPECT_NE(rig.settings().gen, rig.settings().swept);
    rig.hold(normal, 0);
    EXPECT_EQ(priority(udp()), isolation); // below the low waterline, and marked
    rig.settings().swept = rig.settings().gen;
    EXPECT_EQ(priority(udp()), 0U); // the gate is shut: nobody looks
    ASSERT_EQ(rig.edit(SPILLWAY_EDIT_MARK_MANUAL, key(1)), SPILLWAY_EDIT_DONE);
    EXPECT_EQ(priority(udp()), isolation); // a new mark opens it for all
}

TEST_P(Isolate, StaleAgentMarksNothingNew) {
    rig.hold(normal, above);
    rig.settings().stale_agent_ns = 5'000'000'000;
    rig.settings().heartbeat_ns = now_ns() - rig.settings().stale_agent_ns;
    EXPECT_EQ(priority(udp()), 0U);
    EXPECT_EQ(rig.flows(), 0U);
    rig.settings().heartbeat_ns = now_ns();
    EXPECT_EQ(priority(udp()), isolation);
}

TEST_P(Isolate, StaleReadingMarksNothing) {
    rig.hold(normal, above);
    rig.settings().stale_ns = 50'000'000;
    rig.leaf(normal).read_ns = now_ns() - rig.settings().stale_ns;
    // The kernel's own figures are never stale.
    EXPECT_EQ(priority(udp(1)), rig.source() == Source::kernel ? isolation : 0);
    rig.leaf(normal).read_ns = 0; // never read
    EXPECT_EQ(priority(udp(2)), rig.source() == Source::kernel ? isolation : 0);
    rig.leaf(normal).read_ns = now_ns();
    EXPECT_EQ(priority(udp(3)), isolation);
}

TEST_P(Isolate, GuardWaitsForAFlowsOwnBytes) {
    rig.settings().guard = 1;
    rig.settings().guard_min_bytes = 15000;
    rig.hold(normal, above);
    for (int i = 1; i < 15; i++)
        EXPECT_EQ(priority(udp()), 0U) << i;
    EXPECT_EQ(priority(udp()), isolation);
    EXPECT_EQ(rig.queue().heaviest[1], spillway_heaviest_word(1, 15000)); // window 1: see Rig
}

TEST_P(Isolate, GuardSparesALightFlowAsLongAsAHeavyOneIsThere) {
    rig.settings().guard = 1;
    rig.settings().guard_min_bytes = 3000;
    rig.settings().guard_min_ratio = SPILLWAY_RATIO_ONE / 10;
    rig.hold(normal, above);
    for (int i = 0; i < 1000; i++) {
        priority(udp(1)); // counted on while it is isolated
        if (i % 11 == 10) {
            ASSERT_EQ(priority(udp(2)), 0U) << i; // a little less than a tenth
        }
    }
    EXPECT_TRUE(marked(1));
    EXPECT_FALSE(marked(2));
    for (int i = 0; i < 11; i++)
        priority(udp(2));
    EXPECT_TRUE(marked(2)); // a tenth
}

TEST_P(Isolate, WithoutGuardAnyFlowAboveIsMarked) {
    rig.hold(normal, above);
    for (int i = 0; i < 10; i++)
        priority(udp(1));
    EXPECT_EQ(priority((Ethernet{} / IPv4{} / Udp{.sport = 2} / zeros(22)).bytes()), isolation); // one packet
}

TEST_P(Isolate, GuardCountsPacketsItHasNoSlotFor) {
    const spillway_flow_key flow = key();
    const std::uint64_t hash = spillway_hash(&flow);
    spillway_suspect heavier{.tag = 1, .window = 1, .bytes = 1'000'000, .queue = rig.port().first_queue};
    for (const std::uint64_t slot : {hash % SPILLWAY_SUSPECTS, (hash >> 16U) % SPILLWAY_SUSPECTS}) {
        const auto index = static_cast<std::uint32_t>(slot);
        ASSERT_EQ(bpf_map_update_elem(rig.maps().suspects_fd(), &index, &heavier, BPF_ANY), 0);
    }
    rig.settings().guard = 1;
    rig.settings().guard_min_bytes = 1;
    rig.hold(normal, above);
    EXPECT_EQ(priority(udp()), 0U);
    EXPECT_EQ(rig.counter(SPILLWAY_LOST_SUSPECTS), 1U);
}

TEST_P(Isolate, GuardCountsOnlyAboveTheLowWaterline) {
    rig.settings().guard = 1;
    rig.settings().guard_min_bytes = 5000;
    for (int i = 0; i < 100; i++)
        priority(udp());
    rig.hold(normal, above);
    for (int i = 1; i < 5; i++)
        EXPECT_EQ(priority(udp()), 0U) << i;
    EXPECT_EQ(priority(udp()), isolation);
}

TEST_P(Isolate, GuardStartsAnewInEachWindowAndRemembersTheHeaviestOfTheLast) {
    rig.settings().guard = 1;
    rig.settings().guard_min_bytes = 5000;
    rig.settings().guard_min_ratio = SPILLWAY_RATIO_ONE / 2;
    rig.hold(normal, above);
    for (int i = 1; i < 5; i++)
        EXPECT_EQ(priority(udp()), 0U);
    const std::uint64_t now = now_ns();
    rig.settings().window_ns = now / 5 * 2; // window 2 now
    rig.queue().heaviest[1] = spillway_heaviest_word(1, 14000);
    for (int i = 1; i < 7; i++)
        EXPECT_EQ(priority(udp()), 0U) << i;
    EXPECT_EQ(priority(udp()), isolation); // 7000: half of the last window's heaviest
}

TEST_P(Isolate, UpstreamNodeOfAForwardedFlowIsAskedForOnTheWayToAMark) {
    rig.settings().guard = 1;
    rig.settings().guard_min_bytes = 10000;
    rig.hold(normal, above);
    for (int i = 1; i < 5; i++)
        priority(udp(), {.ingress_ifindex = 9});
    EXPECT_FALSE(rig.upstream(key()));
    priority(udp(), {.ingress_ifindex = 9}); // half way
    ASSERT_TRUE(rig.upstream(key()));
    EXPECT_EQ(rig.upstream(key())->egress, rig.ifindex());
    EXPECT_EQ(rig.upstream(key())->learned_ns, 0U);
    EXPECT_GT(rig.upstream(key())->wanted_until_ns, now_ns());
    EXPECT_EQ(rig.settings().learn_until_ns, rig.upstream(key())->wanted_until_ns);
    EXPECT_FALSE(marked());
}

TEST_P(Isolate, UpstreamNodeIsAskedForOnlyWhereItMatters) {
    rig.hold(normal, above);
    EXPECT_EQ(priority(udp(1)), isolation); // made on this host
    EXPECT_FALSE(rig.upstream(key(1)));
    rig.port().flags &= static_cast<__u16>(~SPILLWAY_PORT_SEND_CIP);
    EXPECT_EQ(priority(udp(2), {.ingress_ifindex = 9}), isolation);
    EXPECT_FALSE(rig.upstream(key(2)));
    rig.port().flags |= SPILLWAY_PORT_SEND_CIP;
    EXPECT_EQ(priority(udp(3), {.ingress_ifindex = 9}), isolation);
    EXPECT_TRUE(rig.upstream(key(3)));
}

/// Runs on two CPUs at once.
template <class Work>
void on_two_cpus(const Work &work) {
    std::atomic<int> ready = 0;
    const auto start = [&](int cpu) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        ::sched_setaffinity(0, sizeof(one), &one);
        ready++;
        while (ready < 2)
            ;
        work();
    };
    std::thread other(start, 1);
    std::thread mine(start, 0);
    other.join();
    mine.join();
}

TEST_P(Isolate, TwoCpusMakeOneMarkAndOneEvent) {
    rig.hold(normal, above);
    constexpr std::uint16_t rounds = 200;
    for (std::uint16_t sport = 1; sport <= rounds; sport++) {
        const std::uint32_t others = rig.filter(key(sport));
        on_two_cpus([&] {
            for (int i = 0; i < 5; i++)
                EXPECT_EQ(rig.isolate(udp(sport)).priority, isolation);
        });
        EXPECT_EQ(rig.filter(key(sport)), others + 1);
    }
    EXPECT_EQ(rig.flows(), rounds);
    EXPECT_EQ(rig.settings().gen, rounds);
    EXPECT_EQ(rig.port().entries, rounds);
    EXPECT_EQ(rig.queue().marked_total, rounds);
    EXPECT_EQ(rig.events().size(), rounds);
}

} // namespace
} // namespace spillway::prog
