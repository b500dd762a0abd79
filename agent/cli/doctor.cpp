// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/checks_views.h"
#include "agent/cli/commands.h"

#include <algorithm>
#include <fmt/format.h>
#include <iostream>

namespace spillway {

Result<> run_doctor(const Context &context, const std::filesystem::path &config_file, bool json) {
    const auto facts = gather_host_facts(config_file, Paths(context.instance));
    if (!facts)
        return fail(facts.error());
    const auto checks = diagnose(*facts);
    std::cout << (json ? checks_json(checks) : checks_text(checks));
    const auto problems = std::ranges::count(checks, Level::problem, &Check::level);
    if (problems == 0)
        return {};
    return fail({.operation = fmt::format("{} {} found", problems, problems == 1 ? "problem" : "problems"),
                 .hint = "the list gives the remedy for each"});
}

} // namespace spillway
