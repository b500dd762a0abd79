// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/sweeper.h"

#include "agent/core/flow_text.h"
#include "agent/daemon/publish.h"

#include <spdlog/spdlog.h>

#include <map>

namespace spillway {

Result<FlowEntries> Sweeper::sweep() {
    spillway_settings &settings = *maps_.settings();
    const std::uint64_t gen = observe(settings.gen);
    if (gen == observe(settings.swept))
        return FlowEntries{};
    auto flows = maps_.read_flows();
    if (!flows)
        return flows;
    std::size_t left = 0;
    std::map<std::uint32_t, std::uint32_t> by_port;
    for (const auto &[key, flow] : *flows) {
        const auto result = maps_.step(key);
        if (!result)
            return std::unexpected(result.error());
        if (*result == SPILLWAY_EDIT_DONE) {
            left++;
            by_port[key.port]++;
        }
    }
    if (left == 0)
        publish(settings.swept, gen);
    if (gen == observe(settings.gen))
        for (const int ifindex : ports_.ifindexes())
            if (spillway_port *port = ports_.port_of(ifindex))
                publish(port->entries, by_port[static_cast<std::uint32_t>(ifindex)]);
    return flows;
}

} // namespace spillway
