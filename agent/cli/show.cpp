// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/commands.h"
#include "agent/cli/snapshot.h"
#include "agent/cli/views.h"

#include <iostream>

namespace spillway {

Result<> run_status(const Context &context, bool json) {
    const auto snapshot = take_snapshot(Paths(context.instance));
    if (!snapshot)
        return fail(snapshot.error());
    const auto view = status_view(*snapshot);
    std::cout << (json ? status_json(view) : status_text(view));
    return {};
}

Result<> run_flows(const Context &context, bool json, bool all) {
    const auto snapshot = take_snapshot(Paths(context.instance));
    if (!snapshot)
        return fail(snapshot.error());
    const auto rows = flow_rows(*snapshot, all);
    if (snapshot->settings.panic != 0 && !json)
        std::cerr << "spillway: this instance is in panic: no flow is isolated until `spillway resume`\n";
    std::cout << (json ? flows_json(rows) : flows_text(rows));
    return {};
}

} // namespace spillway
