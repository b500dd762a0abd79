// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/commands.h"
#include "agent/cli/views.h"
#include "agent/core/flow_text.h"
#include "agent/kernel/maps.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <iostream>
#include <set>

namespace spillway {
namespace {

/// What the user asked for, and what the edit program answered.
struct Edited {
    std::string flow; ///< "udp 10.0.0.1:5000 10.0.0.2:6000 on eth1"
    spillway_edit_result result;
    bool panic; ///< it has no effect now
};

Result<std::uint32_t> served_port(const Maps &maps, const std::string &name, bool to_mark) {
    if (const auto *port = find_existing_port(maps.ports(), name)) {
        if (port->attach != SPILLWAY_ATTACH_OFF) {
            const auto queues = maps.queues().subspan(port->first_queue, port->queue_count);
            const bool rewrites = (port->flags & (SPILLWAY_PORT_REWRITE_PCP | SPILLWAY_PORT_REWRITE_DSCP |
                                                  SPILLWAY_PORT_ECN)) != 0;
            if (to_mark && (!rewrites || queues.empty()) &&
                std::ranges::none_of(queues,
                                     [](const spillway_queue &queue) { return queue.isolation_count != 0; }))
                return fail({.operation = "port",
                             .object = name,
                             .detail = "it has no queue with an isolation class to move the flow to",
                             .hint = "spillway check says what is missing; or give a queue isolate_class, or "
                                     "the port rewrite"});
            return port->ifindex;
        }
        return fail({.operation = "port",
                     .object = name,
                     .detail = fmt::format("not served now, waiting: {}", waiting_name(port->waiting)),
                     .hint = "spillway check says what it waits for"});
    }
    std::set<std::string> names;
    for (const auto &port : maps.ports()) {
        if (port.ifindex != 0)
            names.emplace(port.name);
    }
    return fail({.operation = "port",
                 .object = name,
                 .detail = "not a port of this instance",
                 .hint = names.empty() ? "it serves no port now: spillway status"
                                       : fmt::format("its ports are {}", fmt::join(names, ", ")),
                 .kind = ErrorKind::usage});
}

Result<Edited> edit(const Context &context, spillway_edit_op op, const std::vector<std::string> &words,
                    const std::string &port) {
    const auto key = parse_flow(words);
    if (!key)
        return fail(key.error());
    const auto maps = Maps::open(Paths(context.instance));
    if (!maps)
        return fail(maps.error());
    const auto ifindex = served_port(*maps, port, op == SPILLWAY_EDIT_MARK_MANUAL);
    if (!ifindex)
        return fail(ifindex.error());
    spillway_edit change{};
    change.op = op;
    change.key = *key;
    change.key.port = *ifindex;
    const auto result = maps->edit(change);
    if (!result)
        return fail(result.error());
    const bool fragments = (key->flags & SPILLWAY_KEY_PORTS) == 0 &&
                           (key->proto == SPILLWAY_PROTO_TCP || key->proto == SPILLWAY_PROTO_UDP);
    return Edited{fmt::format("{}{} on {}", flow_text(*key), fragments ? " (fragments)" : "", port), *result,
                  maps->settings()->panic != 0};
}

/// The reason why a change was refused.
std::unexpected<Error> refused(const char *operation, const Edited &edited) {
    Error error{.operation = operation, .object = edited.flow};
    switch (edited.result) {
    case SPILLWAY_EDIT_NO_ENTRY:
        error.detail = "this flow is not marked";
        error.hint = "spillway flows lists those that are";
        break;
    case SPILLWAY_EDIT_TABLE_FULL:
        error.detail = "the flow table is full";
        error.hint = "unmark a flow, wait until marks run out, or raise flows.capacity";
        break;
    case SPILLWAY_EDIT_QUOTA:
        error.detail = "the port has as many marked flows as it may have";
        error.hint = "unmark a flow, wait until marks run out, or raise flows.capacity";
        break;
    default:
        error.detail = "the port is no longer served";
        error.hint = "spillway status says what is";
    }
    return fail(std::move(error));
}

} // namespace

Result<> run_mark(const Context &context, const std::vector<std::string> &flow, const std::string &port) {
    const auto edited = edit(context, SPILLWAY_EDIT_MARK_MANUAL, flow, port);
    if (!edited)
        return fail(edited.error());
    if (edited->result == SPILLWAY_EDIT_DONE)
        std::cout << fmt::format("marked {}\n", edited->flow);
    else if (edited->result == SPILLWAY_EDIT_EXISTS)
        std::cout << fmt::format("marked {}, was marked before; now until unmarked\n", edited->flow);
    else
        return refused("mark", *edited);
    if (edited->panic)
        std::cout << "but this instance is in panic: the flow is isolated after `spillway resume`\n";
    return {};
}

Result<> run_unmark(const Context &context, const std::vector<std::string> &flow, const std::string &port) {
    const auto edited = edit(context, SPILLWAY_EDIT_UNMARK, flow, port);
    if (!edited)
        return fail(edited.error());
    if (edited->result != SPILLWAY_EDIT_DONE)
        return refused("unmark", *edited);
    std::cout << fmt::format("unmarked {}; its priority comes back when none of its packets waits isolated\n",
                             edited->flow);
    return {};
}

} // namespace spillway
