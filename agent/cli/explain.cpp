// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/commands.h"
#include "agent/cli/explanation.h"
#include "agent/cli/views.h"
#include "agent/core/flow_text.h"

#include <bpf/bpf.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iostream>

namespace spillway {
namespace {

/// The slot that holds the flow's guard sum: one of two, told by its tag.
std::optional<spillway_suspect> find_suspect(const Maps &maps, const spillway_flow_key &key) {
    const std::uint64_t hash = spillway_hash(&key);
    const std::array<std::uint32_t, 2> slots{static_cast<std::uint32_t>(hash) & (SPILLWAY_SUSPECTS - 1),
                                             static_cast<std::uint32_t>(hash >> 16U) &
                                                 (SPILLWAY_SUSPECTS - 1)};
    std::optional<spillway_suspect> found;
    for (const std::uint32_t slot : slots) {
        spillway_suspect suspect{};
        if (bpf_map_lookup_elem(maps.suspects_fd(), &slot, &suspect) == 0 && suspect.bytes != 0 &&
            suspect.tag == static_cast<std::uint32_t>(hash >> 32U) &&
            (!found || suspect.window > found->window))
            found = suspect;
    }
    return found;
}

} // namespace

Result<> run_explain(const Context &context, const std::vector<std::string> &flow,
                     const std::string &port_name) {
    auto key = parse_flow(flow);
    if (!key)
        return fail(key.error());
    const Paths paths(context.instance);
    const auto maps = Maps::open(paths);
    if (!maps)
        return fail(maps.error());
    const auto snapshot = take_snapshot(paths);
    if (!snapshot)
        return fail(snapshot.error());
    std::vector<std::uint32_t> ports;
    if (!port_name.empty()) {
        const spillway_port *port = find_existing_port(snapshot->ports, port_name);
        if (port == nullptr)
            return fail({.operation = "port",
                         .object = port_name,
                         .detail = "not a port of this instance",
                         .hint = "spillway status lists them",
                         .kind = ErrorKind::usage});
        ports.push_back(port->ifindex);
    } else {
        for (const spillway_port &port : snapshot->ports)
            if (port.ifindex != 0 && port.queue_count != 0)
                ports.push_back(port.ifindex);
    }
    if (ports.empty())
        return fail({.operation = "explain",
                     .detail = "no port of this instance has a queue",
                     .hint = "spillway status shows what the ports wait for"});
    for (const std::uint32_t port : ports) {
        key->port = port;
        std::cout << explanation(*snapshot, *key, find_suspect(*maps, *key));
    }
    return {};
}

} // namespace spillway
