// SPDX-License-Identifier: Apache-2.0
// valijson says whether and where a document breaks the schema; what it found and what would be allowed is
// worded here, from the value and the schema at that place.
#include "agent/config/schema.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <fmt/core.h>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validation_results.hpp>
#include <valijson/validator.hpp>
#include <vector>

namespace spillway {

namespace {

using nlohmann::json;

/// A value of the document with the part of the schema that governs it.
struct Spot {
    const json *value;
    const json *rule;
    std::string place; ///< JSON pointer to the value
    std::string key;   ///< the innermost key on the way; a list's items have the list's
    std::string about; ///< description of that key
};

Spot member(const Spot &outer, const std::string &key) {
    const json &rule = outer.rule->at("properties").at(key);
    const auto value = outer.value->find(key);
    return {.value = value == outer.value->end() ? nullptr : &*value,
            .rule = &rule,
            .place = outer.place + pointer_step(key),
            .key = key,
            .about = rule.at("description")};
}

Spot item(const Spot &list, const std::string &index) {
    return {.value = &list.value->at(std::stoul(index)),
            .rule = &list.rule->at("items"),
            .place = list.place + "/" + index,
            .key = list.key,
            .about = list.about};
}

/// Follows valijson's path: "<root>", "[ports]", "[0]", ...
Spot follow(const json &document, const json &schema, const std::vector<std::string> &path) {
    Spot spot{.value = &document, .rule = &schema, .place = "", .key = "", .about = ""};
    for (auto step = path.begin() + 1; step != path.end(); ++step) {
        const std::string name = step->substr(1, step->size() - 2);
        spot = spot.value->is_array() ? item(spot, name) : member(spot, name);
    }
    return spot;
}

std::vector<std::string> keys(const json &rule) {
    std::vector<std::string> keys;
    for (const auto &[key, unused] : rule.at("properties").items())
        keys.push_back(key);
    return keys;
}

std::vector<std::string> types(const json &rule) {
    const json &type = rule.at("type");
    return type.is_array() ? type.get<std::vector<std::string>>() : std::vector<std::string>{type};
}

std::string allowed_of_type(const json &rule, const std::string &type) {
    if (type == "boolean")
        return "true or false";
    if (type == "integer" || type == "number")
        return fmt::format("{} from {} to {}", type == "integer" ? "an integer" : "a number",
                           rule.at("minimum").dump(), rule.at("maximum").dump());
    if (type == "array")
        return fmt::format("a list of {} to {} entries", rule.value("minItems", 0),
                           rule.at("maxItems").dump());
    if (type == "object")
        return "an object";
    return rule.value("title", "a string");
}

std::string allowed(const json &rule) {
    std::vector<std::string> choices;
    if (const auto values = rule.find("enum"); values != rule.end())
        std::ranges::transform(*values, std::back_inserter(choices), [](const json &v) { return shown(v); });
    else
        std::ranges::transform(types(rule), std::back_inserter(choices),
                               [&rule](const std::string &type) { return allowed_of_type(rule, type); });
    return listed(choices);
}

/// Levenshtein's: how many letters to change, add or drop.
std::size_t distance(std::string_view from, std::string_view to) {
    std::vector<std::size_t> row(to.size() + 1);
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (std::size_t i = 0; i < from.size(); ++i) {
        std::size_t diagonal = std::exchange(row[0], i + 1);
        for (std::size_t j = 0; j < to.size(); ++j)
            diagonal = std::exchange(
                row[j + 1], std::min({row[j] + 1, row[j + 1] + 1, diagonal + (from[i] == to[j] ? 0 : 1)}));
    }
    return row.back();
}

/// The one of `choices` that `text` was probably meant to be; none if all are too different.
std::optional<std::string> closest(std::string_view text, const std::vector<std::string> &choices) {
    constexpr std::size_t longest = 32; // no key is near a longer one
    if (choices.empty() || text.size() > longest)
        return std::nullopt;
    const auto near = std::ranges::min_element(
        choices, {}, [text](const std::string &choice) { return distance(text, choice); });
    const std::size_t enough = std::max<std::size_t>(1, std::max(text.size(), near->size()) / 2);
    return distance(text, *near) <= enough ? std::optional(*near) : std::nullopt;
}

Fault unknown_key(const Spot &spot, const std::string &key) {
    const auto known = keys(*spot.rule);
    const auto meant = closest(key, known);
    return {.place = spot.place + pointer_step(key),
            .found = "an unknown key",
            .allowed = listed(known),
            .hint = meant ? fmt::format("did you mean {}?", in_quotes(*meant))
                          : fmt::format("remove {}, or use one of the keys allowed here", in_quotes(key))};
}

/// The value as it was probably meant: 1000 for "1000" or 1e3, true for "true"; none if that does not fit.
std::optional<json> meant_value(const json &value, const json &rule) {
    json meant;
    if (value.is_string())
        meant = json::parse(value.get_ref<const std::string &>(), nullptr, false);
    else if (value.is_number_float() && std::abs(value.get<double>()) <= std::numeric_limits<int>::max())
        meant = static_cast<int>(value.get<double>());
    const bool same = value.is_string() || value == meant;
    const bool fits = std::ranges::any_of(types(rule), [&meant](const std::string &type) {
        return (type == "integer" && meant.is_number_integer()) || (type == "number" && meant.is_number()) ||
               (type == "boolean" && meant.is_boolean());
    });
    const bool in_range = rule.value("minimum", meant) <= meant && meant <= rule.value("maximum", meant);
    return same && fits && in_range ? std::optional(meant) : std::nullopt;
}

std::string hint_for(const Spot &spot) {
    if (spot.key.empty())
        return R"(write one object, such as {"ports": [{"name": "eth1"}]})";
    if (spot.value != nullptr) {
        if (const auto meant = meant_value(*spot.value, *spot.rule))
            return fmt::format("write {}", meant->dump());
        const auto choices = spot.rule->value("enum", std::vector<std::string>{});
        const auto *text = spot.value->get_ptr<const std::string *>();
        if (const auto meant = text != nullptr ? closest(*text, choices) : std::nullopt)
            return fmt::format("did you mean {}?", in_quotes(*meant));
    }
    return fmt::format("{}: {}", spot.key, spot.about);
}

Fault wrong(const Spot &spot) {
    return {.place = spot.place,
            .found = spot.value == nullptr ? "nothing" : shown(*spot.value),
            .allowed = allowed(*spot.rule),
            .hint = hint_for(spot)};
}

/// What is wrong at `spot` itself, not further inside.
Fault explain(const Spot &spot) {
    if (spot.value->is_object() && spot.rule->contains("properties")) {
        const json &properties = spot.rule->at("properties");
        for (const auto &[key, unused] : spot.value->items())
            if (!properties.contains(key))
                return unknown_key(spot, key);
        for (const auto &key : spot.rule->value("required", std::vector<std::string>{}))
            if (!spot.value->contains(key))
                return wrong(member(spot, key));
    }
    return wrong(spot);
}

struct Schema {
    json text = json::parse(config_schema());
    valijson::Schema compiled;

    Schema() {
        valijson::SchemaParser().populateSchema(valijson::adapters::NlohmannJsonAdapter(text), compiled);
    }
};

} // namespace

std::optional<Fault> find_schema_fault(const json &document) {
    const Schema schema;
    valijson::ValidationResults results;
    valijson::Validator validator;
    if (validator.validate(schema.compiled, valijson::adapters::NlohmannJsonAdapter(document), &results))
        return std::nullopt;
    // The first error is the innermost: one for each level around it follows.
    return explain(follow(document, schema.text, results.begin()->context));
}

} // namespace spillway
