// SPDX-License-Identifier: Apache-2.0
// The manual pages and README must name what the program has: every key with its default and bounds, every
// reason.
#include "agent/cli/views.h"
#include "agent/config/schema.h"
#include "agent/doctor/diagnosis.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <string>

namespace spillway {
namespace {

using nlohmann::json;
using testing::ContainsRegex;
using testing::HasSubstr;

std::string read(const std::filesystem::path &below_top) {
    std::ifstream file(std::filesystem::path(__FILE__).parent_path() / "../.." / below_top);
    return {std::istreambuf_iterator<char>(file), {}};
}

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

/// Unlike a matcher it does not print the whole page.
bool has(const std::string &page, const std::string &expression) {
    return std::regex_search(page, std::regex(expression));
}

/// What the page says about a key: from its list item to the next one; empty when it has none.
std::string entry(const std::string &page, const std::string &key) {
    const std::string item = ".It Ic " + key + "\n";
    const auto begin = page.find(item);
    if (begin == std::string::npos)
        return {};
    const auto end = page.find(".It Ic ", begin + item.size());
    return page.substr(begin, end - begin);
}

/// A value as the page writes it: a list by its members.
std::string written(const json &value) {
    if (value.is_array())
        return value.empty() ? "none" : written(value[0]);
    return value.is_string() ? value.get<std::string>() : value.dump();
}

TEST(Manual, ExplainsEveryKeyWithDefaultAndBounds) {
    const std::string page = read("deploy/man/spillway.json.5");
    ASSERT_FALSE(page.empty());
    for_each_key(json::parse(config_schema()), [&page](const std::string &key, const json &rule) {
        SCOPED_TRACE(key);
        if (rule.at("type") == "object") { // its members are visited too
            EXPECT_TRUE(has(page, "\n\\.It Ic ([a-z]+ , )*" + key));
            return;
        }
        const std::string text = entry(page, key);
        ASSERT_NE(text, "");
        if (rule.contains("default")) {
            EXPECT_THAT(text, ContainsRegex("Default:?[ \n](.Ql )?" + written(rule.at("default"))));
        }
        for (const char *bound : {"minimum", "maximum"}) {
            if (rule.contains(bound) && key != "low") { // at most high
                EXPECT_THAT(text, HasSubstr(written(rule.at(bound)))) << bound;
            }
        }
        if (rule.contains("enum")) {
            for (const auto &value : rule.at("enum"))
                EXPECT_THAT(text, HasSubstr(written(value)));
        }
    });
}

TEST(Manual, HasNoKeyThatTheSchemaLacks) {
    std::string keys = " ";
    for_each_key(json::parse(config_schema()),
                 [&keys](const std::string &key, const json &) { keys += key + " "; });
    const std::string page = read("deploy/man/spillway.json.5");
    const std::string item = "\n.It Ic ";
    for (auto at = page.find(item); at != std::string::npos; at = page.find(item, at + 1)) {
        std::istringstream line(page.substr(at + item.size(), page.find('\n', at + 1) - at - item.size()));
        for (std::string word; line >> word;) {
            if (word != ",") {
                EXPECT_THAT(keys, HasSubstr(" " + word + " "));
            }
        }
    }
}

TEST(Manual, AndReadmeExplainEveryReasonInStatus) {
    const std::string page = read("deploy/man/spillway.8");
    const std::string readme = read("README.md");
    const auto explains = [&](const std::string &reason) {
        EXPECT_TRUE(has(page, "\n\\.It Li " + reason + "\n")) << reason;
        EXPECT_TRUE(has(readme, "\n\\| .*`" + reason + "`.* \\|")) << reason;
    };
    int reasons = 0;
    for (int i = 1; waiting_name(static_cast<spillway_waiting>(i)) != "unknown"; ++i, ++reasons)
        explains(waiting_name(static_cast<spillway_waiting>(i)));
    EXPECT_GE(reasons, SPILLWAY_WAITING_NO_XDP);

    Snapshot snapshot;
    snapshot.ports.resize(1);
    snapshot.ports[0].ifindex = 1;
    snapshot.ports[0].degraded = ~0U;
    const StatusView view = status_view(snapshot);
    ASSERT_EQ(view.ports.size(), 1U);
    for (const auto &reason : view.ports[0].degraded)
        explains(reason);
    for (const auto &[reason, count] : view.ports[0].rejected)
        explains(reason);
    for (const auto &[reason, count] : view.lost)
        explains(reason);
}

TEST(Manual, ExplainsEveryCheckOfDoctor) {
    const std::string page = read("deploy/man/spillway.8");
    const auto begin = page.find(".Sh DOCTOR");
    ASSERT_NE(begin, std::string::npos);
    const std::string section = page.substr(begin, page.find("\n.Sh ", begin) - begin);
    for (const char *id : check_ids)
        EXPECT_TRUE(has(section, "\n\\.It Li ([a-z_]+ , )*" + std::string(id) + "( , [a-z_]+)*\n")) << id;
}

} // namespace
} // namespace spillway
