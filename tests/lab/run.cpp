// SPDX-License-Identifier: Apache-2.0
#include "tests/lab/run.h"

#include "tests/temporary_folder.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <set>
#include <stdexcept>
#include <thread>

namespace spillway::lab {

namespace {

constexpr double lead = 0.5;                         // seconds that the victims run before the elephants
constexpr unsigned reaction_rounds = 20;             // of measuring an idle fabric
constexpr std::uint64_t reaction_factor = 10;        // a busy machine is slower than an idle one
constexpr std::uint64_t start_up_ns = 1'000'000'000; // of the elephants, until all are at work
constexpr unsigned most_attempts = 3;
constexpr std::uint64_t reaction_least_ns = 60'000'000;
constexpr std::uint64_t frame = 1514;            // bytes
constexpr int send_buffer = 100'000;             // bytes: the sockets of UDP elephants block behind this
constexpr std::uint64_t host_limit = 32'000'000; // bytes: more than all sockets of a host may have waiting
constexpr std::uint64_t drain_limit_ns = 30'000'000'000;
constexpr std::uint64_t look_ns = 20'000'000;
constexpr std::uint64_t never = std::uint64_t{1} << 62U; // bytes: XOFF without flow control

volatile std::sig_atomic_t interrupt = 0;

void on_interrupt(int number) {
    interrupt = number;
}

void check_interrupt() {
    if (interrupt != 0)
        throw std::runtime_error("interrupted");
}

void sleep_until(std::uint64_t time_ns) {
    while (now_ns() < time_ns) {
        check_interrupt();
        const std::uint64_t left = time_ns - std::min(now_ns(), time_ns);
        std::this_thread::sleep_for(std::chrono::nanoseconds(std::min<std::uint64_t>(left, 50'000'000)));
    }
}

std::uint64_t to_ns(double seconds) {
    return static_cast<std::uint64_t>(seconds * 1e9);
}

bool has_phases(const Scenario &scenario) {
    return std::ranges::any_of(scenario.elephants,
                               [](const Elephant &elephant) { return elephant.pause_after > 0; });
}

std::vector<RoundTrip> read_series(const std::string &file) {
    std::ifstream in(file);
    std::vector<RoundTrip> series;
    std::uint64_t sent = 0;
    for (std::int64_t round_trip = 0; in >> sent >> round_trip;)
        series.push_back({sent, round_trip < 0 ? std::nullopt : std::optional<std::uint64_t>(round_trip)});
    return series;
}

/// One elephant on its way: what sends and what receives.
struct RunningElephant {
    const Elephant *elephant;
    Traffic receiver;
    std::optional<Traffic> sender = {};
};

std::string sender_command(const Elephant &elephant, const std::string &to, unsigned number, double seconds,
                           bool low) {
    const unsigned port = elephant_port + number;
    const unsigned dscp = low ? 1 : 0;
    if (elephant.tcp())
        return fmt::format("tcp-send --to {} --port {} --flows {} --seconds {} --dscp {}", to, port,
                           elephant.flows, seconds, dscp);
    std::string command = fmt::format("flood --to {} --port {} --mbit {} --dscp {} --send-buffer {}", to,
                                      port, elephant.mbit, dscp, send_buffer);
    if (elephant.pause_after == 0)
        return command + fmt::format(" --seconds {}", seconds);
    const double rest = seconds - elephant.pause_after - elephant.pause_seconds;
    return command + fmt::format(" --seconds {} --then 0:{} --then {}:{}", elephant.pause_after,
                                 elephant.pause_seconds, elephant.mbit, rest);
}

ElephantResult collect(RunningElephant &running) {
    const Elephant &elephant = *running.elephant;
    const nlohmann::json sent = running.sender->result();
    const nlohmann::json received = running.receiver.stop();
    ElephantResult result{.name = fmt::format("{} → {}", elephant.from, elephant.to),
                          .mbit = received.at("mbit")};
    if (elephant.tcp()) {
        result.retransmits = sent.at("retransmits");
        return result;
    }
    result.lost = sent.at("packets").get<std::uint64_t>() - received.at("received").get<std::uint64_t>();
    result.late = received.at("late");
    result.blocked = sent.at("refused");
    return result;
}

/// Of sorted values.
double quantile(const std::vector<double> &values, double part) {
    if (values.empty())
        return 0;
    const auto rank = static_cast<std::size_t>(std::ceil(part * static_cast<double>(values.size())));
    return values[std::max<std::size_t>(rank, 1) - 1];
}

void judge(VictimResult &victim, std::uint64_t start_ns, std::uint64_t end_ns) {
    std::vector<double> times;
    for (const RoundTrip &trip : victim.round_trips)
        if (trip.ns && trip.sent_ns >= start_ns && trip.sent_ns < end_ns)
            times.push_back(static_cast<double>(*trip.ns) / 1e6);
    std::ranges::sort(times);
    victim.p50_ms = quantile(times, 0.50);
    victim.p99_ms = quantile(times, 0.99);
    victim.max_ms = quantile(times, 1);
}

std::vector<MarkSpan> spans(const Record &record) {
    std::vector<MarkSpan> all;
    for (const AgentEvent &event : record.events) {
        if (!is_elephant_port(event.destination_port))
            continue;
        if (event.kind == AgentEvent::Kind::marked)
            all.push_back({event.node, event.port, event.flow, event.destination_port, event.time_ns, {}});
        if (event.kind == AgentEvent::Kind::released)
            for (MarkSpan &span : all)
                if (span.node == event.node && span.port == event.port && span.flow == event.flow &&
                    !span.released_ns)
                    span.released_ns = event.time_ns;
    }
    return all;
}

} // namespace

// RunResult

double RunResult::paused(const Port &port, Priority priority, std::uint64_t from_ns) const {
    double seconds = 0;
    for (const PauseInterval &pause : pauses)
        if (pause.port == &port && pause.priority == priority && pause.end_ns > from_ns)
            seconds += static_cast<double>(pause.end_ns - std::max(pause.start_ns, from_ns)) / 1e9;
    return seconds;
}

std::vector<const Port *> RunResult::paused_ports(const Topology &topology, Priority priority,
                                                  std::uint64_t from_ns) const {
    std::vector<const Port *> ports;
    for (const auto &port : topology.ports())
        if (paused(*port, priority, from_ns) > 0)
            ports.push_back(port.get());
    return ports;
}

std::optional<std::uint64_t> RunResult::marked_everywhere_ns() const {
    std::map<std::tuple<const Node *, std::string, std::string>, std::uint64_t> first;
    for (const MarkSpan &mark : marks)
        first.emplace(std::tuple(mark.node, mark.port, mark.flow), mark.marked_ns);
    std::optional<std::uint64_t> last;
    for (const auto &[key, time] : first)
        last = std::max(last.value_or(0), time);
    return last;
}

// DeepBacklog

namespace {

constexpr const char *backlog_setting = "/proc/sys/net/core/netdev_max_backlog";
constexpr unsigned deep_backlog = 20'000; // packets

void set_backlog(unsigned packets) {
    std::ofstream file(backlog_setting);
    file << packets << std::flush;
    if (!file)
        throw std::runtime_error(fmt::format("cannot set {} to {}", backlog_setting, packets));
}

} // namespace

DeepBacklog::DeepBacklog() {
    unsigned now = 0;
    std::ifstream(backlog_setting) >> now;
    if (now >= deep_backlog)
        return;
    set_backlog(deep_backlog);
    before_ = now;
}

DeepBacklog::~DeepBacklog() {
    if (before_ == 0)
        return;
    std::ofstream file(backlog_setting);
    file << before_; // deeper than before does no harm
}

// Laboratory

Laboratory::Laboratory(const Scenario &scenario, std::optional<double> seconds)
    : scenario_(scenario),
      seconds_(has_phases(scenario) ? scenario.seconds : seconds.value_or(scenario.seconds)) {
    scenario_.build(topology_);
    // Generous queues for measuring how fast the neighbours react; then as much as that asks for.
    topology_.make_queues([](const Port &) { return host_limit; });
    occupancy_ = std::make_unique<Occupancy>(topology_);
    engine_ = std::make_unique<PauseEngine>(topology_, *occupancy_);
    std::vector<std::uint64_t> reactions = engine_->measure_reaction(reaction_rounds);
    std::ranges::sort(reactions);
    reaction_ns_ = reactions[reactions.size() * 19 / 20];
    engine_->start();
}

std::uint64_t Laboratory::headroom_ns() const {
    return std::max(reaction_factor * reaction_ns_, reaction_least_ns);
}

std::uint64_t Laboratory::headroom(const Port &port) const {
    // What the link carries meanwhile, the packet that slips through the gate, and one on its way each side.
    return port.rate / 8 * headroom_ns() / 1'000'000'000 + 3 * frame;
}

nlohmann::json Laboratory::agent_config(const Node &node, Scheme scheme) const {
    const bool local = scheme == Scheme::local;
    const bool judges = node.is_switch && (!local || node.name == scenario_.congested);
    nlohmann::json ports = nlohmann::json::array();
    for (const Port *port : node.ports) {
        nlohmann::json queue = {{"class", queue_ids(Priority::normal).classid_text},
                                {"isolate_class", queue_ids(Priority::low).classid_text}};
        if (judges)
            queue["waterline"] = {{"low", waterline_low}, {"high", waterline_high}};
        ports.push_back({{"name", port->name},
                         {"send_cip", !local},
                         {"cip_class", "1:5"},
                         {"queues", {queue}},
                         {"rewrite", {{"dscp", LAB_LOW_DSCP}}}});
    }
    // Another EtherType than slow protocols': it may carry more than ten CIPs a second.
    return {{"ports", ports}, {"cip", {{"ethertype", "0x88B5"}}}, {"flows", {{"capacity", 1024}}}};
}

void Laboratory::start_agents(Scheme scheme) {
    if (scheme != Scheme::local && scheme != Scheme::spillway)
        return;
    for (const auto &node : topology_.nodes()) {
        if (std::ranges::find(scenario_.plain, node->name) != scenario_.plain.end())
            continue;
        agents_.push_back(std::make_unique<Agent>(*node->ns, agent_config(*node, scheme)));
        instances_[node.get()] = agents_.back()->instance();
    }
}

void Laboratory::set_flow_control(Scheme scheme) {
    const bool pfc = pauses(scenario_, scheme);
    topology_.make_queues([&](const Port &port) {
        if (!port.node->is_switch)
            return host_limit;
        // Both priorities of every arrival port may end up in one queue: an isolated flow arrives with the
        // normal priority and leaves with the low one. Without flow control a queue is like one priority's.
        std::uint64_t limit = 0;
        for (const Port *arrival : port.node->ports)
            limit += priorities.size() * (scenario_.xoff + headroom(*arrival));
        return pfc ? limit : scenario_.xoff;
    });
    for (const auto &port : topology_.ports())
        if (port->node->is_switch)
            occupancy_->begin(*port, pfc ? scenario_.xoff : never, pfc ? scenario_.xon : never);
}

void Laboratory::await_empty(const Recorder &recorder) const {
    const std::uint64_t since = now_ns();
    while (recorder.waiting() > 0 && now_ns() - since < drain_limit_ns)
        sleep_until(now_ns() + look_ns);
    sleep_until(now_ns() + 2 * look_ns); // a look may be old, and a packet on its way
    engine_->rethrow_failure();
    if (recorder.waiting() > 0)
        throw std::runtime_error(
            fmt::format("packets still wait {} s after the traffic ended", drain_limit_ns / 1'000'000'000));
}

void Laboratory::fill_in_queues(RunResult &result) {
    for (const auto &[queue, drops] : result.record.drops)
        result.dropped += drops;
    for (const auto &port : topology_.ports())
        for (const Priority priority : priorities) {
            const volatile lab_occupancy &slot = occupancy_->of(*port, priority);
            if (!port->node->is_switch || !pauses(scenario_, result.scheme))
                continue;
            if (slot.peak > slot.xoff)
                result.overshoot = std::max<std::uint64_t>(result.overshoot, slot.peak - slot.xoff);
            if (const std::int64_t bytes = slot.bytes; bytes != 0)
                result.vanished += static_cast<std::uint64_t>(std::abs(bytes));
        }
}

double Laboratory::elephants_mbit(const RunResult &result) const {
    const auto &times = result.record.times_ns;
    const auto first = std::ranges::lower_bound(times, result.start_ns + start_up_ns);
    const auto last = std::ranges::lower_bound(times, result.end_ns);
    if (first >= last || last == times.end())
        return 0;
    std::set<const Port *> ports; // of the last switches
    for (const Elephant &elephant : scenario_.elephants)
        ports.insert(topology_.node(elephant.to).ports.front()->peer);
    std::uint64_t bytes = 0;
    for (const Port *port : ports)
        for (const Priority priority : priorities) {
            const auto &sent = result.record.sent.at({port, priority});
            bytes += sent.at(static_cast<std::size_t>(last - times.begin())) -
                     sent.at(static_cast<std::size_t>(first - times.begin()));
        }
    return static_cast<double>(bytes) * 8e3 / static_cast<double>(*last - *first);
}

RunResult Laboratory::run(Scheme scheme) {
    const auto run_in_order = [&] {
        try {
            return run_once(scheme);
        } catch (...) {
            if (interrupted() != 0)
                agents_.clear(); // here, lest they take it for a failure and show their logs
            throw;
        }
    };
    RunResult best = run_in_order();
    while (best.record.stall_ns > stall_limit_ns && best.attempts < most_attempts) {
        RunResult next = run_in_order();
        next.attempts = ++best.attempts;
        if (next.record.stall_ns < best.record.stall_ns)
            best = std::move(next);
    }
    return best;
}

RunResult Laboratory::run_once(Scheme scheme) {
    const TemporaryFolder scratch("lab");
    RunResult result;
    result.scheme = scheme;
    set_flow_control(scheme);
    instances_.clear();
    start_agents(scheme);
    engine_->take_record(); // forget what was before

    std::vector<Traffic> reflectors;
    std::vector<RunningElephant> elephants;
    for (std::size_t i = 0; i < scenario_.victims.size(); ++i)
        reflectors.emplace_back(*topology_.node(scenario_.victims[i].to).ns,
                                fmt::format("reflect --port {}", victim_port + i));
    for (std::size_t i = 0; i < scenario_.elephants.size(); ++i)
        elephants.push_back(
            {&scenario_.elephants[i],
             Traffic(*topology_.node(scenario_.elephants[i].to).ns,
                     fmt::format("{} --port {}", scenario_.elephants[i].tcp() ? "tcp-sink" : "sink",
                                 elephant_port + i))});

    Recorder recorder(topology_, *occupancy_, instances_);
    std::vector<Traffic> probes;
    for (std::size_t i = 0; i < scenario_.victims.size(); ++i) {
        const Victim &victim = scenario_.victims[i];
        probes.emplace_back(*topology_.node(victim.from).ns,
                            fmt::format("probe --to {} --port {} --seconds {} --patience {} --series {}",
                                        topology_.node(victim.to).address(), victim_port + i, lead + seconds_,
                                        scenario_.patience,
                                        (scratch.path() / fmt::format("victim{}", i)).string()));
    }
    sleep_until(now_ns() + to_ns(lead));
    result.start_ns = now_ns();
    for (std::size_t i = 0; i < elephants.size(); ++i) {
        const Elephant &elephant = *elephants[i].elephant;
        elephants[i].sender.emplace(*topology_.node(elephant.from).ns,
                                    sender_command(elephant, topology_.node(elephant.to).address(),
                                                   static_cast<unsigned>(i), seconds_,
                                                   scheme == Scheme::oracle));
    }
    result.end_ns = result.start_ns + to_ns(seconds_);
    sleep_until(result.end_ns);

    for (std::size_t i = 0; i < probes.size(); ++i) {
        const nlohmann::json seen = probes[i].result();
        VictimResult victim{
            .name = fmt::format("{} → {}", scenario_.victims[i].from, scenario_.victims[i].to),
            .round_trips = read_series((scratch.path() / fmt::format("victim{}", i)).string())};
        victim.sent = seen.at("sent");
        victim.lost = seen.at("lost");
        victim.late = seen.at("late");
        judge(victim, result.start_ns, result.end_ns);
        result.victims.push_back(std::move(victim));
    }
    await_empty(recorder);
    for (RunningElephant &elephant : elephants)
        result.elephants.push_back(collect(elephant));

    result.record = recorder.finish();
    PauseRecord pauses = engine_->take_record();
    result.pauses = std::move(pauses.pauses);
    result.frames = std::move(pauses.frames);
    result.frame_to_gate_ns = std::move(pauses.frame_to_gate_ns);
    result.crossing_to_gate_ns = std::move(pauses.crossing_to_gate_ns);
    result.marks = spans(result.record);
    for (const AgentEvent &event : result.record.events) {
        result.cips += event.kind == AgentEvent::Kind::cip ? 1 : 0;
        result.victims_marked +=
            event.kind == AgentEvent::Kind::marked && !is_elephant_port(event.destination_port) ? 1 : 0;
    }
    fill_in_queues(result);
    result.elephants_mbit = elephants_mbit(result);
    agents_.clear();
    return result;
}

void catch_interrupts() {
    struct sigaction action {};
    action.sa_handler = on_interrupt;
    ::sigaction(SIGINT, &action, nullptr);
    ::sigaction(SIGTERM, &action, nullptr);
}

int interrupted() {
    return interrupt;
}

} // namespace spillway::lab
