// SPDX-License-Identifier: Apache-2.0
/// `status` and `flows`: rows made from a snapshot, and their two forms, text and JSON (design §7). What is
/// not known is none: null in JSON, '-' in text.
#pragma once

#include "agent/cli/snapshot.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace spillway {

/// Names and counts in a fixed order.
using NamedCounts = std::vector<std::pair<std::string, std::uint64_t>>;

struct WaterlineRow {
    std::uint32_t low = 0;
    std::uint32_t high = 0;
    double probability = 0;
    std::string unit;
};

struct QueueRow {
    std::string queue_class;
    std::vector<std::string> isolate_class;
    std::optional<std::uint64_t> backlog_bytes;
    std::optional<std::uint64_t> backlog_packets;
    std::optional<WaterlineRow> waterline;
    std::string level;
    std::uint64_t marked_total = 0;
    std::uint64_t restored_total = 0;
    std::uint64_t suspect_total = 0;
    std::uint64_t would_mark_total = 0;
};

struct RewriteRow {
    std::optional<std::uint32_t> pcp;
    std::optional<std::uint32_t> dscp;
    bool ecn = false;
    bool tag_untagged = false;
};

struct PortRow {
    std::string name;
    std::optional<std::uint32_t> ifindex;
    std::optional<std::string> waiting;
    std::string xdp;
    std::string tc;
    std::optional<std::string> source;
    std::vector<std::string> degraded;
    std::vector<QueueRow> queues;
    std::optional<RewriteRow> rewrite;
    std::uint64_t cip_sent = 0;
    std::uint64_t cip_received = 0;
    std::uint64_t cip_accepted = 0;
    NamedCounts rejected;
};

struct StatusView {
    std::string instance;
    std::string mode;
    bool agent_running = false;
    std::optional<std::uint32_t> pid;
    std::optional<std::string> version;
    std::vector<PortRow> ports; ///< by name
    std::uint64_t flows_congested = 0;
    std::uint64_t flows_entries = 0;
    std::uint64_t flows_capacity = 0;
    NamedCounts lost;
};

struct UpstreamRow {
    std::string port;
    std::string mac;
};

struct FlowRow {
    spillway_flow_key key{};
    std::string port;
    std::optional<std::string> isolation_class;
    std::string state;
    std::string mark;
    std::optional<std::string> origin; ///< none without a mark
    std::uint64_t age_ms = 0;
    std::uint64_t idle_ms = 0;
    std::uint64_t packets = 0;
    std::uint64_t bytes = 0;
    std::optional<UpstreamRow> upstream;
    std::uint64_t cips_sent = 0;
};

/// Name of a reason as `status` shows it: "no_port"; "unknown" for a number this program does not know.
[[nodiscard]] std::string waiting_name(spillway_waiting waiting);

/// A MAC address as `ip link` writes it.
[[nodiscard]] std::string mac_text(std::span<const std::uint8_t> mac);

/// Name of the reason why a CIP was refused: "too_short".
[[nodiscard]] std::string reason_name(spillway_reason reason);

/// The instance's port of that name; null when it has none, or only waits for one to appear.
[[nodiscard]] const spillway_port *find_existing_port(std::span<const spillway_port> ports,
                                                      std::string_view name);

/// What the state machine of a flow's mark has to know, as the kernel's step sees it (bpf/lib/mark.h).
[[nodiscard]] spillway_mark_times times_of(const Snapshot &snapshot, const spillway_flow_key &key,
                                           const spillway_flow &flow);

[[nodiscard]] StatusView status_view(const Snapshot &snapshot);
[[nodiscard]] std::string status_json(const StatusView &view);
[[nodiscard]] std::string status_text(const StatusView &view);

/// Flows by port, oldest first, in the state that a packet coming now would find. Without `all` only those
/// marked congested.
[[nodiscard]] std::vector<FlowRow> flow_rows(const Snapshot &snapshot, bool all);
[[nodiscard]] std::string flows_json(const std::vector<FlowRow> &rows);
[[nodiscard]] std::string flows_text(const std::vector<FlowRow> &rows);

} // namespace spillway
