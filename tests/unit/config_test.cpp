// SPDX-License-Identifier: Apache-2.0
// What a configuration means, and how each thing wrong with one is told.
#include "agent/config/config.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>

namespace spillway {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

Config parsed(const std::string &text) {
    auto config = parse_config(text, "f.json");
    EXPECT_TRUE(config) << config.error().text();
    return config ? *std::move(config) : Config{};
}

/// A configuration whose one port has these queues.
std::string with_queues(const std::string &queues) {
    return R"({"ports": [{"name": "eth1", "queues": [)" + queues + "]}]}";
}

TEST(Config, DefaultsAreTheDocumentedOnes) {
    const Config config = parsed("{}");
    EXPECT_EQ(config, Config{});
    EXPECT_EQ(config.mode, Mode::isolate);
    EXPECT_THAT(config.ports, IsEmpty());
    EXPECT_EQ(config.detection.source, DetectionSource::automatic);
    EXPECT_EQ(config.detection.poll_interval_us, 1000U);
    EXPECT_EQ(config.detection.stale_ms, 50U);
    EXPECT_EQ(config.detection.stale_agent_ms, 5000U);
    ASSERT_TRUE(config.detection.guard);
    EXPECT_EQ(config.detection.guard->min_bytes, 15000U);
    EXPECT_EQ(config.detection.guard->min_ratio, 0.1);
    EXPECT_EQ(config.detection.guard->window_ms, 100U);
    EXPECT_EQ(config.flows.capacity, 65536U);
    EXPECT_EQ(config.flows.idle_timeout_ms, 1000U);
    EXPECT_EQ(config.flows.clear_timeout_ms, 30000U);
    EXPECT_EQ(config.flows.max_flow_life_ms, 1000U);
    EXPECT_EQ(config.cip.ethertype, 0x8809);
    EXPECT_EQ(config.cip.sender, CipSender::automatic);
    EXPECT_EQ(config.cip.tx_priority, 6);
    EXPECT_EQ(config.cip.refresh_ms, 100U);
    EXPECT_EQ(config.cip.max_per_flow, 3U);
    EXPECT_EQ(config.cip.max_per_second, 10U);
    EXPECT_EQ(config.log_level, LogLevel::info);
}

TEST(Config, PortDefaults) {
    const Config config = parsed(R"({"ports": [{"name": "eth1"}]})");
    ASSERT_EQ(config.ports.size(), 1U);
    const PortConfig &port = config.ports[0];
    EXPECT_EQ(port.name, "eth1");
    EXPECT_TRUE(port.accept_cip);
    EXPECT_TRUE(port.send_cip);
    EXPECT_EQ(port.trap, TrapMode::automatic);
    EXPECT_FALSE(port.cip_class);
    EXPECT_THAT(port.queues, IsEmpty());
    EXPECT_EQ(port.rewrite, RewriteConfig{});
}

TEST(Config, EveryValueIsTaken) {
    const Config config = parsed(R"({
        "$schema": "spillway.schema.json", "mode": "isolate",
        "ports": [
            {"name": "swp*", "accept_cip": false, "send_cip": false, "trap": "tc", "cip_class": "1:5",
             "queues": [
                {"class": "1:10", "isolate_class": ["1:20", "1:21", "1:22", "1:23"],
                 "waterline": {"low": 10, "high": 20, "probability": 0.5, "unit": "packets"}},
                {"class": "root", "isolate_class": "2:FF"}],
             "rewrite": {"pcp": 1, "dscp": 62, "tag_untagged": true}},
            {"name": "eth0"}],
        "detection": {"source": "poll", "poll_interval_us": 2000, "stale_ms": 3, "stale_agent_ms": 100,
                      "guard": {"min_bytes": 0, "min_ratio": 1, "window_ms": 10}},
        "flows": {"table": "congested", "capacity": 64, "idle_timeout_ms": 500, "clear_timeout_ms": 500,
                  "max_flow_life_ms": 250},
        "cip": {"ethertype": "0x88b5", "form": "headers", "sender": "agent", "tx_priority": 0,
                "refresh_ms": 1,
                "max_per_flow": 9, "max_per_second": 77},
        "log_level": "debug"})");
    Config expected;
    expected.ports = {
        {.name = "swp*",
         .accept_cip = false,
         .send_cip = false,
         .trap = TrapMode::tc,
         .cip_class = ClassId{0x10005},
         .queues = {{.queue_class = {0x10010},
                     .isolate_class = {{0x10020}, {0x10021}, {0x10022}, {0x10023}},
                     .waterline =
                         WaterlineConfig{
                             .low = 10, .high = 20, .probability = 0.5, .unit = WaterlineUnit::packets}},
                    {.queue_class = {ClassId::root_handle}, .isolate_class = {{0x200ff}}, .waterline = {}}},
         .rewrite = {.pcp = 1, .dscp = 62, .tag_untagged = true}},
        {.name = "eth0", .cip_class = {}, .queues = {}}};
    expected.detection = {.source = DetectionSource::poll,
                          .poll_interval_us = 2000,
                          .stale_ms = 3,
                          .stale_agent_ms = 100,
                          .guard = GuardConfig{.min_bytes = 0, .min_ratio = 1, .window_ms = 10}};
    expected.flows = {
        .capacity = 64, .idle_timeout_ms = 500, .clear_timeout_ms = 500, .max_flow_life_ms = 250};
    expected.cip = {.ethertype = 0x88b5,
                    .sender = CipSender::agent,
                    .tx_priority = 0,
                    .refresh_ms = 1,
                    .max_per_flow = 9,
                    .max_per_second = 77};
    expected.log_level = LogLevel::debug;
    EXPECT_EQ(config, expected);
}

TEST(Config, EveryChoiceIsTaken) {
    const auto port = [](const char *trap) {
        return parsed(std::string(R"({"ports": [{"name": "a", "trap": ")") + trap + R"("}]})")
            .ports.at(0)
            .trap;
    };
    EXPECT_EQ(port("auto"), TrapMode::automatic);
    EXPECT_EQ(port("native"), TrapMode::native);
    EXPECT_EQ(port("tc"), TrapMode::tc);
    EXPECT_EQ(port("generic"), TrapMode::generic);
    const auto source = [](const char *source) {
        return parsed(std::string(R"({"detection": {"source": ")") + source + R"("}})").detection.source;
    };
    EXPECT_EQ(source("auto"), DetectionSource::automatic);
    EXPECT_EQ(source("kernel"), DetectionSource::kernel);
    EXPECT_EQ(source("poll"), DetectionSource::poll);
    const auto level = [](const char *level) {
        return parsed(std::string(R"({"log_level": ")") + level + R"("})").log_level;
    };
    EXPECT_EQ(level("error"), LogLevel::error);
    EXPECT_EQ(level("warn"), LogLevel::warn);
    EXPECT_EQ(level("info"), LogLevel::info);
    EXPECT_EQ(level("debug"), LogLevel::debug);
}

TEST(Config, SingleWaterlineNeedsOnlyHigh) {
    const auto waterline = [](const std::string &text) {
        return parsed(with_queues(R"({"class": "1:10", "waterline": )" + text + "}"))
            .ports.at(0)
            .queues.at(0)
            .waterline;
    };
    EXPECT_EQ(waterline(R"({"high": 1000})"), (WaterlineConfig{.low = 1000, .high = 1000}));
    EXPECT_EQ(waterline("{}"), (WaterlineConfig{.low = 200000, .high = 200000}));
    EXPECT_EQ(waterline(R"({"low": 0})"), (WaterlineConfig{.low = 0, .high = 200000}));
    EXPECT_EQ(waterline(R"({"low": 5, "high": 5, "probability": 1})"),
              (WaterlineConfig{.low = 5, .high = 5, .probability = 1}));
    EXPECT_EQ(waterline(R"({"low": 4294967295, "high": 4294967295, "probability": 0.0})"),
              (WaterlineConfig{.low = 4294967295, .high = 4294967295, .probability = 0}));
    EXPECT_EQ(waterline(R"({"high": 0})"), (WaterlineConfig{.low = 0, .high = 0}));
}

TEST(Config, GuardMayBeOff) {
    EXPECT_FALSE(parsed(R"({"detection": {"guard": "off"}})").detection.guard);
    EXPECT_EQ(parsed(R"({"detection": {"guard": {"min_ratio": 0.2}}})").detection.guard,
              (GuardConfig{.min_ratio = 0.2}));
}

TEST(Config, RateOfCipsFollowsTheEthertype) {
    const auto rate = [](const char *cip) {
        return parsed(std::string(R"({"cip": )") + cip + "}").cip.max_per_second;
    };
    EXPECT_EQ(rate(R"({"ethertype": "0x8809"})"), 10U);
    EXPECT_EQ(rate(R"({"ethertype": "0x88B5"})"), 1000U);
    EXPECT_EQ(rate(R"({"ethertype": "0x88B5", "max_per_second": 10})"), 10U);
    EXPECT_EQ(rate(R"({"ethertype": "0x8809", "max_per_second": 50})"), 50U);
}

TEST(Config, EthertypeInAnyCase) {
    for (const char *text : {"0x88b5", "0x88B5", "0X88b5"})
        EXPECT_EQ(parsed(std::string(R"({"cip": {"ethertype": ")") + text + R"("}})").cip.ethertype, 0x88b5)
            << text;
    EXPECT_EQ(parsed(R"({"cip": {"ethertype": "0x0600"}})").cip.ethertype, 0x0600);
    EXPECT_EQ(parsed(R"({"cip": {"ethertype": "0xFFFF"}})").cip.ethertype, 0xffff);
}

TEST(Config, PortTakesItsOwnEntryBeforeAGlob) {
    const Config config = parsed(R"({"ports": [{"name": "swp*"}, {"name": "swp[0-3]"}, {"name": "swp1"},
                                               {"name": "eth?"}]})");
    const auto entry = [&config](std::string_view name) {
        const PortConfig *port = find_port(config, name);
        return port == nullptr ? "none" : port->name;
    };
    EXPECT_EQ(entry("swp1"), "swp1");
    EXPECT_EQ(entry("swp2"), "swp*");
    EXPECT_EQ(entry("eth0"), "eth?");
    EXPECT_EQ(entry("eth10"), "none");
    EXPECT_EQ(entry("SWP1"), "none");
    EXPECT_EQ(entry(""), "none");
}

struct Bad {
    std::string text;
    std::string place;   ///< JSON pointer
    std::string found;   ///< all of it
    std::string allowed; ///< how it begins
    std::string hint;    ///< a part of it
};

void PrintTo(const Bad &bad, std::ostream *out) {
    *out << bad.text;
}

class ConfigFault : public testing::TestWithParam<Bad> {};

TEST_P(ConfigFault, IsToldWithPlaceFoundAllowedAndHint) {
    const Bad &bad = GetParam();
    const auto config = parse_config(bad.text, "f.json");
    ASSERT_FALSE(config);
    const Error &error = config.error();
    EXPECT_EQ(error.kind, ErrorKind::usage);
    EXPECT_THAT(error.message(),
                StartsWith("configuration: f.json: " + (bad.place.empty() ? "" : bad.place + ": ") +
                           "found " + bad.found + ", allowed: " + bad.allowed));
    EXPECT_THAT(error.hint, HasSubstr(bad.hint));
    EXPECT_EQ(error.text(), error.message() + "\nHINT: " + error.hint);
    EXPECT_EQ(std::ranges::count(error.text(), '\n'), 1);
}

std::string in(const std::string &section, const std::string &member) {
    return "{\"" + section + "\": {" + member + "}}";
}

std::string in_port(const std::string &member) {
    return R"({"ports": [{"name": "eth1", )" + member + "}]}";
}

std::string in_rewrite(const std::string &members) {
    return R"({"ports": [{"name": "eth1", "queues": [{"class": "root"}], "rewrite": {)" + members + "}}]}";
}

std::string in_waterline(const std::string &member) {
    return with_queues(R"({"class": "1:10", "waterline": {)" + member + "}}");
}

const std::string class_text = "a class as tc writes it (\"major:minor\" in hex, 1:1 to fffe:ffff)";
const std::string amount = "an integer from 0 to 4294967295";

INSTANTIATE_TEST_SUITE_P(
    Keys, ConfigFault,
    testing::Values(
        Bad{R"({"moed": "isolate"})", "/moed", "an unknown key",
            "$schema, cip, detection, flows, log_level, mode, ports or tunnels", R"(did you mean "mode"?)"},
        Bad{R"({"tunnels": {"geneve_ports": [6081]}})", "/tunnels/geneve_ports", "an unknown key",
            "vxlan_ports", R"(did you mean "vxlan_ports"?)"},
        Bad{R"({"ports": [], "aaa": 1})", "/aaa", "an unknown key", "$schema, cip", R"(remove "aaa")"},
        Bad{R"({"ports": [{"nmae": "eth1"}]})", "/ports/0/nmae", "an unknown key",
            "accept_cip, cip_class, name", R"(did you mean "name"?)"},
        Bad{R"({"ports": [{"name": "a"}, {"name": "eth1", "rewrite": {"tos": 1}}]})", "/ports/1/rewrite/tos",
            "an unknown key", "dscp, ecn, pcp or tag_untagged", R"(remove "tos")"},
        Bad{in_port(R"("Trap": "tc")"), "/ports/0/Trap", "an unknown key", "accept_cip",
            R"(did you mean "trap"?)"},
        Bad{with_queues(R"({"class": "1:10", "match": {"pcp": [0], "vid": [1]}})"),
            "/ports/0/queues/0/match/vid", "an unknown key", "dscp, pcp or priority", R"(remove "vid")"},
        Bad{with_queues(R"({"class": "1:10", "isolate_clas": "1:20"})"), "/ports/0/queues/0/isolate_clas",
            "an unknown key", "class", R"(did you mean "isolate_class"?)"},
        Bad{in_waterline(R"("hihg": 1)"), "/ports/0/queues/0/waterline/hihg", "an unknown key",
            "high, low, probability or unit", R"(did you mean "high"?)"},
        Bad{in("detection", R"("poll_interval_ms": 1)"), "/detection/poll_interval_ms", "an unknown key",
            "guard", R"(did you mean "poll_interval_us"?)"},
        Bad{in("detection", R"("guard": {"max_ratio": 1})"), "/detection/guard/max_ratio", "an unknown key",
            "min_bytes, min_ratio or window_ms", R"(did you mean "min_ratio"?)"},
        Bad{in("cip", R"("key_file": "k")"), "/cip/key_file", "an unknown key", "ethertype",
            R"(remove "key_file")"},
        Bad{in("flows", R"("": 1)"), "/flows/", "an unknown key", "capacity", R"(remove "")"},
        Bad{R"({"ports": [{}]})", "/ports/0/name", "nothing",
            "an interface name or glob of 1 to 15 characters", "required"},
        Bad{with_queues(R"({"isolate_class": "1:20"})"), "/ports/0/queues/0/class", "nothing",
            "\"root\" or a class", "required"}));

INSTANTIATE_TEST_SUITE_P(
    Types, ConfigFault,
    testing::Values(
        Bad{"[]", "", "an empty list", "an object", R"({"ports": [{"name": "eth1"}]})"},
        Bad{"null", "", "null", "an object", "write one object"},
        Bad{R"("isolate")", "", R"("isolate")", "an object", "write one object"},
        Bad{R"({"$schema": 7})", "/$schema", "7", "a string", "editors"},
        Bad{R"({"ports": {"name": "eth1"}})", "/ports", "an object", "a list of 0 to 256 entries", "ports:"},
        Bad{R"({"ports": ["eth1"]})", "/ports/0", R"("eth1")", "an object", "ports:"},
        Bad{R"({"ports": [{"name": 1}]})", "/ports/0/name", "1", "an interface name", "ip link"},
        Bad{in_port(R"("accept_cip": "false")"), "/ports/0/accept_cip", R"("false")", "true or false",
            "write false"},
        Bad{in_port(R"("send_cip": 1)"), "/ports/0/send_cip", "1", "true or false", "send_cip: whether"},
        Bad{in_port(R"("queues": null)"), "/ports/0/queues", "null", "a list of 0 to 8 entries", "queues:"},
        Bad{in_rewrite(R"("pcp": 7)"), "/ports/0/rewrite/pcp", "7", "an integer from 0 to 6", "pcp:"},
        Bad{in_rewrite(R"("dscp": 63)"), "/ports/0/rewrite/dscp", "63", "an integer from 0 to 62", "dscp:"},
        Bad{in_port(R"("cip_class": 5)"), "/ports/0/cip_class", "5", class_text,
            "cip_class: class that CIPs take"},
        Bad{with_queues(R"("1:10")"), "/ports/0/queues/0", R"("1:10")", "an object", "queues:"},
        Bad{with_queues(R"({"class": 110})"), "/ports/0/queues/0/class", "110", "\"root\" or a class",
            "tc class show"},
        Bad{with_queues(R"({"class": "1:10", "isolate_class": 20})"), "/ports/0/queues/0/isolate_class", "20",
            class_text + " or a list of 1 to 4 entries", "1:20"},
        Bad{with_queues(R"({"class": "1:10", "isolate_class": ["1:20", {}]})"),
            "/ports/0/queues/0/isolate_class/1", "an empty object", class_text, "1:20"},
        Bad{with_queues(R"({"class": "1:10", "waterline": 200000})"), "/ports/0/queues/0/waterline", "200000",
            "an object", "waterline: limits"},
        Bad{in_waterline(R"("low": "50000")"), "/ports/0/queues/0/waterline/low", R"("50000")", amount,
            "write 50000"},
        Bad{in_waterline(R"("high": 200000.0)"), "/ports/0/queues/0/waterline/high", "200000.0", amount,
            "write 200000"},
        Bad{in_waterline(R"("high": 2e5)"), "/ports/0/queues/0/waterline/high", "200000.0", amount,
            "write 200000"},
        Bad{in_waterline(R"("high": 1.5)"), "/ports/0/queues/0/waterline/high", "1.5", amount,
            "in bytes or packets"},
        Bad{in_waterline(R"("high": "200k")"), "/ports/0/queues/0/waterline/high", R"("200k")", amount,
            "in bytes or packets"},
        Bad{in_waterline(R"("probability": "0.1")"), "/ports/0/queues/0/waterline/probability", R"("0.1")",
            "a number from 0 to 1", "write 0.1"},
        Bad{in("detection", R"("guard": false)"), "/detection/guard", "false", "an object or \"off\"",
            "guard:"},
        Bad{in("detection", R"("poll_interval_us": "5")"), "/detection/poll_interval_us", R"("5")",
            "an integer from 100 to 1000000", "in microseconds"},
        Bad{in("cip", R"("ethertype": 34825)"), "/cip/ethertype", "34825", "an EtherType in hex", "0x8809"}));

INSTANTIATE_TEST_SUITE_P(
    Values, ConfigFault,
    testing::Values(
        Bad{R"({"mode": "watch"})", "/mode", R"("watch")", R"("isolate" or "observe")", "mode: what"},
        Bad{R"({"log_level": "warning"})", "/log_level", R"("warning")",
            R"("error", "warn", "info" or "debug")", R"(did you mean "warn"?)"},
        Bad{in_port(R"("trap": "xdp")"), "/ports/0/trap", R"("xdp")",
            R"("auto", "native", "tc" or "generic")", "trap:"},
        Bad{in_port(R"("trap": "Native")"), "/ports/0/trap", R"("Native")", R"("auto", "native")",
            R"(did you mean "native"?)"},
        Bad{in("detection", R"("source": "qdisc")"), "/detection/source", R"("qdisc")",
            R"("auto", "kernel" or "poll")", "source: who reads"},
        Bad{in("detection", R"("guard": "on")"), "/detection/guard", R"("on")", "an object or \"off\"",
            "\"off\""},
        Bad{in("detection", R"("guard": "offs")"), "/detection/guard", R"("offs")", "an object or \"off\"",
            "\"off\""},
        Bad{in("flows", R"("table": "all")"), "/flows/table", R"("all")", R"("congested" or "full")",
            "did you mean"},
        Bad{in("cip", R"("form": "figure4")"), "/cip/form", R"("figure4")", R"("headers" or "descriptor")",
            "form:"},
        Bad{R"({"tunnels": {"vxlan_ports": [0]}})", "/tunnels/vxlan_ports/0", "0",
            "an integer from 1 to 65535", "vxlan_ports:"},
        Bad{R"({"tunnels": {"vxlan_ports": [1, 2, 3, 4, 5]}})", "/tunnels/vxlan_ports", "a list of 5",
            "a list of 0 to 4 entries", "vxlan_ports:"},
        Bad{R"({"tunnels": {"vxlan_ports": 4789}})", "/tunnels/vxlan_ports", "4789", "a list",
            "vxlan_ports:"},
        Bad{with_queues(R"({"class": "1:10", "match": {"pcp": [8]}})"), "/ports/0/queues/0/match/pcp/0", "8",
            "an integer from 0 to 7", "pcp:"},
        Bad{with_queues(R"({"class": "1:10", "match": {"dscp": [64]}})"), "/ports/0/queues/0/match/dscp/0",
            "64", "an integer from 0 to 63", "dscp:"},
        Bad{with_queues(R"({"class": "1:10", "match": {"priority": []}})"),
            "/ports/0/queues/0/match/priority", "an empty list", "a list of 1 to 8 entries", "priority:"},
        Bad{with_queues(R"({"class": "1:10", "match": {"dscp": 0}})"), "/ports/0/queues/0/match/dscp", "0",
            "a list", "dscp:"},
        Bad{in("cip", R"("sender": "kernel")"), "/cip/sender", R"("kernel")", R"("auto" or "agent")",
            "sender:"},
        Bad{in("cip", R"("tx_priority": 8)"), "/cip/tx_priority", "8", "an integer from 0 to 7",
            "tx_priority:"},
        Bad{in("cip", R"("tx_priority": -1)"), "/cip/tx_priority", "-1", "an integer from 0 to 7",
            "tx_priority:"},
        Bad{in("cip", R"("ethertype": "0x05FF")"), "/cip/ethertype", R"("0x05FF")",
            R"(an EtherType in hex, "0x0600")", "0x88B5"},
        Bad{in("cip", R"("ethertype": "8809")"), "/cip/ethertype", R"("8809")", "an EtherType in hex",
            "0x8809"},
        Bad{in("cip", R"("ethertype": "0x88090")"), "/cip/ethertype", R"("0x88090")", "an EtherType in hex",
            "0x8809"},
        Bad{in("cip", R"("ethertype": "0x0800")"), "/cip/ethertype", R"("0x0800", the EtherType of IPv4)",
            "an EtherType that carries", "0x88B5"},
        Bad{in("cip", R"("ethertype": "0x86dd")"), "/cip/ethertype", R"("0x86DD", the EtherType of IPv6)",
            "an EtherType that carries", "0x88B5"},
        Bad{in("cip", R"("ethertype": "0x8100")"), "/cip/ethertype",
            R"("0x8100", the EtherType of VLAN tags)", "an EtherType", "0x88B5"},
        Bad{in_waterline(R"("low": -1)"), "/ports/0/queues/0/waterline/low", "-1", amount, "low:"},
        Bad{in_waterline(R"("high": 4294967296)"), "/ports/0/queues/0/waterline/high", "4294967296", amount,
            "high:"},
        Bad{in_waterline(R"("high": 18446744073709551615)"), "/ports/0/queues/0/waterline/high",
            "18446744073709551615", amount, "high:"},
        Bad{in_waterline(R"("high": 1e20)"), "/ports/0/queues/0/waterline/high", "1e+20", amount, "high:"},
        Bad{in_waterline(R"("probability": 1.01)"), "/ports/0/queues/0/waterline/probability", "1.01",
            "a number from 0 to 1", "probability:"},
        Bad{in_waterline(R"("probability": -0.1)"), "/ports/0/queues/0/waterline/probability", "-0.1",
            "a number from 0 to 1", "probability:"},
        Bad{in_waterline(R"("unit": "kilobytes")"), "/ports/0/queues/0/waterline/unit", R"("kilobytes")",
            R"("bytes" or "packets")", R"(did you mean "bytes"?)"}));

std::string named(const std::string &name) {
    return R"({"ports": [{"name": ")" + name + "\"}]}";
}

Bad bad_name(const std::string &name) {
    return {named(name), "/ports/0/name", '"' + name + '"', "an interface name or glob of 1 to 15 characters",
            "ip link"};
}

INSTANTIATE_TEST_SUITE_P(Names, ConfigFault,
                         testing::Values(bad_name(""), bad_name("."), bad_name(".."), bad_name("a/b"),
                                         bad_name("a b"), bad_name("eth0:1"), bad_name("sixteen-letters-"),
                                         bad_name("eth0\\n"), bad_name("\\u0000"), bad_name("a\\u0000b"),
                                         bad_name("\\u007f")));

TEST(Config, OddNamesThatTheKernelTakes) {
    for (const char *name :
         {"fifteen-letters", "...", ".a", "eth0.100", "br-lan", "veth@1", "*", "[a-z]*", "d\u00fc"})
        EXPECT_EQ(parsed(named(name)).ports.at(0).name, name);
}

Bad bad_class(const std::string &text) {
    return {with_queues(R"({"class": ")" + text + "\"}"), "/ports/0/queues/0/class", '"' + text + '"',
            "\"root\" or a class", "tc class show"};
}

Bad bad_isolate_class(const std::string &text) {
    return {with_queues(R"({"class": "1:10", "isolate_class": ")" + text + "\"}"),
            "/ports/0/queues/0/isolate_class", '"' + text + '"', class_text, "1:20"};
}

INSTANTIATE_TEST_SUITE_P(
    Classes, ConfigFault,
    testing::Values(
        bad_class(""), bad_class("1:"), bad_class(":10"), bad_class("1:0"), bad_class("0:1"),
        bad_class("1:12345"), bad_class("12345:1"), bad_class("ffff:1"), bad_class("FFFF:ffff"),
        bad_class("1:1g"), bad_class(" 1:10"), bad_class("1:10 "), bad_class("1:10\\n"), bad_class("leaves"),
        bad_class("ROOT"), bad_class("0x1:1"), bad_class("1:1\\u0000"), bad_isolate_class("root"),
        bad_isolate_class("1:0000"), bad_isolate_class("1:12345"), bad_isolate_class("ffff:ffff"),
        Bad{in_port(R"("cip_class": "root")"), "/ports/0/cip_class", R"("root")", class_text, "cip_class:"},
        Bad{in_port(R"("cip_class": "1:0")"), "/ports/0/cip_class", R"("1:0")", class_text, "cip_class:"}));

const std::string five = R"(["1:20", "1:21", "1:22", "1:23", "1:24"])";

INSTANTIATE_TEST_SUITE_P(
    Lists, ConfigFault,
    testing::Values(
        Bad{with_queues(R"({"class": "1:10", "isolate_class": []})"), "/ports/0/queues/0/isolate_class",
            "an empty list", class_text + " or a list of 1 to 4 entries", "isolate_class:"},
        Bad{with_queues(R"({"class": "1:10", "isolate_class": )" + five + "}"),
            "/ports/0/queues/0/isolate_class", "a list of 5", class_text + " or a list of 1 to 4 entries",
            "isolate_class:"},
        Bad{with_queues(
                R"({"class": "1:1"}, {"class": "1:2"}, {"class": "1:3"}, {"class": "1:4"}, {"class": "1:5"},
                           {"class": "1:6"}, {"class": "1:7"}, {"class": "1:8"}, {"class": "1:9"})"),
            "/ports/0/queues", "a list of 9", "a list of 0 to 8 entries", "queues:"}));

INSTANTIATE_TEST_SUITE_P(
    Together, ConfigFault,
    testing::Values(
        Bad{in_waterline(R"("low": 300000, "high": 200000)"), "/ports/0/queues/0/waterline/low", "300000",
            "at most high (200000)", "lower low"},
        Bad{in_waterline(R"("low": 200001)"), "/ports/0/queues/0/waterline/low", "200001",
            "at most high (200000 by default)", "raise high"},
        Bad{with_queues(R"({"class": "1:1"}, {"class": "1:2", "waterline": {"low": 1, "high": 0}})"),
            "/ports/0/queues/1/waterline/low", "1", "at most high (0)", "single waterline"},
        Bad{R"({"ports": [{"name": "a"}, {"name": "b"}, {"name": "a"}]})", "/ports/2/name", R"("a" again)",
            "each port once", "merge it with /ports/0"},
        Bad{with_queues(R"({"class": "1:a"}, {"class": "root"}, {"class": "01:0A"})"),
            "/ports/0/queues/2/class", R"("1:a" again)", "each class once in a port",
            "merge it with /ports/0/queues/0"},
        Bad{with_queues(R"({"class": "root"}, {"class": "root"})"), "/ports/0/queues/1/class",
            R"("root" again)", "each class once in a port", "/ports/0/queues/0"},
        Bad{with_queues(R"({"class": "1:10", "isolate_class": "1:10"})"), "/ports/0/queues/0/isolate_class",
            R"("1:10", the class of the queue itself)", "another class, scheduled below it",
            "low-priority class"},
        Bad{with_queues(R"({"class": "1:10", "isolate_class": ["1:20", "1:0010"]})"),
            "/ports/0/queues/0/isolate_class/1", R"("1:10", the class of the queue itself)", "another class",
            "low-priority class"},
        Bad{with_queues(R"({"class": "1:10", "isolate_class": ["1:20", "1:21", "1:20"]})"),
            "/ports/0/queues/0/isolate_class/2", R"("1:20" again)", "each class once in the list",
            "remove the second one"},
        Bad{with_queues(R"({"class": "1:10", "isolate_class": ["1:20"]}, {"class": "1:20"})"),
            "/ports/0/queues/0/isolate_class/0", R"("1:20", the class of /ports/0/queues/1)",
            "a class that is no monitored queue", "no other traffic"},
        Bad{with_queues(R"({"class": "1:20"}, {"class": "1:10", "isolate_class": "1:20"})"),
            "/ports/0/queues/1/isolate_class", R"("1:20", the class of /ports/0/queues/0)",
            "a class that is no monitored queue", "no other traffic"},
        Bad{in_port(R"("rewrite": {"dscp": 1})"), "/ports/0/rewrite", "a rewrite in a port without queues",
            "a rewrite beside at least one queue", R"(its class may be "root")"},
        Bad{in_rewrite(""), "/ports/0/rewrite", "neither pcp nor dscp, and no ecn", "pcp, dscp, ecn, or",
            "remove rewrite"},
        Bad{in_rewrite(R"("tag_untagged": false)"), "/ports/0/rewrite", "neither pcp nor dscp, and no ecn",
            "pcp, dscp, ecn, or", "remove rewrite"},
        Bad{with_queues(R"({"class": "1:10", "match": {}})"), "/ports/0/queues/0/match",
            "neither priority nor pcp nor dscp", "priority, pcp, dscp, or", "remove match"},
        Bad{in_rewrite(R"("dscp": 1, "tag_untagged": true)"), "/ports/0/rewrite/tag_untagged",
            "true without pcp", "true with pcp 1", "set pcp to 1"},
        Bad{in_rewrite(R"("pcp": 0, "tag_untagged": true)"), "/ports/0/rewrite/tag_untagged",
            "true with pcp 0", "true with pcp 1", "leave out tag_untagged"},
        Bad{in("detection", R"("stale_ms": 1)"), "/detection/stale_ms", "1",
            "more than poll_interval_us (1000 us)", "set stale_ms above 1,"},
        Bad{in("detection", R"("stale_ms": 2, "poll_interval_us": 2000)"), "/detection/stale_ms", "2",
            "more than poll_interval_us (2000 us)", "set stale_ms above 2,"},
        Bad{in("detection", R"("poll_interval_us": 50000)"), "/detection/stale_ms", "50 by default",
            "more than poll_interval_us (50000 us)", "poll more often"},
        Bad{in("flows", R"("idle_timeout_ms": 501, "clear_timeout_ms": 500)"), "/flows/idle_timeout_ms",
            "501", "at most clear_timeout_ms (500)", "lower idle_timeout_ms"},
        Bad{in("flows", R"("idle_timeout_ms": 30001)"), "/flows/idle_timeout_ms", "30001",
            "at most clear_timeout_ms (30000 by default)", "raise clear_timeout_ms"},
        Bad{in("flows", R"("clear_timeout_ms": 999)"), "/flows/idle_timeout_ms", "1000 by default",
            "at most clear_timeout_ms (999)", "raise clear_timeout_ms"}));

TEST(Config, NeighboursOfFaultsAreFine) {
    // The same class in two ports, an isolation class shared by two queues, limits that just hold.
    parsed(
        R"({"ports": [{"name": "a", "queues": [{"class": "1:10"}]},
                          {"name": "b", "queues": [{"class": "1:10"}]}]})");
    parsed(with_queues(
        R"({"class": "1:10", "isolate_class": "1:20"}, {"class": "1:11", "isolate_class": "1:20"})"));
    parsed(in_rewrite(R"("pcp": 1, "tag_untagged": true)"));
    parsed(in_rewrite(R"("dscp": 8, "tag_untagged": false)"));
    parsed(in("detection", R"("poll_interval_us": 49999)"));
    parsed(in("flows", R"("idle_timeout_ms": 30000)"));
    parsed(in("flows", R"("clear_timeout_ms": 1000)"));
}

TEST(Config, UnknownKeyIsToldBeforeTheMissingOneItWasMeantToBe) {
    const auto config = parse_config(R"({"ports": [{"naem": "eth1"}]})", "f.json");
    ASSERT_FALSE(config);
    EXPECT_THAT(config.error().message(), HasSubstr("/ports/0/naem: found an unknown key"));
}

} // namespace
} // namespace spillway
