// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/snapshot.h"

#include "agent/core/clock.h"

#include <memory>
#include <net/if.h>

namespace spillway {
namespace {

std::map<std::uint32_t, std::string> interface_names() {
    const auto free_list = [](struct if_nameindex *list) { ::if_freenameindex(list); };
    const std::unique_ptr<struct if_nameindex, decltype(free_list)> list(::if_nameindex(), free_list);
    std::map<std::uint32_t, std::string> names;
    for (const auto *entry = list.get(); entry != nullptr && entry->if_index != 0; entry++)
        names[entry->if_index] = entry->if_name;
    return names;
}

} // namespace

Result<Snapshot> take_snapshot(const Paths &paths) {
    const auto maps = Maps::open(paths);
    if (!maps)
        return fail(maps.error());
    Snapshot snapshot{.instance = paths.instance,
                      .agent_running = agent_running(paths),
                      .settings = *maps->settings(),
                      .ports = {maps->ports().begin(), maps->ports().end()},
                      .queues = {maps->queues().begin(), maps->queues().end()},
                      .flows = {},
                      .upstreams = {},
                      .counters = {},
                      .flows_capacity = maps->flows_capacity(),
                      .interfaces = interface_names()};
    auto flows = maps->read_flows();
    if (!flows)
        return fail(flows.error());
    auto upstreams = maps->read_upstreams();
    if (!upstreams)
        return fail(upstreams.error());
    auto counters = maps->read_counters();
    if (!counters)
        return fail(counters.error());
    snapshot.flows = std::move(*flows);
    snapshot.upstreams = std::move(*upstreams);
    snapshot.counters = std::move(*counters);
    snapshot.now_ns = now_ns(); // last: nothing read is younger
    return snapshot;
}

} // namespace spillway
