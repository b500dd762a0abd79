// SPDX-License-Identifier: Apache-2.0
#include "tests/lab/recorder.h"

#include "agent/core/flow_text.h"

#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <pthread.h>
#include <stdexcept>

namespace spillway::lab {

namespace {

constexpr auto period = std::chrono::milliseconds(20);
// A look holds the kernel's network configuration lock, and the pause engine waits for it: on with it.
constexpr int thread_priority = 3;

template <class T>
T value_of(Result<T> result) {
    if (!result)
        throw std::runtime_error(result.error().text());
    if constexpr (!std::is_void_v<T>)
        return std::move(*result);
}

const Port *find_port(const Node &node, int ifindex) {
    const auto found = std::ranges::find(node.ports, ifindex, &Port::ifindex);
    return found == node.ports.end() ? nullptr : *found;
}

} // namespace

Recorder::Recorder(const Topology &topology, Occupancy &occupancy,
                   const std::map<const Node *, std::string> &instances)
    : topology_(topology), occupancy_(occupancy) {
    for (const auto &node : topology.nodes())
        node->ns->call([&] { netlinks_.emplace_back(node.get(), value_of(Netlink::open())); });
    for (const auto &[node, instance] : instances)
        agents_.push_back({node, value_of(Maps::open(Paths(instance))), {}, {}});
    look();
    old_drops_ = std::exchange(record_, {}).drops;
    thread_ = std::thread([this] { run(); });
    const sched_param parameters{.sched_priority = thread_priority};
    ::pthread_setschedparam(thread_.native_handle(), SCHED_FIFO, &parameters); // else it is just slower
}

Recorder::~Recorder() {
    stop_ = true;
    if (thread_.joinable())
        thread_.join();
}

Record Recorder::finish() {
    stop_ = true;
    thread_.join();
    if (failure_)
        std::rethrow_exception(failure_);
    look();
    for (auto &[queue, drops] : record_.drops)
        drops -= old_drops_[queue];
    std::ranges::sort(record_.events, {}, &AgentEvent::time_ns);
    return std::move(record_);
}

void Recorder::run() {
    try {
        using Clock = std::chrono::steady_clock; // of now_ns() too
        for (auto due = Clock::now(); !stop_; due += period) {
            std::this_thread::sleep_until(due);
            look();
            const std::chrono::nanoseconds took = Clock::now() - due;
            record_.stall_ns = std::max(record_.stall_ns, static_cast<std::uint64_t>(took.count()));
        }
    } catch (...) {
        failure_ = std::current_exception();
    }
}

void Recorder::look() {
    const std::uint64_t now = now_ns();
    record_.times_ns.push_back(now);
    for (auto &[node, netlink] : netlinks_)
        look_at_queues(netlink, *node);
    std::uint64_t waiting = 0;
    for (const auto &[queue, depths] : record_.queues)
        waiting += depths.back();
    waiting_ = waiting;
    for (const auto &port : topology_.ports())
        if (port->node->is_switch)
            for (const Priority priority : priorities) {
                const std::int64_t bytes = occupancy_.of(*port, priority).bytes;
                record_.occupancies[{port.get(), priority}].push_back(
                    static_cast<std::uint32_t>(std::max<std::int64_t>(bytes, 0)));
            }
    for (AgentView &view : agents_)
        look_at_agent(view, now);
}

void Recorder::look_at_queues(Netlink &netlink, const Node &node) {
    std::vector<QueueReading> readings;
    value_of(netlink.read_queues(readings));
    for (const QueueReading &reading : readings)
        for (const Priority priority : priorities) {
            const Port *port = find_port(node, reading.ifindex);
            if (port == nullptr || reading.handle != queue_ids(priority).handle)
                continue;
            record_.queues[{port, priority}].push_back(reading.counters.backlog_bytes);
            record_.sent[{port, priority}].push_back(reading.counters.sent_bytes);
            record_.drops[{port, priority}] = reading.counters.drops;
        }
}

void Recorder::look_at_agent(AgentView &view, std::uint64_t now) {
    const auto note = [&](AgentEvent::Kind kind, std::uint64_t time, std::uint32_t ifindex,
                          const std::string &flow, std::uint16_t destination) {
        const Port *port = find_port(*view.node, static_cast<int>(ifindex));
        record_.events.push_back(
            {time, kind, view.node, port == nullptr ? "" : port->name, flow, destination});
    };
    decltype(view.marked) marked;
    for (const auto &[key, flow] : value_of(view.maps.read_flows()))
        if (flow.mark == SPILLWAY_MARK_CONGESTED)
            marked[{key.port, flow_text(key)}] = {key.dport, flow.marked_ns};
    for (const auto &[flow, mark] : marked)
        if (const auto old = view.marked.find(flow);
            old == view.marked.end() || old->second.since_ns != mark.since_ns)
            note(AgentEvent::Kind::marked, mark.since_ns, flow.first, flow.second, mark.destination_port);
    for (const auto &[flow, mark] : view.marked)
        if (!marked.contains(flow))
            note(AgentEvent::Kind::released, now, flow.first, flow.second, mark.destination_port);
    view.marked = std::move(marked);

    for (const auto &[key, total] : value_of(view.maps.read_counters()))
        if (key.second == SPILLWAY_CIP_RECEIVED)
            for (std::uint64_t &seen = view.cips[key.first]; seen < total; ++seen)
                note(AgentEvent::Kind::cip, now, key.first, "", 0);
}

} // namespace spillway::lab
