// SPDX-License-Identifier: Apache-2.0
/// What the pinned maps of an instance hold at one moment: all that `status` and `flows` are made from.
#pragma once

#include "agent/core/result.h"
#include "agent/kernel/maps.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace spillway {

struct Snapshot {
    std::string instance;
    std::uint64_t now_ns = 0; ///< when it was taken
    bool agent_running = false;
    spillway_settings settings{};
    std::vector<spillway_port> ports;   ///< all slots
    std::vector<spillway_queue> queues; ///< all entries
    FlowEntries flows;
    UpstreamEntries upstreams;
    Counters counters;
    std::uint32_t flows_capacity = 0;
    std::map<std::uint32_t, std::string> interfaces; ///< names by ifindex, in this network namespace
};

[[nodiscard]] Result<Snapshot> take_snapshot(const Paths &paths);

} // namespace spillway
