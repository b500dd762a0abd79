// SPDX-License-Identifier: Apache-2.0
/// The configuration file as plain values. Structure, ranges and defaults are those of
/// deploy/spillway.schema.json, which is built in; the tests hold the defaults below equal to the schema's.
#pragma once

#include "agent/config/class_id.h"
#include "agent/core/result.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

enum class Mode { isolate, observe };
enum class LogLevel { error, warn, info, debug };
/// Where CIPs are taken from a port; automatic = the best that the port offers.
enum class TrapMode { automatic, native, tc, generic };
/// Who reads the amount waiting in a queue; automatic = kernel where it can, else poll.
enum class DetectionSource { automatic, kernel, poll };
/// Who makes CIPs; automatic = agent, the only one so far.
enum class CipSender { automatic, agent };
enum class WaterlineUnit { bytes, packets };
/// Flows that have an entry: marked ones (R6), or all (R5).
enum class FlowTable { congested, full };
/// Figure 3 of the patent, or ours in place of its figure 4 (spillway/cip.h).
enum class CipForm { headers, descriptor };

/// Limits on the amount waiting in a queue and in its isolation queue. low == high is a single waterline.
struct WaterlineConfig {
    std::uint32_t low = 200000;  ///< at or below: no flow is marked; never above high; in `unit`
    std::uint32_t high = 200000; ///< above: every flow that enqueues is marked; in `unit`
    double probability = 0.1;    ///< preset marking probability between low and high, 0..1
    WaterlineUnit unit = WaterlineUnit::bytes;

    friend bool operator==(const WaterlineConfig &, const WaterlineConfig &) = default;
};

/// Packets that are a queue's whatever class their priority names: each list that is not empty has the
/// packet's value.
struct MatchConfig {
    std::vector<std::uint32_t> priority; ///< up to 8
    std::vector<std::uint8_t> pcp;       ///< 0..7
    std::vector<std::uint8_t> dscp;      ///< 0..63

    [[nodiscard]] bool empty() const { return priority.empty() && pcp.empty() && dscp.empty(); }
    friend bool operator==(const MatchConfig &, const MatchConfig &) = default;
};

/// A monitored queue of a port.
struct QueueConfig {
    ClassId queue_class;
    std::vector<ClassId> isolate_class; ///< 0..4 classes, never root; flows are spread over them by hash
    std::optional<WaterlineConfig> waterline; ///< none: this queue detects nothing
    MatchConfig match{};                      ///< empty: the class decides

    friend bool operator==(const QueueConfig &, const QueueConfig &) = default;
};

/// Fields of isolated packets that get a lower priority, never a higher one.
struct RewriteConfig {
    std::optional<std::uint8_t> pcp;  ///< of the VLAN tag, 0..6
    std::optional<std::uint8_t> dscp; ///< of the IP header, 0..62
    bool ecn = false;                 ///< mark packets of ECN-capable flows CE (B8)
    bool tag_untagged = false;        ///< give packets without a tag a priority tag; pcp is 1 then

    friend bool operator==(const RewriteConfig &, const RewriteConfig &) = default;
};

struct PortConfig {
    std::string name; ///< an interface name or a glob such as "swp*"
    bool accept_cip = true;
    bool send_cip = true;
    TrapMode trap = TrapMode::automatic;
    std::optional<ClassId> cip_class; ///< class for CIPs that go through the qdisc; never root
    std::vector<QueueConfig> queues;
    RewriteConfig rewrite{}; ///< neither pcp nor dscp nor ecn: fields stay as they are

    friend bool operator==(const PortConfig &, const PortConfig &) = default;
};

/// Spares light flows: a flow is marked only if in a window it enqueued at least
/// max(min_bytes, min_ratio * what the heaviest flow did).
struct GuardConfig {
    std::uint32_t min_bytes = 15000;
    double min_ratio = 0.1; ///< 0..1
    std::uint32_t window_ms = 100;

    friend bool operator==(const GuardConfig &, const GuardConfig &) = default;
};

struct DetectionConfig {
    DetectionSource source = DetectionSource::automatic;
    std::uint32_t poll_interval_us = 1000;
    std::uint32_t stale_ms = 50; ///< an older reading of a queue is ignored; longer than poll_interval_us
    std::uint32_t stale_agent_ms = 5000;              ///< no heartbeat for so long: nothing new is marked
    std::optional<GuardConfig> guard = GuardConfig{}; ///< none: "off"

    friend bool operator==(const DetectionConfig &, const DetectionConfig &) = default;
};

/// The flow table.
struct FlowsConfig {
    FlowTable table = FlowTable::congested;
    std::uint32_t capacity = 65536;       ///< entries, of all ports together
    std::uint32_t idle_timeout_ms = 1000; ///< quiet for so long: a mark ends; at most clear_timeout_ms
    std::uint32_t clear_timeout_ms = 30000;
    std::uint32_t max_flow_life_ms = 1000; ///< calm for so long: the mark of a busy flow ends too

    friend bool operator==(const FlowsConfig &, const FlowsConfig &) = default;
};

/// Sending and receiving of CIPs.
struct CipConfig {
    static constexpr std::uint16_t default_ethertype = 0x8809;

    CipForm form = CipForm::headers;             ///< of those sent
    std::uint16_t ethertype = default_ethertype; ///< host byte order, 0x0600..0xFFFF
    CipSender sender = CipSender::automatic;
    std::uint8_t tx_priority = 6; ///< PCP and skb->priority of CIPs, 0..7
    std::uint32_t refresh_ms = 100;
    std::uint32_t max_per_flow = 3;
    std::uint32_t max_per_second = 10; ///< of each port; 1000 unless written when ethertype is not 0x8809

    friend bool operator==(const CipConfig &, const CipConfig &) = default;
};

struct TunnelsConfig {
    std::vector<std::uint16_t> vxlan_ports{4789}; ///< up to 4, UDP

    friend bool operator==(const TunnelsConfig &, const TunnelsConfig &) = default;
};

struct Config {
    Mode mode = Mode::isolate;
    std::vector<PortConfig> ports;
    DetectionConfig detection;
    FlowsConfig flows;
    CipConfig cip;
    TunnelsConfig tunnels{};
    LogLevel log_level = LogLevel::info;

    friend bool operator==(const Config &, const Config &) = default;
};

/// Where the configuration is unless --config names another file.
inline constexpr std::string_view default_config_path = "/etc/spillway/spillway.json";

/// Reads a configuration from its JSON text; `file` only names it in errors.
/// The first thing wrong is the error: kind usage, a detail with JSON pointer (or line and column), what was
/// found and what is allowed, and a hint.
Result<Config> parse_config(std::string_view text, std::string_view file);

/// parse_config() of a file of at most 1 MiB. A file that cannot be read is an error of kind usage too.
Result<Config> load_config(const std::filesystem::path &path);

/// The entry that governs the port `name`: the one with exactly this name, else the first whose glob matches;
/// null if none does.
const PortConfig *find_port(const Config &config, std::string_view name);

} // namespace spillway
