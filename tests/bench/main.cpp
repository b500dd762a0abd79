// SPDX-License-Identifier: Apache-2.0
/// spillway-bench: what the programs cost a packet, in nanoseconds over an empty program of the same type.
///
///     row          goal  what is measured
///     tc.idle         8  nothing marked, the queue below its low waterline
///     tc.unmarked    35  an unmarked flow while others are marked
///     tc.marked      50  a marked flow
///     xdp.other       3  a frame that is no CIP
///
/// The TC program reads a real HTB tree. Rounds of all programs follow one another, so that a slow moment of
/// the machine meets all of them; a row's value is the median of its rounds.
#include "tests/bpf_program.h"
#include "tests/prog/rig.h"

#include <CLI/CLI.hpp>
#include <bpf/bpf.h>
#include <fmt/format.h>
#include <linux/pkt_cls.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using namespace spillway;
using namespace spillway::packet;
using namespace spillway::prog;

struct Row {
    std::string name;
    double goal = 0;
    std::string baseline; ///< name of the row it is over; empty: a baseline itself
    std::function<std::uint32_t()> run{};
    std::vector<double> ns{};
};

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

std::uint32_t tc_ns(int program, const Rig &rig, const Bytes &packet, int repeat) {
    __sk_buff context{};
    context.ifindex = rig.ifindex();
    return run_tc(program, packet, context, repeat).duration_ns;
}

std::uint32_t xdp_ns(int program, const Rig &rig, const Bytes &packet, int repeat) {
    xdp_md context{};
    context.data_end = static_cast<std::uint32_t>(packet.size());
    context.ingress_ifindex = rig.ifindex();
    return run_xdp(program, packet, context, repeat).duration_ns;
}

std::vector<Row> measure(int repeat, int rounds) {
    Rig rig(Source::kernel);
    const Bytes packet = (Ethernet{} / IPv4{} / Udp{} / zeros(1000)).bytes();
    const Bytes other = (Ethernet{} / IPv4{} / Udp{.sport = 5001} / zeros(1000)).bytes();
    if (rig.edit(SPILLWAY_EDIT_MARK_MANUAL, key_of("udp 10.0.0.1:5000 10.0.0.2:6000", rig.ifindex())) !=
        SPILLWAY_EDIT_DONE)
        throw std::runtime_error("the flow could not be marked");
    if (rig.isolate(packet).priority != isolation || rig.isolate(other).priority != 0)
        throw std::runtime_error("the marked flow is not isolated, or another one is");

    // All packets of a round are one skb: were its priority to name an isolation class of the tree, all but
    // the first would be taken for isolated already. A class of another tree sends them the same way.
    rig.leaf(isolation).classid = 0x20020;

    const Fd empty_tc = make_program(BPF_PROG_TYPE_SCHED_CLS, "empty", TC_ACT_UNSPEC);
    const Fd empty_xdp = make_program(BPF_PROG_TYPE_XDP, "empty", XDP_PASS);
    std::vector<Row> rows{
        {"tc.empty", 0, "", [&] { return tc_ns(empty_tc.get(), rig, packet, repeat); }},
        {"tc.idle", 8, "tc.empty",
         [&] {
             rig.settings().swept = rig.settings().gen; // as if nothing were marked
             const std::uint32_t ns = tc_ns(rig.isolate_fd(), rig, packet, repeat);
             rig.settings().swept = 0;
             return ns;
         }},
        {"tc.unmarked", 35, "tc.empty", [&] { return tc_ns(rig.isolate_fd(), rig, other, repeat); }},
        {"tc.marked", 50, "tc.empty", [&] { return tc_ns(rig.isolate_fd(), rig, packet, repeat); }},
        {"xdp.empty", 0, "", [&] { return xdp_ns(empty_xdp.get(), rig, packet, repeat); }},
        {"xdp.other", 3, "xdp.empty", [&] { return xdp_ns(rig.trap_fd(), rig, packet, repeat); }},
    };
    for (int round = -1; round < rounds; round++)
        for (Row &row : rows) {
            const double ns = row.run();
            if (round >= 0) // the first one warms up
                row.ns.push_back(ns);
        }
    return rows;
}

} // namespace

int main(int argc, char **argv) {
    CLI::App app{"What the BPF programs cost a packet, in ns over an empty program", "spillway-bench"};
    std::string file;
    int repeat = 200000;
    int rounds = 25;
    app.add_option("--json", file, "also write the figures to this file");
    app.add_option("--repeat", repeat, "packets in a round")->check(CLI::Range(1000, 100000000));
    app.add_option("--rounds", rounds, "rounds of which the median is taken")->check(CLI::Range(1, 1000));
    CLI11_PARSE(app, argc, argv);
    try {
        std::map<std::string, std::vector<double>> baselines;
        nlohmann::json figures = nlohmann::json::array();
        fmt::print("{:<14}{:>8}{:>8}{:>8}{:>8}{:>10}\n", "ns per packet", "over", "min", "max", "goal",
                   "empty");
        for (const Row &row : measure(repeat, rounds)) {
            if (row.baseline.empty()) {
                baselines[row.name] = row.ns;
                continue;
            }
            const std::vector<double> &base = baselines.at(row.baseline);
            std::vector<double> over;
            for (std::size_t i = 0; i < row.ns.size(); i++)
                over.push_back(row.ns[i] - base[i]);
            const auto [least, most] = std::minmax_element(over.begin(), over.end());
            fmt::print("{:<14}{:>8}{:>8}{:>8}{:>8}{:>10}\n", row.name, median(over), *least, *most, row.goal,
                       median(base));
            figures.push_back({{"name", row.name},
                               {"value", median(over)},
                               {"unit", "ns"},
                               {"baseline", median(base)},
                               {"min", *least},
                               {"max", *most}});
        }
        if (!file.empty() && !(std::ofstream(file) << figures.dump(2) << '\n'))
            throw std::runtime_error("write " + file);
    } catch (const std::exception &error) {
        fmt::print(stderr, "spillway-bench: {}\n", error.what());
        return 1;
    }
    return 0;
}
