// SPDX-License-Identifier: Apache-2.0
/// What the isolation tests share: configurations, the usual traffic, and what is asked of them.
#pragma once

#include "tests/netns/fixture.h"

#include <algorithm>
#include <fmt/format.h>
#include <gtest/gtest.h>

namespace spillway::lab {

/// The ways in which every sentence is to hold: with the defaults, and polled with CIPs from the agent.
struct Way {
    const char *name;
    nlohmann::json detection;
    nlohmann::json cip;
};
inline const std::vector<Way> ways{
    {"Defaults", nlohmann::json::object(), nlohmann::json::object()},
    {"PollAndAgent", {{"source", "poll"}}, {{"sender", "agent"}}},
};
inline std::string way_name(const testing::TestParamInfo<Way> &info) {
    return info.param.name;
}

/// The queue of the `setup` tree: normal class 1:10, isolation class 1:20.
inline nlohmann::json setup_queue() {
    return {{"class", "1:10"},
            {"isolate_class", "1:20"},
            {"waterline", {{"low", 50000}, {"high", 200000}, {"probability", 0.1}}}};
}

/// Takes the isolation class of a `setup` tree away, and makes one again.
inline void delete_isolation_class(const Namespace &ns, const std::string &port) {
    ns.tc("class del dev " + port + " classid 1:20");
}
inline void make_isolation_class(const Namespace &ns, const std::string &port) {
    ns.tc("class add dev " + port + " parent 1:1 classid 1:20 htb rate 1mbit ceil 200mbit prio 7");
    ns.tc("qdisc add dev " + port + " parent 1:20 handle 20: pfifo limit 1000");
}

/// `ports` served with the setup tree's queue, `plain` without queues.
inline nlohmann::json configuration(const Way &way, const Words &ports, const Words &plain = {}) {
    nlohmann::json all = nlohmann::json::array();
    for (const std::string &port : ports)
        all.push_back({{"name", port}, {"queues", {setup_queue()}}});
    for (const std::string &port : plain)
        all.push_back({{"name", port}});
    return {{"ports", all}, {"detection", way.detection}, {"cip", way.cip}};
}

/// A node with a port eth0, which has the tree of `setup`, towards a peer that answers nothing.
struct OnePort {
    OnePort() { make_port(); }
    void make_port() const {
        link({.ns = node, .port = "eth0", .mac = "02:00:00:00:00:01", .addresses = {"10.0.0.1/24"}},
             {.ns = peer, .port = "eth0", .mac = "02:00:00:00:00:02", .addresses = {"10.0.0.2/24"}});
        setup(node, "eth0", "200mbit");
    }

    Namespace node{"node"};
    Namespace peer{"peer"};
    const nlohmann::json config = configuration(ways[0], {"eth0"});
};

/// Host – switch – receiver; the bottleneck leaves the switch.
class Bottleneck {
  public:
    explicit Bottleneck(const std::string &rate = "200mbit") : chain(1) {
        setup(chain.node(1), "eth1", rate);
        setup(chain.host(), "eth1", "1gbit");
    }

    Chain chain;
    [[nodiscard]] Namespace &host() const { return chain.host(); }
    [[nodiscard]] Namespace &node() const { return chain.node(1); }
    [[nodiscard]] Namespace &receiver() const { return chain.receiver(); }
};

/// Flows marked congested whose destination port is not in `elephants`.
inline std::vector<nlohmann::json> innocent(const nlohmann::json &flows, int first, int count = 1) {
    std::vector<nlohmann::json> found;
    for (const auto &flow : flows)
        if (flow["dport"] < first || flow["dport"] >= first + count)
            found.push_back(flow);
    return found;
}

inline std::uint64_t marked_total(const nlohmann::json &status, const std::string &port) {
    for (const auto &entry : status["ports"])
        if (entry["name"] == port)
            return entry["queues"][0]["marked_total"];
    return 0;
}

inline nlohmann::json port_status(const nlohmann::json &status, const std::string &port) {
    for (const auto &entry : status["ports"])
        if (entry["name"] == port)
            return entry;
    return nullptr;
}

/// Most CIPs for one flow on one link in `seconds` of congestion (design §9), max_flow_life 1 s.
inline std::size_t most_cips(double seconds) {
    return 3 + static_cast<std::size_t>(seconds * 4) + 1;
}

} // namespace spillway::lab
