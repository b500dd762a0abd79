// SPDX-License-Identifier: Apache-2.0
#include "tests/lab/scenario.h"

#include <fmt/format.h>

namespace spillway::lab {

namespace {

constexpr std::uint64_t fast = 100 * mbit;
constexpr std::uint64_t slow = 20 * mbit;   // of the receiver that everybody sends to
constexpr std::uint64_t slower = 10 * mbit; // of the receiver in the incast
constexpr double incast_rate = 12;          // Mbit/s: too much for it each, and no other link is short
constexpr double elephant_rate = 60;        // Mbit/s: three times what B takes, and no link but B's is short

/// A1, A2 – switch1 – … – B and C.
void build_line(Topology &fabric, unsigned switches, unsigned switch_of_c) {
    Node *last = nullptr;
    std::vector<Node *> row;
    Node &a1 = fabric.add_host("A1"), &a2 = fabric.add_host("A2");
    for (unsigned number = 1; number <= switches; ++number)
        row.push_back(&fabric.add_switch(fmt::format("switch{}", number)));
    Node &b = fabric.add_host("B"), &c = fabric.add_host("C");
    fabric.connect(a1, *row.front(), fast);
    fabric.connect(a2, *row.front(), fast);
    for (Node *next : row) {
        if (last != nullptr)
            fabric.connect(*last, *next, fast);
        last = next;
    }
    fabric.connect(*last, b, slow);
    fabric.connect(*row.at(switch_of_c - 1), c, fast);
    fabric.route();
}

/// Eight senders on two leaves, the receivers on a third, a spine between.
void build_leaves(Topology &fabric) {
    Node &spine = fabric.add_switch("spine");
    for (unsigned leaf = 1; leaf <= 2; ++leaf) {
        Node &node = fabric.add_switch(fmt::format("leaf{}", leaf));
        fabric.connect(node, spine, fast);
        for (unsigned host = 1; host <= 4; ++host)
            fabric.connect(fabric.add_host(fmt::format("H{}", (leaf - 1) * 4 + host)), node, fast);
    }
    Node &leaf = fabric.add_switch("leaf3");
    fabric.connect(spine, leaf, fast);
    fabric.connect(leaf, fabric.add_host("B"), slower);
    for (const char *name : {"C", "D"})
        fabric.connect(leaf, fabric.add_host(name), fast);
    fabric.route();
}

std::vector<Elephant> incast() {
    std::vector<Elephant> all;
    for (unsigned host = 1; host <= 8; ++host)
        all.push_back({.from = fmt::format("H{}", host), .to = "B", .mbit = incast_rate});
    return all;
}

constexpr const char *one_switch = R"(
H ── 1 Gbit/s ── switch1 ── 200 Mbit/s ── R)";

constexpr const char *two_switches = R"(
A1 ──┐                                    ┌── 20 Mbit/s ── B
     ├─ switch1 ──── 100 Mbit/s ──── switch2
A2 ──┘                                    └── 100 Mbit/s ─ C)";

constexpr const char *three_switches = R"(
A1 ──┐
     ├─ switch1 ──── switch2 ──── switch3 ── 20 Mbit/s ── B
A2 ──┘                  └── C)";

constexpr const char *plain_middle = R"(
A1 ──┐                                          ┌── 20 Mbit/s ── B
     ├─ switch1 ──── switch2 (plain) ──── switch3
A2 ──┘                                          └── 100 Mbit/s ─ C)";

constexpr const char *leaves = R"(
H1…H4 ── leaf1 ──┐                  ┌── 10 Mbit/s ── B
                 ├─ spine ──── leaf3 ─ 100 Mbit/s ── C
H5…H8 ── leaf2 ──┘                  └─ 100 Mbit/s ── D)";

const auto line_of_two = [](Topology &fabric) { build_line(fabric, 2, 2); };

} // namespace

std::string_view id_of(Scheme scheme) {
    switch (scheme) {
    case Scheme::none:
        return "none";
    case Scheme::pfc:
        return "pfc";
    case Scheme::local:
        return "local";
    case Scheme::spillway:
        return "spillway";
    case Scheme::oracle:
        return "oracle";
    }
    return "";
}

std::string_view title_of(Scheme scheme) {
    switch (scheme) {
    case Scheme::none:
        return "no flow control";
    case Scheme::pfc:
        return "PFC";
    case Scheme::local:
        return "PFC, send_cip: false";
    case Scheme::spillway:
        return "PFC and spillway";
    case Scheme::oracle:
        return "oracle";
    }
    return "";
}

std::string title_of(const Scenario &scenario, Scheme scheme) {
    if (!scenario.flow_control && scheme == Scheme::none)
        return "without";
    if (!scenario.flow_control && scheme == Scheme::spillway)
        return "spillway";
    return std::string(title_of(scheme));
}

const std::vector<Scenario> &scenarios() {
    static const std::vector<Scenario> all = {
        {.id = "one-queue",
         .title = "Two flows in one queue, without flow control",
         .text = "H sends 300 Mbit/s of UDP to R through a port of 200 Mbit/s, and asks R a thousand times a "
                 "second.",
         .drawing = one_switch,
         .build =
             [](Topology &fabric) {
                 Node &sender = fabric.add_host("H"), &node = fabric.add_switch("switch1"),
                      &receiver = fabric.add_host("R");
                 fabric.connect(sender, node, 1000 * mbit);
                 fabric.connect(node, receiver, 200 * mbit);
                 fabric.route();
             },
         .elephants = {{.from = "H", .to = "R", .mbit = 300}},
         .victims = {{"H", "R"}},
         .congested = "switch1",
         .flow_control = false,
         .xoff = 1'400'000,
         .usual = {Scheme::none, Scheme::spillway, Scheme::oracle}},
        {.id = "blocking",
         .title = "An innocent flow behind a paused priority",
         .text = "A1 sends 60 Mbit/s of UDP to B, which takes 20. A2 asks C a thousand times a second; every "
                 "link on its way has room.",
         .drawing = two_switches,
         .build = line_of_two,
         .elephants = {{.from = "A1", .to = "B", .mbit = elephant_rate}},
         .victims = {{"A2", "C"}},
         .congested = "switch2"},
        {.id = "blocking-tcp",
         .title = "An innocent flow behind a paused priority, with cubic TCP",
         .text = "A1 sends to B over eight TCP connections with cubic, as fast as they go. A2 asks C a "
                 "thousand times a second.",
         .drawing = two_switches,
         .build = line_of_two,
         .elephants = {{.from = "A1", .to = "B", .flows = 8}},
         .victims = {{"A2", "C"}},
         .congested = "switch2",
         .xoff = 400'000,
         .xon = 350'000},
        {.id = "spreading",
         .title = "Congestion two switches away",
         .text =
             "A1 sends 60 Mbit/s of UDP to B, which takes 20. A2 asks C, whose way does not even touch the "
             "congested switch3.",
         .drawing = three_switches,
         .build = [](Topology &fabric) { build_line(fabric, 3, 2); },
         .elephants = {{.from = "A1", .to = "B", .mbit = elephant_rate}},
         .victims = {{"A2", "C"}},
         .congested = "switch3"},
        {.id = "incast",
         .title = "Incast, eight to one",
         .text =
             "H1 to H8 send 12 Mbit/s of UDP each to B, which takes 10 in all. H1 asks C and H5 asks D, a "
             "thousand times a second each.",
         .drawing = leaves,
         .build = build_leaves,
         .elephants = incast(),
         .victims = {{"H1", "C"}, {"H5", "D"}},
         .congested = "leaf3",
         .xoff = 300'000,
         .xon = 280'000,
         .settling = 3,
         .patience = 8},
        {.id = "comeback",
         .title = "The elephant stops, and comes back",
         .text = "A1 sends 60 Mbit/s of UDP to B, which takes 20, for three seconds, is silent for five, and "
                 "sends again. A2 asks C a thousand times a second.",
         .drawing = two_switches,
         .build = line_of_two,
         .elephants =
             {{.from = "A1", .to = "B", .mbit = elephant_rate, .pause_after = 3, .pause_seconds = 5}},
         .victims = {{"A2", "C"}},
         .congested = "switch2",
         .seconds = 11,
         .usual = {Scheme::pfc, Scheme::spillway}},
        {.id = "gap",
         .title = "A switch in the middle without spillway",
         .text =
             "A1 sends 60 Mbit/s of UDP to B, which takes 20. A2 asks C a thousand times a second. switch2 "
             "has flow control and sorts by DSCP, but has no agent: it takes no CIP and sends none.",
         .drawing = plain_middle,
         .build = [](Topology &fabric) { build_line(fabric, 3, 3); },
         .elephants = {{.from = "A1", .to = "B", .mbit = elephant_rate}},
         .victims = {{"A2", "C"}},
         .congested = "switch3",
         .plain = {"switch2"},
         .settling = 2,
         .usual = {Scheme::pfc, Scheme::spillway, Scheme::oracle}},
    };
    return all;
}

} // namespace spillway::lab
