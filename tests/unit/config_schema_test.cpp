// SPDX-License-Identifier: Apache-2.0
// The schema file is what users read and editors use: it must be complete, and say what the program does.
#include "agent/config/config.h"
#include "agent/config/schema.h"
#include "include/spillway/abi.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>
#include <vector>

namespace spillway {
namespace {

using nlohmann::json;
using testing::AnyOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

const std::filesystem::path deploy = std::filesystem::path(__FILE__).parent_path() / "../../deploy";

std::string read(const std::filesystem::path &path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

json schema() {
    return json::parse(config_schema());
}

bool has_type(const json &rule, const std::string &type) {
    const json &types = rule.at("type");
    return types == type || (types.is_array() && std::ranges::count(types, json(type)) > 0);
}

/// Calls `visit` with every key of the schema and the rule for its value.
void for_each_key(const json &rule,
                  const std::function<void(const std::string &key, const json &rule)> &visit) {
    if (rule.contains("properties")) {
        for (const auto &[key, inner] : rule.at("properties").items()) {
            visit(key, inner);
            for_each_key(inner, visit);
        }
    }
    if (rule.contains("items"))
        for_each_key(rule.at("items"), visit);
}

TEST(ConfigSchema, IsTheInstalledFile) {
    EXPECT_EQ(config_schema(), read(deploy / "spillway.schema.json"));
}

TEST(ConfigSchema, ExplainsEveryKey) {
    std::size_t keys = 0;
    for_each_key(schema(), [&keys](const std::string &key, const json &rule) {
        ++keys;
        SCOPED_TRACE(key);
        const std::string about = rule.value("description", "");
        ASSERT_FALSE(about.empty());
        if (key == "$schema")
            return;
        EXPECT_THAT(about, AnyOf(HasSubstr("default"), EndsWith("required")));
        if (rule.contains("default") && rule["default"] != json::array()) {
            EXPECT_THAT(about, HasSubstr("default " + rule["default"].dump()));
        }
        for (const auto &[suffix, unit] :
             {std::pair{"_ms", "in milliseconds"}, {"_us", "in microseconds"}, {"_bytes", "in bytes"}}) {
            EXPECT_TRUE(!key.ends_with(suffix) || about.contains(unit)) << about;
        }
    });
    EXPECT_GT(keys, 30U);
}

TEST(ConfigSchema, LeavesNothingOpen) {
    const auto check = [](const std::string &key, const json &rule) {
        SCOPED_TRACE(key);
        if (has_type(rule, "object")) {
            EXPECT_EQ(rule.at("additionalProperties"), false);
        }
        if (has_type(rule, "array")) {
            EXPECT_TRUE(rule.contains("maxItems"));
        }
        if (has_type(rule, "integer") || has_type(rule, "number")) {
            EXPECT_LT(rule.at("minimum"), rule.at("maximum"));
        }
        if (has_type(rule, "string") && key != "$schema") {
            EXPECT_TRUE(rule.contains("enum") || (rule.contains("pattern") && rule.contains("title")));
        }
        if (rule.contains("items") && rule["items"].contains("pattern")) {
            EXPECT_EQ(rule["items"]["pattern"], rule.at("pattern"));
        }
    };
    check("top level", schema());
    for_each_key(schema(), check);
}

TEST(ConfigSchema, AllowsNoMoreThanTheMapsHold) {
    const json port = schema()["properties"]["ports"]["items"];
    const json queues = port["properties"]["queues"];
    EXPECT_EQ(queues["maxItems"], SPILLWAY_PORT_QUEUES_MAX);
    EXPECT_EQ(queues["items"]["properties"]["isolate_class"]["maxItems"], SPILLWAY_ISOLATION_MAX);
    EXPECT_LE(schema()["properties"]["ports"]["maxItems"], SPILLWAY_PORTS_MAX);
}

TEST(ConfigSchema, ClassPatternsAllowWhatTheProgramReads) {
    const json port = schema()["properties"]["ports"]["items"]["properties"];
    const json queue = port["queues"]["items"]["properties"];
    const std::regex with_root(queue["class"]["pattern"].get<std::string>());
    const std::regex without_root(queue["isolate_class"]["pattern"].get<std::string>());
    EXPECT_EQ(port["cip_class"]["pattern"], queue["isolate_class"]["pattern"]);
    EXPECT_TRUE(std::regex_search("root", with_root));
    EXPECT_FALSE(std::regex_search("root", without_root));
    std::vector<std::string> texts{""};
    for (std::size_t i = 0; i < texts.size() && texts[i].size() <= 9; ++i) {
        const std::string text = texts[i];
        const bool read = ClassId::parse(text).has_value();
        ASSERT_EQ(std::regex_search(text, with_root), read) << text;
        ASSERT_EQ(std::regex_search(text, without_root), read) << text;
        for (const char c : {'0', 'f', ':'})
            texts.push_back(text + c);
    }
}

/// A document that writes out every default of `rule`.
json written_out(const json &rule) {
    json document = json::object();
    for (const auto &[key, inner] : rule.at("properties").items()) {
        if (inner.contains("default"))
            document[key] = inner["default"];
        else if (has_type(inner, "object") && key != "waterline" && key != "rewrite" &&
                 key != "match") // these mean something
            document[key] = written_out(inner);
    }
    return document;
}

TEST(ConfigSchema, DefaultsAreThoseOfTheProgram) {
    const auto config = parse_config(written_out(schema()).dump(), "test");
    ASSERT_TRUE(config) << config.error().text();
    EXPECT_EQ(*config, Config{});

    const json port_rule = schema()["properties"]["ports"]["items"];
    const json queue_rule = port_rule["properties"]["queues"]["items"];
    json queue = written_out(queue_rule);
    queue["class"] = "root";
    queue["waterline"] = written_out(queue_rule["properties"]["waterline"]);
    json port = written_out(port_rule);
    port["name"] = "eth1";
    port["queues"] = {queue};
    port["rewrite"] = written_out(port_rule["properties"]["rewrite"]);
    port["rewrite"]["pcp"] = 1;
    const auto with_port = parse_config(json{{"ports", {port}}}.dump(), "test");
    ASSERT_TRUE(with_port) << with_port.error().text();
    PortConfig expected;
    expected.name = "eth1";
    expected.queues = {QueueConfig{.queue_class = {}, .isolate_class = {}, .waterline = WaterlineConfig{}}};
    expected.rewrite.pcp = 1;
    EXPECT_THAT(with_port->ports, ElementsAre(expected));
}

TEST(ConfigSchema, NumbersStopAtTheirLimits) {
    std::size_t numbers = 0;
    for (const auto &[object, object_rule] :
         {std::pair{"/detection", "/properties/detection"},
          {"/detection/guard", "/properties/detection/properties/guard"},
          {"/flows", "/properties/flows"},
          {"/cip", "/properties/cip"},
          {"/ports/0/rewrite", "/properties/ports/items/properties/rewrite"}}) {
        const json rules = schema()[json::json_pointer(object_rule)]["properties"];
        for (const auto &[key, rule] : rules.items()) {
            if (!rule.contains("minimum"))
                continue;
            ++numbers;
            const std::string place = std::string(object) + "/" + key;
            SCOPED_TRACE(place);
            const auto fault = [&place](const json &value) {
                json document{{"ports", {{{"name", "eth1"}}}}};
                document[json::json_pointer(place)] = value;
                return find_schema_fault(document);
            };
            EXPECT_FALSE(fault(rule["minimum"]));
            EXPECT_FALSE(fault(rule["maximum"]));
            const auto below = rule["minimum"].get<std::int64_t>() - 1;
            const auto above = rule["maximum"].get<std::int64_t>() + 1;
            for (const json &wrong : {json(below), json(above), json(), json(true), json({1}), json("1")}) {
                const auto found = fault(wrong);
                ASSERT_TRUE(found) << wrong;
                EXPECT_EQ(found->place, place);
                EXPECT_THAT(found->allowed,
                            EndsWith("from " + rule["minimum"].dump() + " to " + rule["maximum"].dump()));
            }
            EXPECT_EQ(fault(0.5).has_value(), rule["type"] == "integer");
        }
    }
    EXPECT_EQ(numbers, 16U);
}

TEST(ConfigSchema, ExampleIsValidAndStartsFromTheDefaults) {
    const auto config = load_config(deploy / "spillway.json");
    ASSERT_TRUE(config) << config.error().text();
    const PortConfig port{.name = "eth1",
                          .cip_class = ClassId{0x10005},
                          .queues = {{.queue_class = {0x10010},
                                      .isolate_class = {{0x10020}},
                                      .waterline = WaterlineConfig{.low = 50000}}}};
    EXPECT_THAT(config->ports, ElementsAre(port));
    Config rest = *config;
    rest.ports.clear();
    EXPECT_EQ(rest, Config{});
}

} // namespace
} // namespace spillway
