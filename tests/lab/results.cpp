// SPDX-License-Identifier: Apache-2.0
#include "tests/lab/results.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>

namespace spillway::lab {

namespace {

/// What the issue of the laboratory asks for; a scenario takes what fits it.
constexpr double times_better_udp = 1000;
constexpr double times_better_tcp = 100;   // its XOFF is lower: PFC alone hurts less
constexpr double times_better_drops = 100; // a queue that drops is not as deep
constexpr double p50_of_oracle = 2;
constexpr double p99_of_oracle = 3;
constexpr double elephant_share = 0.98;
constexpr std::size_t ports_by_spreading = 3;

std::string number(double value) { // three digits are enough
    return value >= 99.95 ? fmt::format("{:.0f}", value)
                          : (value >= 9.995 ? fmt::format("{:.1f}", value) : fmt::format("{:.2f}", value));
}

std::string milliseconds(double value) {
    return number(value) + " ms";
}

double ratio(double over, double under) {
    return under > 0 ? over / under : 0;
}

std::uint64_t total(const RunResult &run, std::uint64_t VictimResult::*what) {
    std::uint64_t sum = 0;
    for (const VictimResult &victim : run.victims)
        sum += victim.*what;
    return sum;
}

std::uint64_t total(const RunResult &run, std::uint64_t ElephantResult::*what) {
    std::uint64_t sum = 0;
    for (const ElephantResult &elephant : run.elephants)
        sum += elephant.*what;
    return sum;
}

std::string labels(const std::vector<const Port *> &ports) {
    std::vector<std::string> names;
    for (const Port *port : ports)
        names.push_back(port->label());
    return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

/// Ports whose normal priority was still held back once every node had settled after its mark.
std::vector<const Port *> paused_after_mark(const Topology &topology, const Scenario &scenario,
                                            const RunResult &run) {
    const auto marked = run.marked_everywhere_ns();
    const auto settling_ns = static_cast<std::uint64_t>(scenario.settling * 1e9);
    return marked ? run.paused_ports(topology, Priority::normal, *marked + settling_ns)
                  : std::vector<const Port *>{};
}

bool lossless(const RunResult &run) {
    return run.dropped == 0 && run.vanished == 0 && total(run, &VictimResult::lost) == 0 &&
           total(run, &ElephantResult::lost) == 0;
}

/// The nodes on the way of an elephant that have an agent, its own host included.
std::vector<const Node *> agents_on_the_way(const Topology &topology, const Scenario &scenario,
                                            const Elephant &elephant) {
    std::vector<const Node *> way;
    const Node *node = &topology.node(elephant.from);
    const Node *end = &topology.node(elephant.to);
    while (node != end) {
        if (std::ranges::find(scenario.plain, node->name) == scenario.plain.end())
            way.push_back(node);
        node = topology.next_hop(*node, *end);
    }
    return way;
}

class Checker {
  public:
    Checker(const Topology &topology, const ScenarioResult &result) : topology_(topology), result_(result) {}

    std::vector<Check> all() {
        for (const RunResult &run : result_.runs)
            if (pauses(result_.scenario, run.scheme))
                must(lossless(run),
                     fmt::format("{}: {} packets dropped in queues, {} bytes vanished in switches, "
                                 "{} requests and {} datagrams lost",
                                 title_of(result_.scenario, run.scheme), run.dropped, run.vanished,
                                 total(run, &VictimResult::lost), total(run, &ElephantResult::lost)));
        const std::string &id = result_.scenario.id;
        if (const RunResult *spillway = result_.run(Scheme::spillway)) {
            must(spillway->victims_marked == 0,
                 fmt::format("{} innocent flows isolated", spillway->victims_marked));
            isolated_everywhere(*spillway);
            if (result_.scenario.flow_control)
                settled(*spillway);
            else if (const RunResult *none = result_.run(Scheme::none))
                against_none(*spillway, *none);
            if (const RunResult *pfc = result_.run(Scheme::pfc))
                against_pfc(*spillway, *pfc);
            if (const RunResult *oracle = result_.run(Scheme::oracle))
                against_oracle(*spillway, *oracle);
            if (id == "comeback")
                given_back(*spillway);
        }
        if (const RunResult *pfc = result_.run(Scheme::pfc); pfc != nullptr && id == "spreading") {
            const auto ports = pfc->paused_ports(topology_, Priority::normal);
            must(ports.size() >= ports_by_spreading,
                 fmt::format("with PFC alone the normal priority was paused at {} ports: {}", ports.size(),
                             labels(ports)));
        }
        if (const RunResult *pfc = result_.run(Scheme::pfc))
            if (const RunResult *local = result_.run(Scheme::local))
                must_compare(
                    worst_p50_ms(*local) > worst_p50_ms(*pfc) / 2,
                    fmt::format("isolating at {} alone does not help: victim p50 {}, with PFC alone {}",
                                result_.scenario.congested, milliseconds(worst_p50_ms(*local)),
                                milliseconds(worst_p50_ms(*pfc))));
        return std::move(checks_);
    }

  private:
    void must(bool holds, std::string text) { checks_.push_back({holds, std::move(text)}); }
    void must_compare(bool holds, std::string text) { checks_.push_back({holds, std::move(text), true}); }

    /// A node isolates an elephant by a mark of its own, or because the elephant arrives with the low
    /// priority that a node before it has written.
    void isolated_everywhere(const RunResult &run) {
        std::size_t asked = 0, marked = 0, arriving_low = 0;
        std::set<std::string> missing;
        for (std::size_t i = 0; i < result_.scenario.elephants.size(); ++i) {
            const Elephant &elephant = result_.scenario.elephants[i];
            std::set<std::string> isolated; // flows, by the nodes so far
            for (const Node *node : agents_on_the_way(topology_, result_.scenario, elephant)) {
                std::set<std::string> here;
                for (const MarkSpan &mark : run.marks)
                    if (mark.node == node && mark.destination_port == elephant_port + i)
                        here.insert(mark.flow);
                isolated.insert(here.begin(), here.end());
                asked += elephant.flows;
                marked += here.size();
                arriving_low += isolated.size() - here.size();
                if (isolated.size() < elephant.flows)
                    missing.insert(node->name);
            }
        }
        std::string text = fmt::format("{} of {} times an elephant was isolated at a node on its way",
                                       marked + arriving_low, asked);
        if (arriving_low > 0)
            text += fmt::format(", {} of them because it arrived with the low priority", arriving_low);
        if (!missing.empty())
            text += fmt::format("; not at {}", fmt::join(missing, ", "));
        must(marked + arriving_low == asked, std::move(text));
    }

    void settled(const RunResult &run) {
        const auto ports = paused_after_mark(topology_, result_.scenario, run);
        must(run.marked_everywhere_ns() && ports.empty(),
             fmt::format("normal priority paused from {} s after the mark on: {}", result_.scenario.settling,
                         run.marked_everywhere_ns() ? labels(ports) : "there was no mark"));
    }

    void against_none(const RunResult &spillway, const RunResult &none) {
        must(total(spillway, &VictimResult::lost) == 0,
             fmt::format("{} requests lost, without {}", total(spillway, &VictimResult::lost),
                         total(none, &VictimResult::lost)));
        const double better = ratio(worst_p50_ms(none), worst_p50_ms(spillway));
        must_compare(better >= times_better_drops,
                     fmt::format("victim p50 {:.0f} times better than without, at least {:.0f}", better,
                                 times_better_drops));
    }

    void against_pfc(const RunResult &spillway, const RunResult &pfc) {
        const double share = ratio(spillway.elephants_mbit, pfc.elephants_mbit);
        must_compare(share >= elephant_share,
                     fmt::format("the elephants get {:.1f} % of what they get with PFC alone, "
                                 "at least {:.0f} %",
                                 share * 100, elephant_share * 100));
        const std::string &id = result_.scenario.id;
        if (id != "blocking" && id != "blocking-tcp")
            return;
        const double asked = id == "blocking" ? times_better_udp : times_better_tcp;
        const double better = ratio(worst_p50_ms(pfc), worst_p50_ms(spillway));
        must_compare(better >= asked,
                     fmt::format("victim p50 {:.0f} times better than with PFC alone, at least {:.0f}",
                                 better, asked));
    }

    void against_oracle(const RunResult &spillway, const RunResult &oracle) {
        const double p50 = ratio(worst_p50_ms(spillway), worst_p50_ms(oracle));
        must_compare(p50 <= p50_of_oracle,
                     fmt::format("victim p50 {:.2f} times the oracle's, at most {:.0f}", p50, p50_of_oracle));
        // In an incast and above a plain switch the congestion has to spread a little before it is found; a
        // short queue at the start is all that p99 shows of a run without pauses.
        if (result_.scenario.id == "incast" || result_.scenario.id == "gap" || !result_.scenario.flow_control)
            return;
        const double p99 = ratio(worst_p99_ms(spillway), worst_p99_ms(oracle));
        must_compare(p99 <= p99_of_oracle,
                     fmt::format("victim p99 {:.2f} times the oracle's, at most {:.0f}", p99, p99_of_oracle));
    }

    void given_back(const RunResult &run) {
        const Elephant &elephant = result_.scenario.elephants.front();
        const std::uint64_t again =
            run.start_ns + static_cast<std::uint64_t>((elephant.pause_after + elephant.pause_seconds) * 1e9);
        std::size_t back = 0, found = 0;
        const auto way = agents_on_the_way(topology_, result_.scenario, elephant);
        for (const Node *node : way) {
            back += std::ranges::any_of(run.marks, [&](const MarkSpan &mark) {
                return mark.node == node && mark.released_ns && *mark.released_ns < again;
            });
            found += std::ranges::any_of(run.marks, [&](const MarkSpan &mark) {
                return mark.node == node && mark.marked_ns >= again;
            });
        }
        must(back == way.size(),
             fmt::format("priority given back in the silence at {} of {} nodes", back, way.size()));
        must(found == way.size(), fmt::format("found again at {} of {} nodes", found, way.size()));
        const std::uint64_t late = total(run, &ElephantResult::late) + total(run, &VictimResult::late);
        must(late == 0, fmt::format("{} packets overtaken at the receivers", late));
    }

    const Topology &topology_;
    const ScenarioResult &result_;
    std::vector<Check> checks_;
};

/// "4.66 s at 2 ports", or "-".
std::string pause_text(const Topology &topology, const RunResult &run, Priority priority) {
    const auto ports = run.paused_ports(topology, priority);
    double longest = 0;
    for (const Port *port : ports)
        longest = std::max(longest, run.paused(*port, priority));
    return ports.empty() ? "-" : fmt::format("{} ports, {} s", ports.size(), number(longest));
}

std::string spread(std::vector<std::uint64_t> ns) { // "0.10 ms, slowest 3.53 ms"
    std::ranges::sort(ns);
    return fmt::format("{}, slowest {}", milliseconds(static_cast<double>(ns[ns.size() / 2]) / 1e6),
                       milliseconds(static_cast<double>(ns.back()) / 1e6));
}

nlohmann::json run_json(const Topology &topology, const Scenario &scenario, const RunResult &run) {
    nlohmann::json victims = nlohmann::json::array(), elephants = victims, pauses = victims, marks = victims;
    const auto seconds = [&](std::uint64_t ns) {
        return static_cast<double>(static_cast<std::int64_t>(ns - run.start_ns)) / 1e9;
    };
    for (const VictimResult &victim : run.victims)
        victims.push_back({{"flow", victim.name},
                           {"p50_ms", victim.p50_ms},
                           {"p99_ms", victim.p99_ms},
                           {"max_ms", victim.max_ms},
                           {"sent", victim.sent},
                           {"lost", victim.lost},
                           {"late", victim.late}});
    for (const ElephantResult &elephant : run.elephants)
        elephants.push_back({{"flow", elephant.name},
                             {"mbit", elephant.mbit},
                             {"lost", elephant.lost},
                             {"late", elephant.late},
                             {"blocked", elephant.blocked},
                             {"retransmits", elephant.retransmits}});
    for (const auto &port : topology.ports())
        for (const Priority priority : priorities) {
            const auto count = std::ranges::count_if(run.pauses, [&](const PauseInterval &pause) {
                return pause.port == port.get() && pause.priority == priority;
            });
            if (count > 0)
                pauses.push_back({{"port", port->label()},
                                  {"priority", to_string(priority)},
                                  {"pauses", count},
                                  {"seconds", run.paused(*port, priority)}});
        }
    for (const MarkSpan &mark : run.marks)
        marks.push_back({{"node", mark.node->name},
                         {"port", mark.port},
                         {"flow", mark.flow},
                         {"marked_s", seconds(mark.marked_ns)},
                         {"released_s", mark.released_ns ? nlohmann::json(seconds(*mark.released_ns))
                                                         : nlohmann::json(nullptr)}});
    return {{"scheme", id_of(run.scheme)},
            {"victims", victims},
            {"elephants", elephants},
            {"elephants_mbit", run.elephants_mbit},
            {"dropped", run.dropped},
            {"vanished_bytes", run.vanished},
            {"pauses", pauses},
            {"normal_paused_after_mark", paused_after_mark(topology, scenario, run).size()},
            {"pause_frames", run.frames.size()},
            {"most_above_xoff_bytes", run.overshoot},
            {"marks", marks},
            {"innocent_flows_marked", run.victims_marked},
            {"cips_received", run.cips},
            {"attempts", run.attempts},
            {"stall_ms", static_cast<double>(run.record.stall_ns) / 1e6}};
}

} // namespace

ScenarioResult::ScenarioResult(const Laboratory &laboratory)
    : scenario(laboratory.scenario()), seconds(laboratory.seconds()), reaction_ns(laboratory.reaction_ns()),
      headroom_ns(laboratory.headroom_ns()) {}

const RunResult *ScenarioResult::run(Scheme scheme) const {
    const auto found = std::ranges::find(runs, scheme, &RunResult::scheme);
    return found == runs.end() ? nullptr : &*found;
}

double worst_p50_ms(const RunResult &run) {
    return std::ranges::max(run.victims, {}, &VictimResult::p50_ms).p50_ms;
}

double worst_p99_ms(const RunResult &run) {
    return std::ranges::max(run.victims, {}, &VictimResult::p99_ms).p99_ms;
}

std::vector<Check> check(const Topology &topology, const ScenarioResult &result) {
    return Checker(topology, result).all();
}

std::string flow_control_text(const ScenarioResult &result) {
    std::vector<std::uint64_t> frame_to_gate, crossing_to_gate;
    std::uint64_t overshoot = 0;
    for (const RunResult &run : result.runs) {
        frame_to_gate.insert(frame_to_gate.end(), run.frame_to_gate_ns.begin(), run.frame_to_gate_ns.end());
        crossing_to_gate.insert(crossing_to_gate.end(), run.crossing_to_gate_ns.begin(),
                                run.crossing_to_gate_ns.end());
        overshoot = std::max(overshoot, run.overshoot);
    }
    if (!result.scenario.flow_control)
        return "";
    std::string text = fmt::format(
        "XOFF {} KB, XON {} KB, room above XOFF for {:.0f} ms (idle fabric: pause frame to gate {})",
        result.scenario.xoff / 1000, result.scenario.xon / 1000,
        static_cast<double>(result.headroom_ns) / 1e6,
        milliseconds(static_cast<double>(result.reaction_ns) / 1e6));
    if (!frame_to_gate.empty())
        text += fmt::format(
            "\nin the runs: pause frame to gate {}; packet above XOFF to gate {}; deepest {} KB above XOFF",
            spread(frame_to_gate), spread(crossing_to_gate), overshoot / 1000);
    for (const RunResult &run : result.runs)
        if (run.attempts > 1)
            text += fmt::format(
                "\n{}: measured {} times, because the machine stood still; in the calmest run for {}",
                title_of(run.scheme), run.attempts,
                milliseconds(static_cast<double>(run.record.stall_ns) / 1e6));
    return text + "\n";
}

std::vector<std::string> table_columns() {
    return {"",        "victim p50",     "p99",        "lost", "overtaken", "elephants",
            "dropped", "paused, normal", "paused, low"};
}

std::vector<std::string> table_row(const Topology &topology, const Scenario &scenario, const RunResult &run) {
    return {title_of(scenario, run.scheme),
            milliseconds(worst_p50_ms(run)),
            milliseconds(worst_p99_ms(run)),
            fmt::to_string(total(run, &VictimResult::lost)),
            fmt::to_string(total(run, &ElephantResult::late) + total(run, &VictimResult::late)),
            fmt::format("{:.1f} Mbit/s", run.elephants_mbit),
            fmt::to_string(run.dropped),
            pause_text(topology, run, Priority::normal),
            pause_text(topology, run, Priority::low)};
}

std::string to_text(const Topology &topology, const ScenarioResult &result, bool color) {
    const std::string bold = color ? "\033[1m" : "", red = color ? "\033[31m" : "",
                      plain = color ? "\033[0m" : "";
    std::string text = fmt::format("{}{}: {}{}\n{}\n{}\n\n", bold, result.scenario.id, result.scenario.title,
                                   plain, result.scenario.text, result.scenario.drawing);
    const auto line = [](const std::vector<std::string> &cells) {
        return fmt::format("{:<22}{:>12}{:>12}{:>7}{:>11}{:>14}{:>10}   {:<18}{}", cells[0], cells[1],
                           cells[2], cells[3], cells[4], cells[5], cells[6], cells[7], cells[8]);
    };
    text += fmt::format("{}{}{}\n", bold, line(table_columns()), plain);
    for (const RunResult &run : result.runs)
        text += line(table_row(topology, result.scenario, run)) + '\n';
    const std::string flow_control = flow_control_text(result);
    text += "\n" + flow_control + (flow_control.empty() ? "" : "\n");
    for (const Check &one : result.checks)
        text += one.holds ? fmt::format("  ok      {}\n", one.text)
                          : fmt::format("  {}FAILED  {}{}\n", red, one.text, plain);
    return text + "\n";
}

nlohmann::json to_json(const Topology &topology, const ScenarioResult &result) {
    nlohmann::json runs = nlohmann::json::array(), checks = runs;
    for (const RunResult &run : result.runs)
        runs.push_back(run_json(topology, result.scenario, run));
    for (const Check &one : result.checks)
        checks.push_back({{"holds", one.holds}, {"text", one.text}});
    return {{"id", result.scenario.id},
            {"title", result.scenario.title},
            {"seconds", result.seconds},
            {"xoff_bytes", result.scenario.xoff},
            {"xon_bytes", result.scenario.xon},
            {"headroom_ms", static_cast<double>(result.headroom_ns) / 1e6},
            {"idle_reaction_us", static_cast<double>(result.reaction_ns) / 1e3},
            {"runs", runs},
            {"checks", checks}};
}

} // namespace spillway::lab
