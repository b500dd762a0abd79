// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/commands.h"
#include "agent/daemon/publish.h"
#include "agent/kernel/maps.h"

#include <fmt/format.h>
#include <iostream>

namespace spillway {

// The programs read the settings themselves: nobody else has to run, and it holds from the next packet on.

Result<> run_panic(const Context &context) {
    const auto maps = Maps::open(Paths(context.instance));
    if (!maps)
        return fail(maps.error());
    publish(maps->settings()->panic, 1U);
    std::cout << fmt::format(
        "instance {0}: every packet passes untouched, until `spillway --instance {0} resume`\n",
        context.instance);
    return {};
}

Result<> run_resume(const Context &context) {
    const auto maps = Maps::open(Paths(context.instance));
    if (!maps)
        return fail(maps.error());
    const bool panicked = observe(maps->settings()->panic) != 0;
    // Marks are not to end for a silence that nobody has seen; an agent, if one runs, has done the same.
    const auto flows = panicked ? maps->read_flows() : FlowEntries{};
    for (const auto &[key, flow] : flows.value_or(FlowEntries{}))
        if (!maps->step(key))
            break; // to resume matters more
    publish(maps->settings()->panic, 0U);
    std::cout << fmt::format("instance {}: {}\n", context.instance,
                             panicked ? "resumed" : "was not in panic; nothing changed");
    return {};
}

} // namespace spillway
