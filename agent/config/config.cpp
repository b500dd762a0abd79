// SPDX-License-Identifier: Apache-2.0
#include "agent/config/config.h"

#include "agent/config/fault.h"
#include "agent/config/json_text.h"
#include "agent/config/schema.h"
#include "agent/core/fd.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <fcntl.h>
#include <fmt/core.h>
#include <fnmatch.h>
#include <nlohmann/json.hpp>
#include <poll.h>

namespace spillway {

NLOHMANN_JSON_SERIALIZE_ENUM(Mode, {{Mode::isolate, "isolate"}, {Mode::observe, "observe"}})
NLOHMANN_JSON_SERIALIZE_ENUM(FlowTable, {{FlowTable::congested, "congested"}, {FlowTable::full, "full"}})
NLOHMANN_JSON_SERIALIZE_ENUM(CipForm, {{CipForm::headers, "headers"}, {CipForm::descriptor, "descriptor"}})
NLOHMANN_JSON_SERIALIZE_ENUM(LogLevel, {{LogLevel::error, "error"},
                                        {LogLevel::warn, "warn"},
                                        {LogLevel::info, "info"},
                                        {LogLevel::debug, "debug"}})
NLOHMANN_JSON_SERIALIZE_ENUM(TrapMode, {{TrapMode::automatic, "auto"},
                                        {TrapMode::native, "native"},
                                        {TrapMode::tc, "tc"},
                                        {TrapMode::generic, "generic"}})
NLOHMANN_JSON_SERIALIZE_ENUM(DetectionSource, {{DetectionSource::automatic, "auto"},
                                               {DetectionSource::kernel, "kernel"},
                                               {DetectionSource::poll, "poll"}})
NLOHMANN_JSON_SERIALIZE_ENUM(CipSender, {{CipSender::automatic, "auto"}, {CipSender::agent, "agent"}})
NLOHMANN_JSON_SERIALIZE_ENUM(WaterlineUnit,
                             {{WaterlineUnit::bytes, "bytes"}, {WaterlineUnit::packets, "packets"}})

namespace {

using nlohmann::json;

// The documents read from here on are valid by the schema.

/// Takes the member `key` of `object`, if it is there, in place of the default in `value`.
template <class T>
void take(const json &object, const char *key, T &value) {
    if (const auto found = object.find(key); found != object.end())
        value = found->get<T>();
}

/// The member `key`, or an empty object.
const json &section(const json &object, const char *key) {
    static const json empty = json::object();
    const auto found = object.find(key);
    return found == object.end() ? empty : *found;
}

ClassId class_of(const json &text) {
    return ClassId::parse(text.get_ref<const std::string &>()).value();
}

WaterlineConfig read_waterline(const json &object) {
    WaterlineConfig waterline;
    take(object, "high", waterline.high);
    waterline.low = waterline.high;
    take(object, "low", waterline.low);
    take(object, "probability", waterline.probability);
    take(object, "unit", waterline.unit);
    return waterline;
}

QueueConfig read_queue(const json &object) {
    QueueConfig queue{.queue_class = class_of(object.at("class")), .isolate_class = {}, .waterline = {}};
    if (const auto isolate = object.find("isolate_class"); isolate != object.end()) {
        if (isolate->is_string())
            queue.isolate_class = {class_of(*isolate)};
        else
            std::ranges::transform(*isolate, std::back_inserter(queue.isolate_class), class_of);
    }
    if (const auto waterline = object.find("waterline"); waterline != object.end())
        queue.waterline = read_waterline(*waterline);
    const json &match = section(object, "match");
    take(match, "priority", queue.match.priority);
    take(match, "pcp", queue.match.pcp);
    take(match, "dscp", queue.match.dscp);
    return queue;
}

RewriteConfig read_rewrite(const json &object) {
    RewriteConfig rewrite;
    if (const auto pcp = object.find("pcp"); pcp != object.end())
        rewrite.pcp = pcp->get<std::uint8_t>();
    if (const auto dscp = object.find("dscp"); dscp != object.end())
        rewrite.dscp = dscp->get<std::uint8_t>();
    take(object, "ecn", rewrite.ecn);
    take(object, "tag_untagged", rewrite.tag_untagged);
    return rewrite;
}

PortConfig read_port(const json &object) {
    PortConfig port{.name = object.at("name"), .cip_class = {}, .queues = {}};
    take(object, "accept_cip", port.accept_cip);
    take(object, "send_cip", port.send_cip);
    take(object, "trap", port.trap);
    if (const auto cip_class = object.find("cip_class"); cip_class != object.end())
        port.cip_class = class_of(*cip_class);
    std::ranges::transform(section(object, "queues"), std::back_inserter(port.queues), read_queue);
    port.rewrite = read_rewrite(section(object, "rewrite"));
    return port;
}

GuardConfig read_guard(const json &object) {
    GuardConfig guard;
    take(object, "min_bytes", guard.min_bytes);
    take(object, "min_ratio", guard.min_ratio);
    take(object, "window_ms", guard.window_ms);
    return guard;
}

DetectionConfig read_detection(const json &object) {
    DetectionConfig detection;
    take(object, "source", detection.source);
    take(object, "poll_interval_us", detection.poll_interval_us);
    take(object, "stale_ms", detection.stale_ms);
    take(object, "stale_agent_ms", detection.stale_agent_ms);
    const json &guard = section(object, "guard");
    if (guard.is_string())
        detection.guard.reset(); // "off"
    else
        detection.guard = read_guard(guard);
    return detection;
}

FlowsConfig read_flows(const json &object) {
    FlowsConfig flows;
    take(object, "table", flows.table);
    take(object, "capacity", flows.capacity);
    take(object, "idle_timeout_ms", flows.idle_timeout_ms);
    take(object, "clear_timeout_ms", flows.clear_timeout_ms);
    take(object, "max_flow_life_ms", flows.max_flow_life_ms);
    return flows;
}

CipConfig read_cip(const json &object) {
    CipConfig cip;
    if (const auto text = object.find("ethertype"); text != object.end()) {
        const auto &digits = text->get_ref<const std::string &>();
        std::from_chars(digits.data() + 2, digits.data() + digits.size(), cip.ethertype, 16);
    }
    // IEEE 802.3 bounds slow protocols; any other EtherType has no such bound.
    if (cip.ethertype != CipConfig::default_ethertype)
        cip.max_per_second = 1000;
    take(object, "form", cip.form);
    take(object, "sender", cip.sender);
    take(object, "tx_priority", cip.tx_priority);
    take(object, "refresh_ms", cip.refresh_ms);
    take(object, "max_per_flow", cip.max_per_flow);
    take(object, "max_per_second", cip.max_per_second);
    return cip;
}

Config read_config(const json &document) {
    Config config;
    take(document, "mode", config.mode);
    std::ranges::transform(section(document, "ports"), std::back_inserter(config.ports), read_port);
    config.detection = read_detection(section(document, "detection"));
    config.flows = read_flows(section(document, "flows"));
    config.cip = read_cip(section(document, "cip"));
    take(section(document, "tunnels"), "vxlan_ports", config.tunnels.vxlan_ports);
    take(document, "log_level", config.log_level);
    return config;
}

// What a schema cannot say: how values of different places must fit each other.

/// The value, and whether it is there only by default.
std::string found(const json &document, const std::string &place, std::uint32_t value) {
    return fmt::format("{}{}", value, document.contains(json::json_pointer(place)) ? "" : " by default");
}

std::optional<Fault> find_waterline_fault(const json &document, const WaterlineConfig &waterline,
                                          const std::string &place) {
    if (waterline.low <= waterline.high)
        return std::nullopt;
    return Fault{.place = place + "/low",
                 .found = std::to_string(waterline.low),
                 .allowed =
                     fmt::format("at most high ({})", found(document, place + "/high", waterline.high)),
                 .hint = "lower low, raise high, or leave out low for a single waterline"};
}

/// Classes already met in a port, with the place of each.
struct Met {
    ClassId id;
    std::string place;
};

std::optional<Fault> find_isolation_fault(const json &document, const QueueConfig &queue,
                                          const std::vector<Met> &monitored, const std::string &queue_place) {
    std::vector<ClassId> earlier;
    for (const ClassId id : queue.isolate_class) {
        std::string place = queue_place + "/isolate_class";
        if (document.at(json::json_pointer(place)).is_array())
            place += fmt::format("/{}", earlier.size());
        const std::string text = in_quotes(id.text());
        if (id == queue.queue_class)
            return Fault{.place = place,
                         .found = text + ", the class of the queue itself",
                         .allowed = "another class, scheduled below it",
                         .hint = "name the low-priority class that isolated flows shall wait in"};
        if (std::ranges::find(earlier, id) != earlier.end())
            return Fault{.place = place,
                         .found = text + " again",
                         .allowed = "each class once in the list",
                         .hint = "remove the second one"};
        const auto other = std::ranges::find(monitored, id, &Met::id);
        if (other != monitored.end())
            return Fault{.place = place,
                         .found = fmt::format("{}, the class of {}", text, other->place),
                         .allowed = "a class that is no monitored queue",
                         .hint = "isolate into a class that carries no other traffic"};
        earlier.push_back(id);
    }
    return std::nullopt;
}

/// A rewrite that could never lower a priority, or has nothing to rewrite.
std::optional<Fault> find_rewrite_fault(const json &document, const PortConfig &port,
                                        const std::string &port_place) {
    const std::string place = port_place + "/rewrite";
    if (!document.contains(json::json_pointer(place)))
        return std::nullopt;
    const RewriteConfig &rewrite = port.rewrite;
    if (port.queues.empty())
        return Fault{.place = place,
                     .found = "a rewrite in a port without queues",
                     .allowed = "a rewrite beside at least one queue",
                     .hint = R"(add a queue: its class may be "root", and it needs no waterline)"};
    if (!rewrite.pcp && !rewrite.dscp && !rewrite.ecn)
        return Fault{.place = place,
                     .found = "neither pcp nor dscp, and no ecn",
                     .allowed = "pcp, dscp, ecn, or more than one of them",
                     .hint = "write which priority isolated packets shall carry, or remove rewrite"};
    if (rewrite.tag_untagged && rewrite.pcp != 1)
        return Fault{.place = place + "/tag_untagged",
                     .found = rewrite.pcp ? fmt::format("true with pcp {}", *rewrite.pcp)
                                          : std::string("true without pcp"),
                     .allowed = "true with pcp 1, the only one below that of packets without a tag (0)",
                     .hint = "set pcp to 1, or leave out tag_untagged"};
    return std::nullopt;
}

/// An empty match would take every packet, which is what a queue does that has none and is the first.
std::optional<Fault> find_match_fault(const json &document, const QueueConfig &queue,
                                      const std::string &queue_place) {
    const std::string place = queue_place + "/match";
    if (!document.contains(json::json_pointer(place)) || !queue.match.empty())
        return std::nullopt;
    return Fault{.place = place,
                 .found = "neither priority nor pcp nor dscp",
                 .allowed = "priority, pcp, dscp, or more than one of them",
                 .hint = "write which packets belong to this queue, or remove match"};
}

std::optional<Fault> find_port_fault(const json &document, const PortConfig &port,
                                     const std::string &port_place) {
    const auto queue_place = [&port_place](std::size_t i) {
        return fmt::format("{}/queues/{}", port_place, i);
    };
    std::vector<Met> monitored;
    for (const QueueConfig &queue : port.queues) {
        const std::string place = queue_place(monitored.size());
        if (const auto same = std::ranges::find(monitored, queue.queue_class, &Met::id);
            same != monitored.end())
            return Fault{.place = place + "/class",
                         .found = in_quotes(queue.queue_class.text()) + " again",
                         .allowed = "each class once in a port",
                         .hint = "merge it with " + same->place};
        monitored.push_back({queue.queue_class, place});
    }
    for (std::size_t i = 0; i < port.queues.size(); ++i) {
        const QueueConfig &queue = port.queues[i];
        if (auto fault = find_isolation_fault(document, queue, monitored, queue_place(i)))
            return fault;
        if (auto fault = find_match_fault(document, queue, queue_place(i)))
            return fault;
        if (queue.waterline) {
            if (auto fault = find_waterline_fault(document, *queue.waterline, queue_place(i) + "/waterline"))
                return fault;
        }
    }
    return find_rewrite_fault(document, port, port_place);
}

std::optional<Fault> find_timing_fault(const json &document, const Config &config) {
    const DetectionConfig &detection = config.detection;
    if (std::uint64_t{detection.stale_ms} * 1000 <= detection.poll_interval_us)
        return Fault{.place = "/detection/stale_ms",
                     .found = found(document, "/detection/stale_ms", detection.stale_ms),
                     .allowed = fmt::format("more than poll_interval_us ({} us)", detection.poll_interval_us),
                     .hint = fmt::format("set stale_ms above {}, or poll more often, so that a reading is "
                                         "fresh until the next one",
                                         detection.poll_interval_us / 1000)};
    const FlowsConfig &flows = config.flows;
    if (flows.idle_timeout_ms > flows.clear_timeout_ms)
        return Fault{
            .place = "/flows/idle_timeout_ms",
            .found = found(document, "/flows/idle_timeout_ms", flows.idle_timeout_ms),
            .allowed = fmt::format("at most clear_timeout_ms ({})",
                                   found(document, "/flows/clear_timeout_ms", flows.clear_timeout_ms)),
            .hint = "lower idle_timeout_ms or raise clear_timeout_ms, so that a flow gets its priority "
                    "back before its entry is cleared"};
    return std::nullopt;
}

std::optional<Fault> find_ethertype_fault(const CipConfig &cip) {
    // Taking one of these for CIPs would swallow a port's ordinary traffic.
    constexpr auto taken = std::to_array<std::pair<std::uint16_t, const char *>>(
        {{0x0800, "IPv4"}, {0x0806, "ARP"}, {0x8100, "VLAN tags"}, {0x86DD, "IPv6"}, {0x88A8, "VLAN tags"}});
    for (const auto &[ethertype, user] : taken) {
        if (cip.ethertype == ethertype)
            return Fault{.place = "/cip/ethertype",
                         .found = fmt::format(R"("0x{:04X}", the EtherType of {})", ethertype, user),
                         .allowed = "an EtherType that carries no other traffic",
                         .hint = R"(use "0x8809", or "0x88B5" (local experimental))"};
    }
    return std::nullopt;
}

std::optional<Fault> find_rule_fault(const json &document, const Config &config) {
    for (std::size_t i = 0; i < config.ports.size(); ++i) {
        const auto first = std::ranges::find(config.ports, config.ports[i].name, &PortConfig::name);
        const auto first_index = static_cast<std::size_t>(first - config.ports.begin());
        if (first_index != i)
            return Fault{.place = fmt::format("/ports/{}/name", i),
                         .found = in_quotes(config.ports[i].name) + " again",
                         .allowed = "each port once",
                         .hint = fmt::format("merge it with /ports/{}", first_index)};
        if (auto fault = find_port_fault(document, config.ports[i], fmt::format("/ports/{}", i)))
            return fault;
    }
    if (auto fault = find_timing_fault(document, config))
        return fault;
    return find_ethertype_fault(config.cip);
}

constexpr std::size_t most_bytes = std::size_t{1} << 20;
constexpr int pipe_patience_ms = 2000; ///< a file may be a pipe, whose writer may be slow or never come

/// At most `most_bytes` + 1 bytes of the file.
Result<std::string> read_file(const std::filesystem::path &path) {
    const auto unreadable = [&path](int number, std::string hint) {
        Error error = config_error(path.string(), "cannot be read", std::move(hint));
        error.number = number;
        return std::unexpected(std::move(error));
    };
    const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!file) {
        if (errno == ENOENT)
            return unreadable(ENOENT, "create it, or name another file with --config");
        return unreadable(errno, "run as a user who may read it, or name another file with --config");
    }
    std::string text(most_bytes + 1, '\0');
    std::size_t size = 0;
    while (size < text.size()) {
        const ssize_t got = ::read(file.get(), text.data() + size, text.size() - size);
        if (got < 0 && errno == EAGAIN) {
            pollfd writer{.fd = file.get(), .events = POLLIN, .revents = 0};
            if (::poll(&writer, 1, pipe_patience_ms) > 0)
                continue;
            errno = ETIMEDOUT;
        }
        if (got < 0)
            return unreadable(errno, "name a file of JSON text with --config");
        if (got == 0)
            break;
        size += static_cast<std::size_t>(got);
    }
    text.resize(size);
    return text;
}

} // namespace

Result<Config> parse_config(std::string_view text, std::string_view file) {
    const auto document = read_json(text, file);
    if (!document)
        return std::unexpected(document.error());
    if (const auto fault = find_schema_fault(*document))
        return std::unexpected(config_error(file, *fault));
    Config config = read_config(*document);
    if (const auto fault = find_rule_fault(*document, config))
        return std::unexpected(config_error(file, *fault));
    return config;
}

Result<Config> load_config(const std::filesystem::path &path) {
    const auto text = read_file(path);
    if (!text)
        return std::unexpected(text.error());
    if (text->size() > most_bytes)
        return std::unexpected(
            config_error(path.string(), {.place = "",
                                         .found = "more than 1 MiB",
                                         .allowed = "at most 1 MiB",
                                         .hint = "name a configuration file with --config"}));
    return parse_config(*text, path.string());
}

const PortConfig *find_port(const Config &config, std::string_view name) {
    const std::string text(name);
    auto found = std::ranges::find(config.ports, text, &PortConfig::name);
    if (found == config.ports.end())
        found = std::ranges::find_if(config.ports, [&text](const PortConfig &port) {
            return ::fnmatch(port.name.c_str(), text.c_str(), 0) == 0;
        });
    return found == config.ports.end() ? nullptr : &*found;
}

} // namespace spillway
