// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/sweeper.h"

#include "agent/core/clock.h"
#include "agent/daemon/publish.h"

#include <map>

namespace spillway {

Result<FlowEntries> Sweeper::sweep() {
    spillway_settings &settings = *maps_.settings();
    const std::uint64_t gen = observe(settings.gen);
    const bool full = observe(settings.table_full) != 0;
    const bool clear = full && ++turns_ % clear_turns == 0;
    if (gen == observe(settings.swept) && !clear && (full || !leftovers_))
        return FlowEntries{};
    auto flows = maps_.read_flows();
    if (!flows)
        return flows;
    const std::uint64_t now = now_ns();
    std::size_t marked = 0;
    leftovers_ = false;
    struct Entries {
        std::uint32_t all = 0;
        std::uint32_t unmarked = 0;
    };
    std::map<std::uint32_t, Entries> by_port;
    for (const auto &[key, flow] : *flows) {
        const bool unmarked = flow.mark != SPILLWAY_MARK_CONGESTED;
        const bool expired =
            spillway_since(now, flow.last_seen_ns) >= static_cast<std::int64_t>(settings.clear_ns) ||
            ports_.port_of(static_cast<int>(key.port)) == nullptr;
        if (unmarked && !expired) {
            by_port[key.port].all++;
            by_port[key.port].unmarked++;
            leftovers_ = true;
            continue;
        }
        const auto result = maps_.step(key);
        if (!result)
            return std::unexpected(result.error());
        if (*result == SPILLWAY_EDIT_DONE) {
            by_port[key.port].all++;
            by_port[key.port].unmarked += unmarked ? 1 : 0;
            marked += unmarked ? 0 : 1;
        }
    }
    if (marked == 0)
        publish(settings.swept, gen);
    if (gen == observe(settings.gen))
        for (const int ifindex : ports_.ifindexes())
            if (spillway_port *port = ports_.port_of(ifindex)) {
                const Entries entries = by_port[static_cast<std::uint32_t>(ifindex)];
                publish(port->entries, entries.all);
                publish(port->unmarked, entries.unmarked);
            }
    return flows;
}

} // namespace spillway
