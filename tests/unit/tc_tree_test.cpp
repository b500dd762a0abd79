// SPDX-License-Identifier: Apache-2.0
/// Trees as values: which qdisc a class's packets wait in, which class is served after which, and the
/// commands with which `setup` makes or changes a tree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "agent/kernel/netlink.h"
#include "agent/kernel/setup_tree.h"
#include "agent/kernel/tc_tree.h"

namespace spillway {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Qdisc qdisc(std::string kind, TcHandle handle, TcHandle parent) {
    return {.kind = std::move(kind), .handle = handle, .parent = parent};
}

Qdisc fifo(TcHandle handle, TcHandle parent, uint32_t limit = 1000) {
    return {.kind = "pfifo", .handle = handle, .parent = parent, .fifo_limit = limit};
}

TcClass htb_class(TcHandle handle, TcHandle parent, uint32_t prio, uint64_t rate = 0, uint64_t ceil = 0,
                  TcHandle leaf = 0) {
    return {.kind = "htb",
            .handle = handle,
            .parent = parent,
            .leaf = leaf,
            .htb = HtbClass{.prio = prio, .rate = rate, .ceil = ceil, .quantum = 65536}};
}

TcClass band(std::string kind, TcHandle handle) {
    return {.kind = std::move(kind), .handle = handle, .parent = handle & 0xFFFF0000};
}

/// What `setup PORT --rate 200mbit` leaves behind.
TcTree setup_tree_200mbit() {
    TcTree tree;
    tree.ifindex = 7;
    tree.qdiscs = {qdisc("htb", 0x10000, tc_root), fifo(0x50000, 0x10005), fifo(0x100000, 0x10010),
                   fifo(0x200000, 0x10020), qdisc("clsact", 0xFFFF0000, 0xFFFFFFF1)};
    tree.qdiscs[0].htb_default = 0x10;
    tree.classes = {htb_class(0x10010, 0x10001, 1, 198'000'000, 200'000'000, 0x100000),
                    htb_class(0x10001, tc_root, 0, 200'000'000, 200'000'000),
                    htb_class(0x10020, 0x10001, 2, 1'000'000, 200'000'000, 0x200000),
                    htb_class(0x10005, 0x10001, 0, 1'000'000, 200'000'000, 0x50000)};
    return tree;
}

LinkInfo ethernet_port() {
    return {.ifindex = 7, .name = "eth1", .arp_type = 1};
}

std::vector<std::string> lines(const SetupPlan &plan) {
    std::vector<std::string> out;
    for (const auto &step : plan.steps)
        out.push_back(fmt::format("{}", fmt::join(step.run, " ")));
    return out;
}

// ---- names

TEST(TcName, IsWhatTcPrints) {
    EXPECT_EQ(tc_name(0x10010), "1:10");
    EXPECT_EQ(tc_name(0x80010000), "8001:");
    EXPECT_EQ(tc_name(tc_root), "root");
    EXPECT_EQ(tc_name(0xABCDEF), "ab:cdef");
    EXPECT_EQ(tc_name(0x1), "0:1");
}

// ---- leaves

TEST(ResolveLeaf, RefusesOneOfSeveralTransmitQueues) {
    for (const char *kind : {"mq", "mqprio", "multiq", "taprio"}) {
        TcTree tree{.ifindex = 7,
                    .qdiscs = {qdisc(kind, 0x10000, tc_root), fifo(0x110000, 0x10001),
                               fifo(0x120000, 0x10002), qdisc("htb", 0x120000, 0x10002),
                               fifo(0x200000, 0x120010)},
                    .classes = {band(kind, 0x10001), band(kind, 0x10002), band(kind, 0x1ffe0),
                                htb_class(0x120010, tc_root, 1)}};
        for (const TcHandle classid : {0x10001U, 0x120010U}) { // in it, and below it
            const auto leaf = resolve_leaf(tree, classid);
            ASSERT_FALSE(leaf) << kind;
            EXPECT_EQ(leaf.error().reason, TcReason::no_class);
            EXPECT_THAT(leaf.error().text, HasSubstr("has 2 transmit queues"));
            EXPECT_THAT(leaf.error().hint, HasSubstr("spillway setup"));
        }
        std::erase_if(tree.classes, [](const TcClass &one) { return one.handle == 0x10002; });
        EXPECT_TRUE(resolve_leaf(tree, 0x10001)) << "a single one takes all packets";
    }
}

TEST(CheckReadable, RefusesPfifoFastWhereItCountsByProcessor) {
    TcTree tree{.ifindex = 7,
                .qdiscs = {qdisc("pfifo_fast", 0x10000, tc_root), qdisc("pfifo_fast", 0, 0x20001)},
                .classes = {band("mq", 0x20001)}};
    for (const TcHandle classid : {tc_root, 0x20001U}) {
        const auto readable = check_readable(tree, *resolve_leaf(tree, classid));
        ASSERT_FALSE(readable);
        EXPECT_THAT(readable.error().text, HasSubstr("counts by processor"));
        EXPECT_THAT(readable.error().hint, HasSubstr("root pfifo"));
    }
    tree.classes[0].kind = "prio"; // which takes the counters by processor away
    EXPECT_TRUE(check_readable(tree, *resolve_leaf(tree, 0x20001)));
    tree.qdiscs[0].kind = "fq_codel";
    EXPECT_TRUE(check_readable(tree, *resolve_leaf(tree, tc_root)));
}

TEST(ResolveLeaf, FindsTheFifoOfAClass) {
    const auto leaf = resolve_leaf(setup_tree_200mbit(), 0x10020);
    ASSERT_TRUE(leaf);
    EXPECT_EQ(leaf->classid, 0x10020U);
    EXPECT_EQ(leaf->handle, 0x200000U);
    EXPECT_EQ(leaf->parent, 0x10020U);
    EXPECT_EQ(leaf->kind, "pfifo");
}

TEST(ResolveLeaf, FindsDefaultChildrenByParent) {
    TcTree tree;
    tree.qdiscs = {qdisc("htb", 0x10000, tc_root), qdisc("pfifo", 0, 0x10010), qdisc("bfifo", 0, 0x10020)};
    tree.classes = {htb_class(0x10010, tc_root, 0), htb_class(0x10020, tc_root, 1)};
    const auto leaf = resolve_leaf(tree, 0x10020);
    ASSERT_TRUE(leaf);
    EXPECT_EQ(leaf->handle, 0U);
    EXPECT_EQ(leaf->parent, 0x10020U);
    EXPECT_EQ(leaf->kind, "bfifo");
}

TEST(ResolveLeaf, RefusesAnInnerClass) {
    const auto leaf = resolve_leaf(setup_tree_200mbit(), 0x10001);
    ASSERT_FALSE(leaf);
    EXPECT_EQ(leaf.error().reason, TcReason::no_class);
    EXPECT_THAT(leaf.error().text, HasSubstr("1:1 is an inner class"));
}

TEST(ResolveLeaf, SaysWhichClassIsMissing) {
    const auto leaf = resolve_leaf(setup_tree_200mbit(), 0x10030);
    ASSERT_FALSE(leaf);
    EXPECT_EQ(to_string(leaf.error().reason), "no_class");
    EXPECT_EQ(leaf.error().text, "there is no class 1:30");
    EXPECT_THAT(leaf.error().hint, HasSubstr("spillway setup"));
}

TEST(ResolveLeaf, RefusesNoqueueForRootAndClass) {
    const TcTree tree{.ifindex = 7, .qdiscs = {qdisc("noqueue", 0, tc_root)}, .classes = {}};
    for (const TcHandle asked : {tc_root, TcHandle{0x10010}}) {
        const auto leaf = resolve_leaf(tree, asked);
        ASSERT_FALSE(leaf);
        EXPECT_EQ(to_string(leaf.error().reason), "noqueue");
        EXPECT_THAT(leaf.error().hint, HasSubstr("spillway setup"));
    }
}

TEST(ResolveLeaf, RootIsAnyQdiscWithABacklogOfItsOwn) {
    for (const char *kind : {"pfifo", "tbf", "fq_codel", "htb", "prio"}) {
        const TcTree tree{.ifindex = 7, .qdiscs = {qdisc(kind, 0x10000, tc_root)}, .classes = {}};
        const auto leaf = resolve_leaf(tree, tc_root);
        ASSERT_TRUE(leaf) << kind;
        EXPECT_EQ(leaf->kind, kind);
        EXPECT_EQ(leaf->handle, 0x10000U);
        EXPECT_EQ(leaf->parent, tc_root);
    }
    for (const char *kind : {"mq", "mqprio"}) {
        const TcTree tree{.ifindex = 7, .qdiscs = {qdisc(kind, 0, tc_root)}, .classes = {}};
        const auto leaf = resolve_leaf(tree, tc_root);
        ASSERT_FALSE(leaf) << kind;
        EXPECT_EQ(leaf.error().reason, TcReason::no_class);
    }
    ASSERT_FALSE(resolve_leaf(TcTree{}, tc_root));
}

TEST(FifoLike, HoldsOnlyWhereOrderIsKept) {
    for (const char *kind : {"pfifo", "bfifo", "pfifo_head_drop", "tbf"})
        EXPECT_TRUE(fifo_like(kind)) << kind;
    for (const char *kind : {"fq_codel", "fq", "sfq", "htb", "prio", "pfifo_fast", "noqueue", ""})
        EXPECT_FALSE(fifo_like(kind)) << kind;
}

// ---- below

TEST(Below, HtbComparesThePrioOfLeaves) {
    const TcTree tree = setup_tree_200mbit();
    EXPECT_TRUE(check_below(tree, 0x10020, 0x10010));
    EXPECT_TRUE(check_below(tree, 0x10020, 0x10005));
    const auto above = check_below(tree, 0x10005, 0x10010);
    ASSERT_FALSE(above);
    EXPECT_EQ(to_string(above.error().reason), "not_below");
    EXPECT_THAT(above.error().text, HasSubstr("its prio is 0, not above 1"));
}

TEST(Below, EqualIsNotBelow) {
    TcTree tree = setup_tree_200mbit();
    EXPECT_FALSE(check_below(tree, 0x10010, 0x10010));
    tree.classes[2].htb->prio = 1;
    EXPECT_FALSE(check_below(tree, 0x10020, 0x10010));
}

TEST(Below, NamesTheMissingClass) {
    const auto isolate = check_below(setup_tree_200mbit(), 0x10030, 0x10010);
    ASSERT_FALSE(isolate);
    EXPECT_EQ(isolate.error().reason, TcReason::no_class);
    EXPECT_EQ(isolate.error().text, "there is no class 1:30");
    const auto queue = check_below(setup_tree_200mbit(), 0x10020, 0x10031);
    ASSERT_FALSE(queue);
    EXPECT_EQ(queue.error().text, "there is no class 1:31");
}

TEST(Below, RefusesInnerClassesAndTheRoot) {
    const TcTree tree = setup_tree_200mbit();
    for (const auto &[isolate, queue] : {std::pair<TcHandle, TcHandle>{0x10001, 0x10010},
                                         {0x10020, 0x10001},
                                         {0x10020, tc_root},
                                         {tc_root, 0x10010}}) {
        const auto below = check_below(tree, isolate, queue);
        ASSERT_FALSE(below) << tc_name(isolate) << " " << tc_name(queue);
        EXPECT_EQ(below.error().reason, TcReason::not_below);
    }
}

/// HTB keeps one list of leaves for each prio, whichever inner class they are under.
TEST(Below, HtbIgnoresThePrioOfInnerClasses) {
    TcTree tree;
    tree.qdiscs = {qdisc("htb", 0x10000, tc_root)};
    tree.classes = {htb_class(0x10001, tc_root, 0), htb_class(0x10002, 0x10001, 0),
                    htb_class(0x10003, 0x10001, 7), htb_class(0x10020, 0x10002, 3),
                    htb_class(0x10030, 0x10003, 1)};
    EXPECT_FALSE(check_below(tree, 0x10030, 0x10020));
    EXPECT_TRUE(check_below(tree, 0x10020, 0x10030));
}

/// 1: htb { 1:10 prio 1 { 10: prio { 10:1, 10:2 } }, 1:20 prio 2 { 20: htb { 20:1 prio 0, 20:2 prio 5 } } }
TcTree nested_tree() {
    TcTree tree;
    tree.qdiscs = {qdisc("htb", 0x10000, tc_root), qdisc("prio", 0x100000, 0x10010),
                   qdisc("htb", 0x200000, 0x10020)};
    tree.classes = {htb_class(0x10001, tc_root, 0), htb_class(0x10010, 0x10001, 1),
                    htb_class(0x10020, 0x10001, 2), band("prio", 0x100001),
                    band("prio", 0x100002),         htb_class(0x200001, tc_root, 0),
                    htb_class(0x200002, tc_root, 5)};
    return tree;
}

TEST(Below, NestedComparesAtTheFirstCommonQdisc) {
    const TcTree tree = nested_tree();
    // Between qdiscs: 1:10 against 1:20, whatever the ranks inside.
    EXPECT_TRUE(check_below(tree, 0x200001, 0x100002));
    EXPECT_FALSE(check_below(tree, 0x100002, 0x200001));
    EXPECT_FALSE(check_below(tree, 0x100002, 0x200002));
    // Inside one qdisc.
    EXPECT_TRUE(check_below(tree, 0x200002, 0x200001));
    EXPECT_FALSE(check_below(tree, 0x200001, 0x200002));
    EXPECT_TRUE(check_below(tree, 0x100002, 0x100001));
    // A leaf of one level against a class of the other.
    EXPECT_TRUE(check_below(tree, 0x10020, 0x100001));
    EXPECT_TRUE(check_below(tree, 0x200001, 0x10010));
}

TEST(Below, RefusesAClassAroundTheOther) {
    for (const auto &[isolate, queue] :
         {std::pair<TcHandle, TcHandle>{0x200002, 0x10020}, {0x10020, 0x200002}}) {
        const auto below = check_below(nested_tree(), isolate, queue);
        ASSERT_FALSE(below);
        EXPECT_EQ(below.error().reason, TcReason::not_below);
        EXPECT_THAT(below.error().text, HasSubstr("one lies inside the other"));
    }
}

TEST(Below, BandsRankByTheirOrder) {
    for (const char *kind : {"prio", "ets"}) {
        TcTree tree;
        tree.qdiscs = {qdisc(kind, 0x10000, tc_root)};
        tree.classes = {band(kind, 0x10001), band(kind, 0x10002), band(kind, 0x10003)};
        EXPECT_TRUE(check_below(tree, 0x10003, 0x10001)) << kind;
        EXPECT_TRUE(check_below(tree, 0x10002, 0x10001)) << kind;
        EXPECT_FALSE(check_below(tree, 0x10001, 0x10003)) << kind;
    }
}

TEST(Below, RefusesKindsWithoutRanks) {
    for (const char *kind : {"drr", "hfsc", "mq"}) {
        TcTree tree;
        tree.qdiscs = {qdisc(kind, 0x10000, tc_root)};
        tree.classes = {band(kind, 0x10001), band(kind, 0x10002)};
        const auto below = check_below(tree, 0x10002, 0x10001);
        ASSERT_FALSE(below) << kind;
        EXPECT_THAT(below.error().text, HasSubstr(std::string(kind) + " does not rank its classes"));
    }
}

/// A default mq has handle 0, as have the default children of HTB classes below it.
TEST(Below, ComparesUnderADefaultMq) {
    TcTree tree;
    tree.qdiscs = {qdisc("pfifo", 0, 0x10010), qdisc("mq", 0, tc_root), qdisc("htb", 0x10000, 0x1),
                   qdisc("htb", 0x20000, 0x2)};
    tree.classes = {band("mq", 0x1), band("mq", 0x2), htb_class(0x10010, tc_root, 1),
                    htb_class(0x10020, tc_root, 2), htb_class(0x20020, tc_root, 2)};
    EXPECT_TRUE(check_below(tree, 0x10020, 0x10010));
    const auto across = check_below(tree, 0x20020, 0x10010);
    ASSERT_FALSE(across);
    EXPECT_THAT(across.error().text, HasSubstr("mq does not rank"));
}

// ---- upper devices

TEST(HasUpper, VlanCountsPeerAndTunnelDoNot) {
    const LinkInfo vlan{.ifindex = 9, .name = "eth1.5", .arp_type = 1, .lower = 7, .kind = "vlan"};
    EXPECT_TRUE(has_upper(std::array{ethernet_port(), vlan}, 7));
    EXPECT_FALSE(has_upper(std::array{ethernet_port(), vlan}, 8));
    LinkInfo other = vlan;
    for (const char *kind : {"veth", "netkit", "gretap"}) {
        other.kind = kind;
        EXPECT_FALSE(has_upper(std::array{ethernet_port(), other}, 7)) << kind;
    }
    other = vlan;
    other.lower_foreign = true;
    EXPECT_FALSE(has_upper(std::array{ethernet_port(), other}, 7));
    other = vlan;
    other.arp_type = 768; // an IP tunnel
    EXPECT_FALSE(has_upper(std::array{ethernet_port(), other}, 7));
}

// ---- rates

TEST(ParseRate, TakesWhatTcTakes) {
    const std::vector<std::pair<std::string, uint64_t>> cases{
        {"200mbit", 200'000'000},     {"1gbit", 1'000'000'000},      {"10Gbit", 10'000'000'000},
        {"1500kbit", 1'500'000},      {"1000000", 1'000'000},        {"1000000bit", 1'000'000},
        {"1.5gbit", 1'500'000'000},   {"2.5GBIT", 2'500'000'000},    {"25mbps", 200'000'000},
        {"1tbit", 1'000'000'000'000}, {"10tbit", 10'000'000'000'000}};
    for (const auto &[text, bits] : cases) {
        const auto rate = parse_rate(text);
        ASSERT_TRUE(rate) << text;
        EXPECT_EQ(*rate, bits) << text;
    }
}

TEST(ParseRate, RefusesTheRestAsUsage) {
    for (const char *text : {"",         "0",        "0mbit",  "-1mbit",
                             "-200mbit", "+200mbit", "mbit",   "fast",
                             "200 mbit", "200mbits", "200mb",  "999kbit",
                             "500kbit",  "999999",   "11tbit", "99999999999999999999999",
                             "1e9",      "nan",      "inf",    "0x10mbit",
                             "200mbit ", " 200mbit", "1,5gbit"}) {
        const auto rate = parse_rate(text);
        ASSERT_FALSE(rate) << text;
        EXPECT_EQ(rate.error().kind, ErrorKind::usage) << text;
        EXPECT_THAT(rate.error().text(), HasSubstr("HINT: ")) << text;
    }
    EXPECT_FALSE(parse_rate(std::string(400, '9') + "mbit"));
}

// ---- setup

TEST(PlanSetup, MakesTheTreeOnADefaultQdisc) {
    for (const char *kind : {"noqueue", "pfifo_fast", "fq_codel", "mq"}) {
        const TcTree tree{.ifindex = 7, .qdiscs = {qdisc(kind, 0, tc_root)}, .classes = {}};
        const auto plan = plan_setup(ethernet_port(), tree, {.rate = 200'000'000}, false);
        ASSERT_TRUE(plan) << kind;
        EXPECT_EQ(plan->action, SetupPlan::Action::create);
        EXPECT_THAT(lines(*plan),
                    ElementsAre("tc qdisc replace dev eth1 root handle 1: htb default 10",
                                "tc class add dev eth1 parent 1: classid 1:1 htb rate 200mbit burst 25000 "
                                "ceil 200mbit cburst 25000 prio 0 quantum 65536",
                                "tc class add dev eth1 parent 1:1 classid 1:5 htb rate 1mbit burst 1600 "
                                "ceil 200mbit cburst 25000 prio 0 quantum 65536",
                                "tc class add dev eth1 parent 1:1 classid 1:10 htb rate 198mbit burst 25000 "
                                "ceil 200mbit cburst 25000 prio 1 quantum 65536",
                                "tc class add dev eth1 parent 1:1 classid 1:20 htb rate 1mbit burst 1600 "
                                "ceil 200mbit cburst 25000 prio 2 quantum 65536",
                                "tc qdisc add dev eth1 parent 1:5 handle 5: pfifo limit 1000",
                                "tc qdisc add dev eth1 parent 1:10 handle 10: pfifo limit 1000",
                                "tc qdisc add dev eth1 parent 1:20 handle 20: pfifo limit 1000"));
        EXPECT_THAT(plan->steps.front().undo, ElementsAre("tc", "qdisc", "del", "dev", "eth1", "root"));
    }
}

TEST(PlanSetup, RatesAreWholeBytesAndNeverExceedTheWhole) {
    const auto plan = plan_setup(ethernet_port(), TcTree{}, {.rate = 333'333'333}, false);
    ASSERT_TRUE(plan);
    const auto all = lines(*plan);
    EXPECT_THAT(all[1], HasSubstr("rate 333333328bit burst 41666 ceil 333333328bit cburst 41666"));
    EXPECT_THAT(all[2], HasSubstr("rate 1666664bit burst 1600 ceil 333333328bit"));
    EXPECT_THAT(all[3], HasSubstr("rate 330mbit burst 41666 ceil 333333328bit"));
}

TEST(PlanSetup, DoesNothingTwice) {
    const auto plan = plan_setup(ethernet_port(), setup_tree_200mbit(), {.rate = 200'000'000}, false);
    ASSERT_TRUE(plan);
    EXPECT_EQ(plan->action, SetupPlan::Action::nothing);
    EXPECT_TRUE(plan->steps.empty());
}

TEST(PlanSetup, ChangesOnlyClassesForAnotherRate) {
    const auto plan = plan_setup(ethernet_port(), setup_tree_200mbit(), {.rate = 1'000'000'000}, false);
    ASSERT_TRUE(plan);
    EXPECT_EQ(plan->action, SetupPlan::Action::change_rate);
    EXPECT_THAT(lines(*plan),
                ElementsAre("tc class change dev eth1 parent 1: classid 1:1 htb rate 1gbit burst 125000 "
                            "ceil 1gbit cburst 125000 prio 0 quantum 65536",
                            "tc class change dev eth1 parent 1:1 classid 1:5 htb rate 5mbit burst 1600 "
                            "ceil 1gbit cburst 125000 prio 0 quantum 65536",
                            "tc class change dev eth1 parent 1:1 classid 1:10 htb rate 990mbit burst 125000 "
                            "ceil 1gbit cburst 125000 prio 1 quantum 65536",
                            "tc class change dev eth1 parent 1:1 classid 1:20 htb rate 5mbit burst 1600 "
                            "ceil 1gbit cburst 125000 prio 2 quantum 65536"));
    EXPECT_EQ(fmt::format("{}", fmt::join(plan->steps[2].undo, " ")),
              "tc class change dev eth1 parent 1:1 classid 1:10 htb rate 198mbit burst 25000 "
              "ceil 200mbit cburst 25000 prio 1 quantum 65536");
}

TEST(PlanSetup, RefusesAnyOtherTreeWithoutForce) {
    std::vector<TcTree> others(8, setup_tree_200mbit());
    others[0].qdiscs[0].htb_default = 0x20;
    others[1].qdiscs[2].kind = "bfifo";
    others[2].qdiscs[2].fifo_limit = 100;
    others[3].classes[2].htb->prio = 0;
    others[4].classes.push_back(htb_class(0x10030, 0x10001, 3));
    others[5].qdiscs.push_back(qdisc("htb", 0x300000, 0x10030));
    others[6].classes.pop_back();
    others[7] = TcTree{.ifindex = 7, .qdiscs = {qdisc("pfifo", 0x80010000, tc_root)}, .classes = {}};
    for (size_t i = 0; i < others.size(); ++i) {
        const auto plan = plan_setup(ethernet_port(), others[i], {.rate = 200'000'000}, false);
        ASSERT_FALSE(plan) << i;
        EXPECT_EQ(plan.error().kind, ErrorKind::failed) << i;
        EXPECT_THAT(plan.error().hint, HasSubstr("--force")) << i;
        const auto forced = plan_setup(ethernet_port(), others[i], {.rate = 200'000'000}, true);
        ASSERT_TRUE(forced) << i;
        EXPECT_EQ(forced->action, SetupPlan::Action::create) << i;
        // A tree under the same handle must go first; another is swapped at once.
        EXPECT_EQ(lines(*forced).front(), i < 7 ? "tc qdisc del dev eth1 root"
                                                : "tc qdisc replace dev eth1 root handle 1: htb default 10")
            << i;
    }
}

/// What `setup PORT --kind KIND` leaves behind.
TcTree band_tree(const std::string &kind, Bands bands) {
    bands.count = 3;
    bands.priomap.fill(1);
    TcTree tree{.ifindex = 7,
                .qdiscs = {qdisc(kind, 0x10000, tc_root), fifo(0x110000, 0x10001), fifo(0x120000, 0x10002),
                           fifo(0x130000, 0x10003)},
                .classes = {band(kind, 0x10001), band(kind, 0x10002), band(kind, 0x10003)}};
    tree.qdiscs[0].bands = bands;
    return tree;
}
TcTree prio_tree() {
    return band_tree("prio", {.strict = 3});
}
TcTree ets_tree() {
    return band_tree("ets", {.strict = 1, .quanta = {301286, 1514}});
}

TEST(PlanSetup, MakesBands) {
    const std::string to_normal = " priomap 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1";
    for (const auto &[kind, root] :
         {std::pair{SetupKind::prio, "prio bands 3" + to_normal},
          {SetupKind::ets, "ets bands 3 strict 1 quanta 301286 1514" + to_normal}}) {
        const auto plan = plan_setup(ethernet_port(), TcTree{}, {.kind = kind}, false);
        ASSERT_TRUE(plan);
        EXPECT_THAT(lines(*plan),
                    ElementsAre("tc qdisc replace dev eth1 root handle 1: " + root,
                                "tc qdisc add dev eth1 parent 1:1 handle 11: pfifo limit 1000",
                                "tc qdisc add dev eth1 parent 1:2 handle 12: pfifo limit 1000",
                                "tc qdisc add dev eth1 parent 1:3 handle 13: pfifo limit 1000"));
    }
}

TEST(PlanSetup, KnowsItsBandsAgain) {
    for (const auto &[kind, tree] : {std::pair{SetupKind::prio, prio_tree()}, {SetupKind::ets, ets_tree()}}) {
        const auto plan = plan_setup(ethernet_port(), tree, {.kind = kind}, false);
        ASSERT_TRUE(plan) << plan.error().text();
        EXPECT_EQ(plan->action, SetupPlan::Action::nothing);
        EXPECT_TRUE(check_below(tree, 0x10003, 0x10002));
        EXPECT_TRUE(check_below(tree, 0x10002, 0x10001));
    }
    std::vector<TcTree> others(4, ets_tree());
    others[0].qdiscs[0].bands->quanta[1] = 100000;
    others[1].qdiscs[0].bands->priomap[6] = 0;
    others[2].qdiscs.pop_back();
    others[3].qdiscs[2].kind = "fq_codel";
    for (const TcTree &tree : others) {
        const auto plan = plan_setup(ethernet_port(), tree, {.kind = SetupKind::ets}, false);
        ASSERT_FALSE(plan);
        EXPECT_THAT(plan.error().text(), HasSubstr("setup did not make"));
    }
}

TEST(PlanSetup, ReplacesItsTreeByOneOfAnotherKindOnlyWithForce) {
    const auto refused = plan_setup(ethernet_port(), setup_tree_200mbit(), {.kind = SetupKind::ets}, false);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().text(), HasSubstr("the tree of --kind htb already"));
    const auto other = plan_setup(ethernet_port(), prio_tree(), {.kind = SetupKind::ets}, false);
    ASSERT_FALSE(other);
    EXPECT_THAT(other.error().text(), HasSubstr("the tree of --kind prio already"));
    const auto forced = plan_setup(ethernet_port(), setup_tree_200mbit(), {.kind = SetupKind::ets}, true);
    ASSERT_TRUE(forced);
    EXPECT_EQ(lines(*forced).front(), "tc qdisc del dev eth1 root");
}

TEST(PlanSetup, RefusesWhatIsNotEthernet) {
    const LinkInfo loopback{.ifindex = 1, .name = "lo", .arp_type = 772};
    const LinkInfo tunnel{.ifindex = 2, .name = "tunl0", .arp_type = 768};
    for (const LinkInfo &port : {loopback, tunnel}) {
        const auto plan = plan_setup(port, TcTree{}, {.rate = 200'000'000}, true);
        ASSERT_FALSE(plan) << port.name;
        EXPECT_THAT(plan.error().text(), HasSubstr("HINT: ")) << port.name;
    }
}

} // namespace
} // namespace spillway
