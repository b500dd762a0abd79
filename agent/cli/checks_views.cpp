// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/checks_views.h"

#include "agent/cli/table.h"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace spillway {

std::string checks_json(const std::vector<Check> &checks) {
    using json = nlohmann::ordered_json;
    const auto or_null = [](const std::string &text) { return text.empty() ? json(nullptr) : json(text); };
    json list = json::array();
    for (const Check &check : checks)
        list.push_back({{"id", check.id},
                        {"level", to_string(check.level)},
                        {"port", or_null(check.port)},
                        {"text", check.text},
                        {"remedy", or_null(check.remedy)}});
    return json({{"schema", 1}, {"checks", list}}).dump(-1, ' ', false, json::error_handler_t::replace) +
           "\n";
}

std::string checks_text(const std::vector<Check> &checks) {
    std::vector<std::vector<std::string>> rows;
    for (const Check &check : checks) {
        rows.push_back({std::string(to_string(check.level)), check.id, check.text});
        if (!check.remedy.empty())
            rows.push_back({"", "", "HINT: " + check.remedy});
    }
    const auto count = [&checks](Level level) { return std::ranges::count(checks, level, &Check::level); };
    return table({{"LEVEL"}, {"CHECK"}, {"FINDING"}}, rows) +
           fmt::format("\nproblems {}, notes {}, fine {}\n", count(Level::problem), count(Level::note),
                       count(Level::fine));
}

} // namespace spillway
