// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/views.h"

#include "agent/config/class_id.h"
#include "agent/core/flow_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tuple>

namespace spillway {
namespace {

constexpr std::uint64_t ns_per_ms = 1'000'000;
constexpr std::uint64_t ns_per_second = 1'000'000'000;

struct CounterName {
    spillway_counter counter;
    const char *name;
};

constexpr auto rejected_names = std::to_array<CounterName>({
    {SPILLWAY_REJECTED_TOO_SHORT, "too_short"},
    {SPILLWAY_REJECTED_BAD_VERSION, "bad_version"},
    {SPILLWAY_REJECTED_BAD_HEADER, "bad_header"},
    {SPILLWAY_REJECTED_TOO_MANY_EXTENSIONS, "too_many_extensions"},
    {SPILLWAY_REJECTED_NOT_IP, "not_ip"},
    {SPILLWAY_REJECTED_TOO_MANY_TAGS, "too_many_tags"},
    {SPILLWAY_REJECTED_NESTED_TUNNEL, "nested_tunnel"},
    {SPILLWAY_REJECTED_BAD_TYPE, "bad_type"},
    {SPILLWAY_REJECTED_BAD_FAMILY, "bad_family"},
    {SPILLWAY_REJECTED_BAD_FLAGS, "bad_flags"},
    {SPILLWAY_REJECTED_NOT_ACCEPTED, "not_accepted"},
    {SPILLWAY_REJECTED_RATE_LIMITED, "rate_limited"},
    {SPILLWAY_REJECTED_TABLE_FULL, "table_full"},
    {SPILLWAY_REJECTED_QUOTA, "quota"},
});

constexpr auto lost_names = std::to_array<CounterName>({
    {SPILLWAY_LOST_EVENTS, "events"},
    {SPILLWAY_LOST_TABLE_FULL, "table_full"},
    {SPILLWAY_LOST_CIP_RATE, "cip_rate"},
    {SPILLWAY_LOST_CIP_SEND, "cip_send"},
    {SPILLWAY_LOST_NO_UPSTREAM, "no_upstream"},
    {SPILLWAY_LOST_SUSPECTS, "suspects"},
    {SPILLWAY_LOST_PARSE, "parse"},
    {SPILLWAY_LOST_ENTRIES, "entries"},
    {SPILLWAY_LOST_HANDOVER, "handover"},
});

struct DegradedName {
    std::uint32_t bit;
    const char *name;
};

constexpr auto degraded_names = std::to_array<DegradedName>({
    {SPILLWAY_DEGRADED_POLL_ONLY, "poll_only"},
    {SPILLWAY_DEGRADED_TC_TRAP, "tc_trap"},
    {SPILLWAY_DEGRADED_GENERIC_XDP, "generic_xdp"},
    {SPILLWAY_DEGRADED_DRAIN_UNKNOWN, "drain_unknown"},
    {SPILLWAY_DEGRADED_CLSACT, "clsact"},
});

/// The fixed array of a map's value as a string, whether or not it ends in a NUL.
template <std::size_t size>
std::string text_of(const char (&field)[size]) {
    return {field, ::strnlen(field, size)};
}

/// Time passed, never negative: the two clocks may have been read on two CPUs.
std::uint64_t passed(std::uint64_t now_ns, std::uint64_t then_ns) {
    const auto since = spillway_since(now_ns, then_ns);
    return since > 0 ? static_cast<std::uint64_t>(since) : 0;
}

std::optional<std::string> class_text(std::uint32_t classid) {
    return classid == 0 ? std::nullopt : std::optional(ClassId{classid}.text());
}

std::string trap_name(spillway_trap trap) {
    switch (trap) {
    case SPILLWAY_TRAP_OFF:
        return "off";
    case SPILLWAY_TRAP_NATIVE:
        return "native";
    case SPILLWAY_TRAP_GENERIC:
        return "generic";
    case SPILLWAY_TRAP_TC:
        return "tc";
    }
    return "unknown";
}

std::string attach_name(spillway_attach attach) {
    switch (attach) {
    case SPILLWAY_ATTACH_OFF:
        return "off";
    case SPILLWAY_ATTACH_TCX:
        return "tcx";
    case SPILLWAY_ATTACH_CLSACT:
        return "clsact";
    }
    return "unknown";
}

std::optional<std::string> source_name(std::uint32_t source) {
    switch (source) {
    case SPILLWAY_SOURCE_KERNEL:
        return "kernel";
    case SPILLWAY_SOURCE_POLL:
        return "poll";
    default:
        return std::nullopt;
    }
}

std::string level_name(spillway_level level) {
    switch (level) {
    case SPILLWAY_LEVEL_UNKNOWN:
        return "unknown";
    case SPILLWAY_LEVEL_BELOW:
        return "below";
    case SPILLWAY_LEVEL_BETWEEN:
        return "between";
    case SPILLWAY_LEVEL_ABOVE:
        return "above";
    }
    return "unknown";
}

std::string state_name(spillway_state state) {
    switch (state) {
    case SPILLWAY_STATE_NORMAL:
        return "normal";
    case SPILLWAY_STATE_ISOLATED:
        return "isolated";
    case SPILLWAY_STATE_DRAINING:
        return "draining";
    }
    return "unknown";
}

std::string origin_name(spillway_origin origin) {
    switch (origin) {
    case SPILLWAY_ORIGIN_NONE:
        break;
    case SPILLWAY_ORIGIN_LOCAL:
        return "local";
    case SPILLWAY_ORIGIN_CIP:
        return "cip";
    case SPILLWAY_ORIGIN_MANUAL:
        return "manual";
    }
    return "unknown";
}

/// The agent's reading of the queue shows it as it is now: the agent lives, and read it a moment ago.
bool is_fresh(const Snapshot &snapshot, const spillway_leaf &leaf) {
    return snapshot.agent_running && leaf.generation != 0 && leaf.read_ns != 0 &&
           passed(snapshot.now_ns, leaf.read_ns) <
               std::max<std::uint64_t>(ns_per_second, snapshot.settings.stale_ns);
}

QueueRow queue_row(const Snapshot &snapshot, const spillway_queue &queue) {
    QueueRow row{.queue_class = class_text(queue.normal.classid).value_or("unknown"),
                 .isolate_class = {},
                 .backlog_bytes = {},
                 .backlog_packets = {},
                 .waterline = {},
                 .level = "unknown",
                 .marked_total = queue.marked_total,
                 .restored_total = queue.restored_total,
                 .suspect_total = queue.suspect_total,
                 .would_mark_total = queue.would_mark_total};
    for (const auto &leaf : queue.isolation) {
        if (const auto name = class_text(leaf.classid))
            row.isolate_class.push_back(*name);
    }
    if (queue.waterline.set != 0) {
        // What the file said, without the digits that fixed point adds.
        const double digits = 1e9;
        const double probability =
            static_cast<double>(queue.waterline.probability) / static_cast<double>(SPILLWAY_PROBABILITY_ONE);
        row.waterline =
            WaterlineRow{.low = queue.waterline.low,
                         .high = queue.waterline.high,
                         .probability = std::round(probability * digits) / digits,
                         .unit = queue.waterline.unit == SPILLWAY_UNIT_PACKETS ? "packets" : "bytes"};
    }
    if (is_fresh(snapshot, queue.normal)) {
        row.backlog_bytes = queue.normal.backlog_bytes;
        row.backlog_packets = queue.normal.backlog_packets;
        row.level = level_name(queue.level);
    }
    return row;
}

std::uint64_t count_of(const Snapshot &snapshot, std::uint32_t port, spillway_counter counter) {
    const auto found = snapshot.counters.find({port, counter});
    return found == snapshot.counters.end() ? 0 : found->second;
}

std::uint64_t sum_of(const Snapshot &snapshot, spillway_counter counter) {
    std::uint64_t sum = 0;
    for (const auto &[key, value] : snapshot.counters) {
        if (key.second == counter)
            sum += value;
    }
    return sum;
}

bool agent_is_stale(const Snapshot &snapshot) {
    return !snapshot.agent_running ||
           passed(snapshot.now_ns, snapshot.settings.heartbeat_ns) > snapshot.settings.stale_agent_ns;
}

std::optional<RewriteRow> rewrite_row(const spillway_port &port) {
    RewriteRow row;
    if ((port.flags & SPILLWAY_PORT_REWRITE_PCP) != 0)
        row.pcp = port.rewrite_pcp;
    if ((port.flags & SPILLWAY_PORT_REWRITE_DSCP) != 0)
        row.dscp = port.rewrite_dscp;
    row.ecn = (port.flags & SPILLWAY_PORT_ECN) != 0;
    row.tag_untagged = (port.flags & SPILLWAY_PORT_TAG_UNTAGGED) != 0;
    return row.pcp || row.dscp || row.ecn ? std::optional(row) : std::nullopt;
}

PortRow port_row(const Snapshot &snapshot, const spillway_port &port) {
    PortRow row{.name = text_of(port.name),
                .ifindex = port.ifindex != 0 ? std::optional(port.ifindex) : std::nullopt,
                .waiting = {},
                .xdp = trap_name(port.trap),
                .tc = attach_name(port.attach),
                .source = {},
                .degraded = {},
                .queues = {},
                .rewrite = rewrite_row(port),
                .cip_sent = count_of(snapshot, port.ifindex, SPILLWAY_CIP_SENT),
                .cip_received = count_of(snapshot, port.ifindex, SPILLWAY_CIP_RECEIVED),
                .cip_accepted = count_of(snapshot, port.ifindex, SPILLWAY_CIP_ACCEPTED),
                .rejected = {}};
    if (port.waiting != SPILLWAY_WAITING_NO)
        row.waiting = waiting_name(port.waiting);
    for (const auto &[bit, name] : degraded_names) {
        if ((port.degraded & bit) != 0)
            row.degraded.emplace_back(name);
    }
    if (agent_is_stale(snapshot))
        row.degraded.emplace_back("agent_stale");
    for (const auto &[counter, name] : rejected_names)
        row.rejected.emplace_back(name, count_of(snapshot, port.ifindex, counter));
    if (port.ifindex == 0)
        return row;
    const auto end =
        std::min<std::uint64_t>(std::uint64_t{port.first_queue} + port.queue_count, snapshot.queues.size());
    for (std::uint64_t i = port.first_queue; i < end; i++) {
        if (snapshot.queues[i].ifindex != port.ifindex)
            continue; // the agent is about to change them
        row.queues.push_back(queue_row(snapshot, snapshot.queues[i]));
        if (row.queues.back().waterline && !row.waiting)
            row.source = source_name(snapshot.settings.source);
    }
    return row;
}

/// The later of what the program and the agent saw.
std::uint64_t busy_ns(const spillway_leaf &leaf) {
    return spillway_later(leaf.busy_ns, leaf.polled_busy_ns);
}

std::string port_name(const Snapshot &snapshot, std::uint32_t ifindex) {
    for (const auto &port : snapshot.ports) {
        if (port.ifindex == ifindex && ifindex != 0)
            return text_of(port.name);
    }
    const auto found = snapshot.interfaces.find(ifindex);
    return found != snapshot.interfaces.end() ? found->second : "?";
}

bool same_flow(spillway_flow_key a, spillway_flow_key b) {
    a.port = b.port = 0;
    return std::memcmp(&a, &b, sizeof(a)) == 0;
}

using UpstreamTable = std::vector<std::pair<spillway_flow_key, spillway_upstream>>;

bool key_before(const spillway_flow_key &a, const spillway_flow_key &b) {
    return std::memcmp(&a, &b, sizeof(a)) < 0;
}

/// `sorted` by key; their port is 0, and their VNI that of the tunnel on either side of it (abi.h).
const spillway_upstream *find_upstream(const Snapshot &snapshot, const UpstreamTable &sorted,
                                       spillway_flow_key key) {
    const auto port = std::ranges::find(snapshot.ports, key.port, &spillway_port::ifindex);
    if (port != snapshot.ports.end() && (port->flags & SPILLWAY_PORT_VNI) != 0 &&
        (key.flags & SPILLWAY_KEY_VNI) == 0) {
        key.vni = port->vni;
        key.flags |= SPILLWAY_KEY_VNI;
    }
    key.port = 0;
    const auto found = std::ranges::lower_bound(sorted, key, key_before, &UpstreamTable::value_type::first);
    return found != sorted.end() && same_flow(found->first, key) ? &found->second : nullptr;
}

} // namespace

std::string waiting_name(spillway_waiting waiting) {
    switch (waiting) {
    case SPILLWAY_WAITING_NO:
        return "no";
    case SPILLWAY_WAITING_NO_PORT:
        return "no_port";
    case SPILLWAY_WAITING_NO_CLASS:
        return "no_class";
    case SPILLWAY_WAITING_NOQUEUE:
        return "noqueue";
    case SPILLWAY_WAITING_NOT_BELOW:
        return "not_below";
    case SPILLWAY_WAITING_FOREIGN_XDP:
        return "foreign_xdp";
    case SPILLWAY_WAITING_NO_PRIVILEGE:
        return "no_privilege";
    case SPILLWAY_WAITING_PORT_DOWN:
        return "port_down";
    case SPILLWAY_WAITING_NOT_ETHERNET:
        return "not_ethernet";
    case SPILLWAY_WAITING_NO_ROOM:
        return "no_room";
    case SPILLWAY_WAITING_NOT_ATTACHED:
        return "not_attached";
    case SPILLWAY_WAITING_NO_XDP:
        return "no_xdp";
    case SPILLWAY_WAITING_STARTING:
        return "starting";
    case SPILLWAY_WAITING_OTHER:
        return "other_instance";
    }
    return "unknown";
}

std::string mac_text(std::span<const std::uint8_t> mac) {
    return fmt::format("{:02x}", fmt::join(mac, ":"));
}

std::string reason_name(spillway_reason reason) {
    const auto found = std::ranges::find(rejected_names, SPILLWAY_REJECTED(reason), &CounterName::counter);
    return found != rejected_names.end() ? found->name : "unknown";
}

const spillway_port *find_existing_port(std::span<const spillway_port> ports, std::string_view name) {
    const auto found = std::ranges::find_if(
        ports, [name](const spillway_port &port) { return port.ifindex != 0 && text_of(port.name) == name; });
    return found == ports.end() ? nullptr : &*found;
}

spillway_mark_times times_of(const Snapshot &snapshot, const spillway_flow_key &key,
                             const spillway_flow &flow) {
    spillway_mark_times times{};
    times.idle_ns = snapshot.settings.idle_ns;
    times.life_ns = snapshot.settings.life_ns;
    times.clear_ns = snapshot.settings.clear_ns;
    times.stale_agent_ns = snapshot.settings.stale_agent_ns;
    times.heartbeat_ns = snapshot.settings.heartbeat_ns;
    if (flow.queue >= snapshot.queues.size())
        return times;
    const spillway_queue &queue = snapshot.queues[flow.queue];
    if (queue.ifindex != key.port || queue.waterline.set == 0)
        return times;
    times.queue_busy_ns = busy_ns(queue.normal);
    if (queue.isolation_count != 0)
        times.isolation_busy_ns = busy_ns(queue.isolation[flow.isolation % SPILLWAY_ISOLATION_MAX]);
    return times;
}

StatusView status_view(const Snapshot &snapshot) {
    StatusView view{.instance = snapshot.instance,
                    .mode = snapshot.settings.panic != 0     ? "panic"
                            : snapshot.settings.observe != 0 ? "observe"
                                                             : "isolate",
                    .agent_running = snapshot.agent_running,
                    .pid = {},
                    .version = {},
                    .ports = {},
                    .flows_congested = 0,
                    .flows_entries = snapshot.flows.size(),
                    .flows_capacity = snapshot.flows_capacity,
                    .lost = {}};
    if (snapshot.agent_running && snapshot.settings.agent_pid != 0) {
        view.pid = snapshot.settings.agent_pid;
        view.version = text_of(snapshot.settings.version);
    }
    for (std::size_t i = 0; i < snapshot.ports.size(); i++) {
        const auto &port = snapshot.ports[i];
        const bool absent = i >= SPILLWAY_PORTS_MAX && port.name[0] != '\0';
        if (port.ifindex != 0 || absent)
            view.ports.push_back(port_row(snapshot, port));
    }
    std::ranges::sort(view.ports, {}, &PortRow::name);
    view.flows_congested = static_cast<std::uint64_t>(std::ranges::count_if(
        snapshot.flows, [](const auto &entry) { return entry.second.mark == SPILLWAY_MARK_CONGESTED; }));
    for (const auto &[counter, name] : lost_names)
        view.lost.emplace_back(name, sum_of(snapshot, counter));
    return view;
}

std::vector<FlowRow> flow_rows(const Snapshot &snapshot, bool all) {
    UpstreamTable upstreams = snapshot.upstreams;
    std::ranges::sort(upstreams, key_before, &UpstreamTable::value_type::first);

    std::vector<FlowRow> rows;
    for (auto [key, flow] : snapshot.flows) {
        if (!all && flow.mark != SPILLWAY_MARK_CONGESTED)
            continue;
        if (flow.mark == SPILLWAY_MARK_CONGESTED && snapshot.settings.panic == 0) {
            const auto times = times_of(snapshot, key, flow);
            // Whether it has drained only the kernel knows; as long as the entry is there it is not released.
            spillway_mark_step(&flow, &times, SPILLWAY_DRAINED_NO, snapshot.now_ns);
        }
        FlowRow row{.key = key,
                    .port = port_name(snapshot, key.port),
                    .isolation_class = class_text(flow.classid),
                    .state = state_name(flow.state),
                    .mark = flow.mark == SPILLWAY_MARK_CONGESTED ? "congested" : "normal",
                    .origin = flow.mark == SPILLWAY_MARK_CONGESTED ? std::optional(origin_name(flow.origin))
                                                                   : std::nullopt,
                    .age_ms = passed(snapshot.now_ns, flow.marked_ns) / ns_per_ms,
                    .idle_ms = passed(snapshot.now_ns, flow.last_seen_ns) / ns_per_ms,
                    .packets = flow.packets,
                    .bytes = flow.bytes,
                    .upstream = {},
                    .cips_sent = 0};
        if (const auto *node = find_upstream(snapshot, upstreams, key)) {
            row.cips_sent = node->sent;
            if (node->learned_ns != 0)
                row.upstream = UpstreamRow{port_name(snapshot, node->port), mac_text(node->mac)};
        }
        rows.push_back(std::move(row));
    }
    std::ranges::sort(rows, [](const FlowRow &a, const FlowRow &b) {
        return a.port != b.port       ? a.port < b.port
               : a.age_ms != b.age_ms ? a.age_ms > b.age_ms
                                      : key_before(a.key, b.key);
    });
    return rows;
}

} // namespace spillway
