// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/explanation.h"

#include "agent/cli/views.h"
#include "agent/core/flow_text.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace spillway {
namespace {

constexpr std::uint64_t ns_per_ms = 1'000'000;

/// "in 240 ms", "12 ms ago".
std::string when(std::uint64_t now_ns, std::uint64_t then_ns) {
    const std::int64_t ms = spillway_since(then_ns, now_ns) / static_cast<std::int64_t>(ns_per_ms);
    return ms > 0 ? fmt::format("in {} ms", ms) : fmt::format("{} ms ago", -ms);
}

struct Lines {
    std::string text;
    void add(std::string_view label, std::string_view what) {
        text += fmt::format("  {:<10} {}\n", label, what);
    }
};

const spillway_flow *entry_of(const Snapshot &snapshot, const spillway_flow_key &key) {
    const auto found = std::ranges::find_if(snapshot.flows, [&key](const auto &entry) {
        return std::memcmp(&entry.first, &key, sizeof(key)) == 0;
    });
    return found == snapshot.flows.end() ? nullptr : &found->second;
}

std::string queue_text(const QueueRow &queue) {
    if (!queue.waterline)
        return fmt::format("{} has no waterline: it detects nothing", queue.queue_class);
    const auto &line = *queue.waterline;
    const bool packets = line.unit == "packets";
    const auto &amount = packets ? queue.backlog_packets : queue.backlog_bytes;
    const std::string lines =
        line.low == line.high ? fmt::format("{}", line.high) : fmt::format("{}..{}", line.low, line.high);
    return fmt::format("{} is {}: {} {} wait, waterline {}", queue.queue_class, queue.level,
                       amount ? fmt::format("{}", *amount) : "an unknown number of", line.unit, lines);
}

/// What the guard asks and has, in the window that `now` is in.
void add_guard(Lines &lines, const Snapshot &snapshot, const std::optional<spillway_suspect> &suspect) {
    const spillway_settings &set = snapshot.settings;
    if (set.guard == 0) {
        lines.add("guard", "off: any flow that enqueues above the waterline is marked");
        return;
    }
    const std::uint32_t window = spillway_window(snapshot.now_ns, set.window_ns);
    if (!suspect || suspect->queue >= snapshot.queues.size()) {
        lines.add("guard",
                  "has nothing of the flow: its queue was not above the low waterline when its packets came");
        return;
    }
    const spillway_queue &queue = snapshot.queues[suspect->queue];
    const std::array<__u64, 2> heaviest{queue.heaviest[0], queue.heaviest[1]};
    const std::uint32_t most = spillway_heaviest(heaviest.data(), suspect->window);
    const std::uint64_t asked = spillway_guard_asks(set.guard_min_bytes, set.guard_min_ratio, most);
    const std::uint32_t ago = window - suspect->window;
    lines.add("guard",
              fmt::format("{} bytes in {}, {} asked (the heaviest flow had {})", suspect->bytes,
                          ago == 0 ? std::string("this window")
                                   : fmt::format("a window {} ms ago", ago * (set.window_ns / ns_per_ms)),
                          asked, most));
}

void add_reasons(Lines &lines, const Snapshot &snapshot, const spillway_flow_key &key,
                 const spillway_flow &flow) {
    const spillway_mark_times times = times_of(snapshot, key, flow);
    const std::uint64_t now = snapshot.now_ns;
    if (flow.manual != 0)
        lines.add("manual", "marked by hand, until `spillway unmark`");
    const bool silent = spillway_idle(&flow, &times, now) != 0;
    if (const std::uint64_t until = spillway_local_until(&flow, &times))
        lines.add("local",
                  fmt::format("congested a queue here; {} {} unless a queue is above its low waterline",
                              silent ? "ended by silence, or else" : "ends", when(now, until)));
    if (const std::uint64_t until = spillway_cip_until(&flow, &times))
        lines.add("cip", fmt::format("a neighbour asked; {} {} unless another CIP comes",
                                     silent ? "ended by silence, or else" : "ends", when(now, until)));
    if (flow.light_windows != 0 && flow.state == SPILLWAY_STATE_ISOLATED)
        lines.add("light", fmt::format("for {} of {} windows in a row after which reason local ends",
                                       flow.light_windows, SPILLWAY_LIGHT_WINDOWS));
    lines.add("silent", fmt::format("last packet {}; {} ms of silence end local and cip",
                                    when(now, flow.last_seen_ns), snapshot.settings.idle_ns / ns_per_ms));
}

std::string headline(const FlowRow *row) {
    if (row == nullptr)
        return "not isolated: it has no mark";
    if (row->mark != "congested")
        return fmt::format("not isolated: it has the second mark; {} packets, {} bytes so far", row->packets,
                           row->bytes);
    const std::string into = row->isolation_class ? fmt::format(" into {}", *row->isolation_class) : "";
    if (row->state == "draining")
        return fmt::format("still isolated{}: no reason holds, but packets of it may wait there", into);
    return fmt::format("isolated{}: marked {} ms ago, first reason {}", into, row->age_ms,
                       row->origin.value_or("-"));
}

} // namespace

std::string explanation(const Snapshot &snapshot, const spillway_flow_key &key,
                        const std::optional<spillway_suspect> &suspect) {
    const auto rows = flow_rows(snapshot, true);
    const auto row = std::ranges::find_if(
        rows, [&key](const FlowRow &one) { return std::memcmp(&one.key, &key, sizeof(key)) == 0; });
    const StatusView status = status_view(snapshot);
    const auto port = std::ranges::find(status.ports, std::optional(key.port), &PortRow::ifindex);
    Lines lines;
    lines.text = fmt::format("{} on {}: {}\n", flow_text(key), port != status.ports.end() ? port->name : "?",
                             headline(row == rows.end() ? nullptr : &*row));
    if (status.mode == "panic")
        lines.add("panic", "every packet passes untouched, until `spillway resume`");
    if (status.mode == "observe")
        lines.add("observe", "nothing is marked or isolated, only counted");
    if (port != status.ports.end()) {
        if (port->waiting)
            lines.add("port", "waiting: " + *port->waiting);
        for (const std::string &reason : port->degraded)
            if (reason == "agent_stale")
                lines.add("agent", "not running, or stale: nothing new is marked");
        for (const QueueRow &queue : port->queues)
            lines.add("queue", queue_text(queue));
    }
    if (const spillway_flow *flow = entry_of(snapshot, key);
        flow != nullptr && flow->mark == SPILLWAY_MARK_CONGESTED)
        add_reasons(lines, snapshot, key, *flow);
    add_guard(lines, snapshot, suspect);
    if (row != rows.end() && row->upstream)
        lines.add("upstream", fmt::format("{} {}, {} CIPs sent", row->upstream->port, row->upstream->mac,
                                          row->cips_sent));
    else if (row != rows.end())
        lines.add("upstream", "none known: made on this host, or not looked for");
    return lines.text;
}

} // namespace spillway
