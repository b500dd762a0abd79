// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/views.h"

#include "agent/cli/table.h"
#include "agent/core/flow_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace spillway {
namespace {

using Line = std::vector<std::string>;

std::string number(const std::optional<std::uint64_t> &value) {
    return value ? fmt::format("{}", *value) : "-";
}

std::string waterline_text(const std::optional<WaterlineRow> &line) {
    if (!line)
        return "-";
    if (line->low == line->high)
        return fmt::format("{} {}", line->high, line->unit);
    return fmt::format("{}..{} {}", line->low, line->high, line->unit);
}

std::string list_text(const std::vector<std::string> &list) {
    return list.empty() ? "-" : fmt::format("{}", fmt::join(list, ","));
}

/// How flows of a queue are isolated: "1:20,1:21 dscp 1".
std::string isolation_text(const QueueRow &queue, const std::optional<RewriteRow> &rewrite) {
    std::vector<std::string> ways;
    if (!queue.isolate_class.empty())
        ways.push_back(list_text(queue.isolate_class));
    if (rewrite && rewrite->pcp)
        ways.push_back(fmt::format("{} {}", rewrite->tag_untagged ? "tag+pcp" : "pcp", *rewrite->pcp));
    if (rewrite && rewrite->dscp)
        ways.push_back(fmt::format("dscp {}", *rewrite->dscp));
    if (rewrite && rewrite->ecn)
        ways.emplace_back("ecn");
    return ways.empty() ? "-" : fmt::format("{}", fmt::join(ways, " "));
}

std::string state_text(const PortRow &port) {
    if (port.waiting)
        return "waiting: " + *port.waiting;
    return port.tc == "off" ? "detached" : "served";
}

/// "too_short 3, quota 1": what happened at all.
std::string counts_text(const NamedCounts &counts) {
    std::vector<std::string> parts;
    for (const auto &[name, count] : counts) {
        if (count != 0)
            parts.push_back(fmt::format("{} {}", name, count));
    }
    return fmt::format("{}", fmt::join(parts, ", "));
}

std::string duration_text(std::uint64_t milliseconds) {
    if (milliseconds < 1000)
        return fmt::format("{}ms", milliseconds);
    const std::uint64_t seconds = milliseconds / 1000;
    if (seconds < 60)
        return fmt::format("{}.{}s", seconds, milliseconds % 1000 / 100);
    if (seconds < 3600)
        return fmt::format("{}m{:02}s", seconds / 60, seconds % 60);
    return fmt::format("{}h{:02}m", seconds / 3600, seconds % 3600 / 60);
}

std::string ports_text(const std::vector<PortRow> &ports) {
    std::vector<Line> lines;
    for (const auto &port : ports) {
        std::uint64_t rejected = 0;
        for (const auto &[name, count] : port.rejected)
            rejected += count;
        lines.push_back({port.name, state_text(port), port.xdp, port.tc, port.source.value_or("-"),
                         number(port.cip_sent), number(port.cip_received), number(port.cip_accepted),
                         number(rejected), list_text(port.degraded)});
    }
    return table({{"PORT"},
                  {"STATE"},
                  {"TRAP"},
                  {"TC"},
                  {"SOURCE"},
                  {"CIP-SENT", Align::right},
                  {"RECEIVED", Align::right},
                  {"ACCEPTED", Align::right},
                  {"REJECTED", Align::right},
                  {"DEGRADED"}},
                 lines);
}

std::string queues_text(const std::vector<PortRow> &ports) {
    std::vector<Line> lines;
    for (const auto &port : ports) {
        for (const auto &queue : port.queues)
            lines.push_back({port.name, queue.queue_class, isolation_text(queue, port.rewrite), queue.level,
                             number(queue.backlog_bytes), number(queue.backlog_packets),
                             waterline_text(queue.waterline), number(queue.marked_total),
                             number(queue.restored_total)});
    }
    if (lines.empty())
        return "";
    return "\n" + table({{"PORT"},
                         {"QUEUE"},
                         {"ISOLATES"},
                         {"LEVEL"},
                         {"BYTES", Align::right},
                         {"PACKETS", Align::right},
                         {"WATERLINE"},
                         {"MARKED", Align::right},
                         {"RESTORED", Align::right}},
                        lines);
}

} // namespace

std::string status_text(const StatusView &view) {
    std::string text = fmt::format("instance  {}, {}\n", view.instance, view.mode);
    if (view.mode == "panic")
        text +=
            fmt::format("          every packet passes untouched, until `spillway --instance {} resume`\n",
                        view.instance);
    if (view.mode == "observe") {
        std::uint64_t would_mark = 0;
        for (const auto &port : view.ports)
            for (const auto &queue : port.queues)
                would_mark += queue.would_mark_total;
        text += fmt::format("          no packet is changed, nothing is sent; would have marked {} times\n",
                            would_mark);
    }
    if (!view.agent_running)
        text += "agent     not running\n";
    else if (view.pid)
        text += fmt::format("agent     running, pid {}, version {}\n", *view.pid,
                            view.version.value_or("unknown"));
    else
        text += "agent     starting\n";
    text += fmt::format("flows     {} congested, {} in a table of {}\n", view.flows_congested,
                        view.flows_entries, view.flows_capacity);
    if (const auto lost = counts_text(view.lost); !lost.empty())
        text += fmt::format("lost      {}\n", lost);
    for (const auto &port : view.ports) {
        if (const auto rejected = counts_text(port.rejected); !rejected.empty())
            text += fmt::format("rejected  {}: {}\n", port.name, rejected);
    }
    if (!view.ports.empty())
        text += "\n" + ports_text(view.ports) + queues_text(view.ports);
    return text;
}

std::string flows_text(const std::vector<FlowRow> &rows) {
    if (rows.empty())
        return "no congested flows\n";
    std::vector<Line> lines;
    lines.reserve(rows.size());
    for (const auto &row : rows)
        lines.push_back({flow_text(row.key), row.port, row.isolation_class.value_or("-"), row.state,
                         row.origin.value_or("-"), duration_text(row.age_ms), duration_text(row.idle_ms),
                         number(row.packets), number(row.bytes),
                         row.upstream ? row.upstream->port + " " + row.upstream->mac : "-",
                         number(row.cips_sent)});
    return table({{"FLOW"},
                  {"PORT"},
                  {"CLASS"},
                  {"STATE"},
                  {"ORIGIN"},
                  {"AGE", Align::right},
                  {"IDLE", Align::right},
                  {"PACKETS", Align::right},
                  {"BYTES", Align::right},
                  {"UPSTREAM"},
                  {"CIPS", Align::right}},
                 lines);
}

} // namespace spillway
