// SPDX-License-Identifier: Apache-2.0
#include "tests/lab/report.h"

#include "tests/lab/report_page.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <fmt/format.h>
#include <string_view>

namespace spillway::lab {

namespace {

using nlohmann::json;

constexpr std::uint64_t bin_ns = 10'000'000;  // of a victim's curve
constexpr std::uint32_t least_depth = 30'000; // bytes; a queue that was never deeper is not drawn
constexpr std::string_view placeholder = "__DATA__";

double seconds_after(std::uint64_t time_ns, std::uint64_t start_ns) {
    const double seconds = static_cast<double>(static_cast<std::int64_t>(time_ns - start_ns)) / 1e9;
    return std::round(seconds * 1e4) / 1e4; // what the eye cannot see only makes the page bigger
}

double rounded(double value) {
    return std::stod(fmt::format("{:.3g}", value));
}

/// Fastest and slowest answer to what was sent in each hundredth of a second: [time, ms, ms]; and when
/// requests were lost.
json victim_json(const VictimResult &victim, std::uint64_t start_ns) {
    json points = json::array(), lost = json::array();
    std::uint64_t bin = 0;
    double fastest = 0, slowest = 0;
    const auto flush = [&] {
        if (slowest > 0)
            points.push_back({seconds_after(bin * bin_ns, start_ns), rounded(fastest), rounded(slowest)});
        slowest = 0;
    };
    for (const RoundTrip &trip : victim.round_trips) {
        if (!trip.ns) {
            lost.push_back(seconds_after(trip.sent_ns, start_ns));
            continue;
        }
        if (trip.sent_ns / bin_ns != bin)
            flush();
        bin = trip.sent_ns / bin_ns;
        const double ms = static_cast<double>(*trip.ns) / 1e6;
        fastest = slowest == 0 ? ms : std::min(fastest, ms);
        slowest = std::max(slowest, ms);
    }
    flush();
    return {{"name", victim.name}, {"points", points}, {"lost", lost}};
}

/// `arrivals`: the ports are those by which the bytes came in; then the way that they came is named.
json depths_json(const Topology &topology, const std::map<QueueName, Depths> &all, bool arrivals) {
    json list = json::array();
    for (const auto &port : topology.ports())
        for (const Priority priority : priorities) {
            const auto found = all.find({port.get(), priority});
            if (!port->node->is_switch || found == all.end() || std::ranges::max(found->second) < least_depth)
                continue;
            json kilobytes = json::array();
            for (const std::uint32_t bytes : found->second)
                kilobytes.push_back((bytes + 500) / 1000);
            list.push_back({{"port", (arrivals ? port->peer : port.get())->label()},
                            {"priority", to_string(priority)},
                            {"kb", kilobytes}});
        }
    return list;
}

json pauses_json(const Topology &topology, const RunResult &run) {
    json list = json::array();
    for (const auto &port : topology.ports())
        for (const Priority priority : priorities) {
            json spans = json::array();
            for (const PauseInterval &pause : run.pauses)
                if (pause.port == port.get() && pause.priority == priority)
                    spans.push_back({seconds_after(pause.start_ns, run.start_ns),
                                     seconds_after(pause.end_ns, run.start_ns)});
            if (!spans.empty())
                list.push_back(
                    {{"port", port->label()}, {"priority", to_string(priority)}, {"spans", spans}});
        }
    return list;
}

json events_json(const RunResult &run) {
    constexpr std::array names = {"mark", "release", "cip"}; // by AgentEvent::Kind
    json list = json::array();
    for (const AgentEvent &event : run.record.events)
        list.push_back({{"t", seconds_after(event.time_ns, run.start_ns)},
                        {"kind", names.at(static_cast<std::size_t>(event.kind))},
                        {"node", event.node->name},
                        {"port", event.port},
                        {"flow", event.flow}});
    return list;
}

json series_json(const Topology &topology, const Scenario &scenario, const RunResult &run) {
    json victims = json::array(), times = json::array();
    for (const VictimResult &victim : run.victims)
        victims.push_back(victim_json(victim, run.start_ns));
    for (const std::uint64_t time : run.record.times_ns)
        times.push_back(seconds_after(time, run.start_ns));
    return {{"victims", victims},
            {"times", times},
            {"queues", depths_json(topology, run.record.queues, false)},
            {"arrivals", !pauses(scenario, run.scheme) ? json::array()
                                                       : depths_json(topology, run.record.occupancies, true)},
            {"pauses", pauses_json(topology, run)},
            {"events", events_json(run)}};
}

/// Keeps a text from ending the script element that it stands in.
std::string for_script(std::string text) {
    for (std::size_t at = 0; (at = text.find("</", at)) != std::string::npos; at += 3)
        text.replace(at, 2, "<\\/");
    return text;
}

template <class T>
void put(std::ostream &out, T value) {
    out.write(reinterpret_cast<const char *>(&value), sizeof value);
}

} // namespace

void Report::add(const Topology &topology, const ScenarioResult &result) {
    json scenario = to_json(topology, result);
    scenario["text"] = result.scenario.text;
    scenario["drawing"] = result.scenario.drawing;
    scenario["flow_control"] = flow_control_text(result);
    scenario["low_kb"] = waterline_low / 1000;
    scenario["high_kb"] = waterline_high / 1000;
    for (std::size_t i = 0; i < result.runs.size(); ++i) {
        const RunResult &run = result.runs[i];
        json &entry = scenario["runs"][i];
        entry["title"] = title_of(result.scenario, run.scheme);
        entry["row"] = table_row(topology, result.scenario, run);
        entry["series"] = series_json(topology, result.scenario, run);
    }
    scenario["columns"] = table_columns();
    scenarios_.push_back(std::move(scenario));
}

std::string Report::html() const {
    std::array<char, 64> date{};
    const std::time_t now = std::time(nullptr);
    std::tm utc{};
    std::strftime(date.data(), date.size(), "%Y-%m-%d %H:%M UTC", ::gmtime_r(&now, &utc));
    const json data = {{"version", SPILLWAY_VERSION}, {"date", date.data()}, {"scenarios", scenarios_}};
    std::string page(report_page);
    const auto at = page.find(placeholder);
    return page.replace(at, placeholder.size(), for_script(data.dump()));
}

void write_pcap(std::ostream &out, const std::vector<PauseArrival> &frames) {
    timespec real{};
    ::clock_gettime(CLOCK_REALTIME, &real);
    const std::uint64_t offset = static_cast<std::uint64_t>(real.tv_sec) * 1'000'000'000 +
                                 static_cast<std::uint64_t>(real.tv_nsec) - now_ns();
    put(out, std::uint32_t{0xA1B23C4D}); // times in nanoseconds
    put(out, std::uint16_t{2});
    put(out, std::uint16_t{4});
    put(out, std::uint64_t{0});
    put(out, std::uint32_t{65535});
    put(out, std::uint32_t{1}); // Ethernet
    for (const PauseArrival &frame : frames) {
        const std::uint64_t time = frame.time_ns + offset;
        put(out, static_cast<std::uint32_t>(time / 1'000'000'000));
        put(out, static_cast<std::uint32_t>(time % 1'000'000'000));
        for (int i = 0; i < 2; ++i) // captured, and on the wire
            put(out, static_cast<std::uint32_t>(frame.bytes.size()));
        out.write(reinterpret_cast<const char *>(frame.bytes.data()),
                  static_cast<std::streamsize>(frame.bytes.size()));
    }
}

} // namespace spillway::lab
