// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/flow_json.h"
#include "agent/cli/views.h"

namespace spillway {
namespace {

using json = nlohmann::ordered_json;

json counts_json(const NamedCounts &counts) {
    json object = json::object();
    for (const auto &[name, count] : counts)
        object[name] = count;
    return object;
}

json queue_json(const QueueRow &row) {
    json waterline = nullptr;
    if (row.waterline)
        waterline = {{"low", row.waterline->low},
                     {"high", row.waterline->high},
                     {"probability", row.waterline->probability},
                     {"unit", row.waterline->unit}};
    return {{"class", row.queue_class},
            {"isolate_class", row.isolate_class},
            {"backlog", {{"bytes", or_null(row.backlog_bytes)}, {"packets", or_null(row.backlog_packets)}}},
            {"waterline", waterline},
            {"level", row.level},
            {"marked_total", row.marked_total},
            {"restored_total", row.restored_total},
            {"suspect_total", row.suspect_total},
            {"would_mark_total", row.would_mark_total}};
}

json port_json(const PortRow &row) {
    json queues = json::array();
    for (const auto &queue : row.queues)
        queues.push_back(queue_json(queue));
    json rewrite = nullptr;
    if (row.rewrite)
        rewrite = {{"pcp", or_null(row.rewrite->pcp)},
                   {"dscp", or_null(row.rewrite->dscp)},
                   {"ecn", row.rewrite->ecn},
                   {"tag_untagged", row.rewrite->tag_untagged}};
    return {{"name", row.name},
            {"ifindex", or_null(row.ifindex)},
            {"waiting", or_null(row.waiting)},
            {"xdp", row.xdp},
            {"tc", row.tc},
            {"source", or_null(row.source)},
            {"degraded", row.degraded},
            {"queues", std::move(queues)},
            {"rewrite", rewrite},
            {"cip",
             {{"sent", row.cip_sent},
              {"received", row.cip_received},
              {"accepted", row.cip_accepted},
              {"rejected", counts_json(row.rejected)}}}};
}

json flow_json(const FlowRow &row) {
    json upstream = nullptr;
    if (row.upstream)
        upstream = {{"port", row.upstream->port}, {"mac", row.upstream->mac}};
    json object = flow_key_json(row.key);
    object.update({{"port", row.port},
                   {"class", or_null(row.isolation_class)},
                   {"state", row.state},
                   {"mark", row.mark},
                   {"origin", or_null(row.origin)},
                   {"age_ms", row.age_ms},
                   {"idle_ms", row.idle_ms},
                   {"packets", row.packets},
                   {"bytes", row.bytes},
                   {"upstream", std::move(upstream)},
                   {"cips_sent", row.cips_sent}});
    return object;
}

/// One line. Interface names may hold any bytes: what is not UTF-8 is replaced, never an exception.
std::string line_of(const json &document) {
    return document.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

} // namespace

std::string status_json(const StatusView &view) {
    json ports = json::array();
    for (const auto &port : view.ports)
        ports.push_back(port_json(port));
    return line_of(
        {{"schema", 1},
         {"instance", view.instance},
         {"mode", view.mode},
         {"agent",
          {{"running", view.agent_running}, {"pid", or_null(view.pid)}, {"version", or_null(view.version)}}},
         {"ports", std::move(ports)},
         {"flows",
          {{"congested", view.flows_congested},
           {"entries", view.flows_entries},
           {"capacity", view.flows_capacity}}},
         {"lost", counts_json(view.lost)}});
}

std::string flows_json(const std::vector<FlowRow> &rows) {
    json flows = json::array();
    for (const auto &row : rows)
        flows.push_back(flow_json(row));
    return line_of({{"schema", 1}, {"flows", std::move(flows)}});
}

} // namespace spillway
