// SPDX-License-Identifier: Apache-2.0
#include "tests/lab/topology.h"

#include "tests/lab/filler.h"
#include "tests/lab/gate.h"

#include <algorithm>
#include <deque>
#include <fmt/format.h>
#include <map>
#include <net/if.h>
#include <stdexcept>

namespace spillway::lab {

namespace {

constexpr std::array<QueueIds, 2> all_queue_ids = {
    QueueIds{.classid = 0x10010, .handle = 0x100000, .classid_text = "1:10", .handle_text = "10:"},
    QueueIds{.classid = 0x10020, .handle = 0x200000, .classid_text = "1:20", .handle_text = "20:"},
};

/// The commands of the tree in topology.h, for `tc -batch`.
std::string tree_commands(const Port &port) {
    constexpr std::uint64_t packet = 1600;
    constexpr std::uint64_t nothing = 8; // bit/s
    const std::uint64_t share = port.rate / 200;
    // Covers late timers. A link to a host is never paused, and there a machine that was busy elsewhere may
    // make up for much more: the elephants' share is to tell of queues, not of the machine.
    const std::uint64_t milliseconds = port.peer->node->is_switch ? 1 : 50;
    const std::uint64_t made_up = std::max(port.rate / 8 / 1000 * milliseconds, packet);
    std::string text = fmt::format("qdisc replace dev {} root handle 1: htb default 10\n", port.name);
    const auto add_class = [&](std::string_view parent, std::string_view id, std::uint64_t rate,
                               std::uint64_t burst, unsigned prio) {
        text += fmt::format("class add dev {} parent {} classid {} htb rate {}bit burst {} ceil {}bit "
                            "cburst {} prio {} quantum 65536\n",
                            port.name, parent, id, rate, burst, port.rate, made_up, prio);
    };
    add_class("1:", "1:1", port.rate, made_up, 0);
    add_class("1:1", "1:5", share, packet, 0);
    add_class("1:1", queue_ids(Priority::normal).classid_text, port.rate - share, made_up, 1);
    add_class("1:1", queue_ids(Priority::low).classid_text, nothing, 1, 2);
    text += fmt::format("qdisc add dev {} parent 1:5 handle 5: pfifo limit 1000\n", port.name);
    for (const Priority priority : priorities) {
        const QueueIds &ids = queue_ids(priority);
        text += fmt::format("qdisc add dev {} parent {} handle {} tbf rate {}bps burst {} limit {}\n",
                            port.name, ids.classid_text, ids.handle_text, open_rate, open_burst, port.limit);
    }
    return text + fmt::format("filter add dev {} parent 1: protocol ip prio 1 u32 "
                              "match ip dsfield 0x04 0xfc flowid {}\n",
                              port.name, queue_ids(Priority::low).classid_text);
}

} // namespace

std::string_view to_string(Priority priority) {
    return priority == Priority::normal ? "normal" : "low";
}

const QueueIds &queue_ids(Priority priority) {
    return all_queue_ids[static_cast<std::size_t>(priority)];
}

std::string Port::label() const {
    return fmt::format("{} → {}", node->name, peer->node->name);
}

std::array<std::uint8_t, 6> Port::mac() const {
    return {0x02, 0, 0, 0, 0, static_cast<std::uint8_t>(number)};
}

Node &Topology::add_host(const std::string &name) {
    return add(name, false);
}

Node &Topology::add_switch(const std::string &name) {
    return add(name, true);
}

Node &Topology::add(const std::string &name, bool is_switch) {
    nodes_.push_back(std::make_unique<Node>());
    Node &node = *nodes_.back();
    node.name = name;
    node.is_switch = is_switch;
    node.ns = std::make_unique<Namespace>(name);
    // Nothing but the laboratory's own packets, and no priority made up by the kernel.
    node.ns->sysctl("ipv6/conf/all/disable_ipv6", "1");
    node.ns->sysctl("ipv6/conf/default/disable_ipv6", "1");
    node.ns->sysctl("ipv4/ip_forward_update_priority", "0");
    return node;
}

Port &Topology::add_port(Node &node, const Node &neighbour, std::uint64_t rate) {
    ports_.push_back(std::make_unique<Port>());
    Port &port = *ports_.back();
    port.number = static_cast<unsigned>(ports_.size());
    port.node = &node;
    port.name = "to-" + neighbour.name;
    port.rate = rate;
    node.ports.push_back(&port);
    return port;
}

void Topology::connect(Node &a, Node &b, std::uint64_t rate) {
    Port &left = add_port(a, b, rate);
    Port &right = add_port(b, a, rate);
    left.peer = &right;
    right.peer = &left;
    ++links_;
    left.address = fmt::format("10.0.{}.1", links_);
    right.address = fmt::format("10.0.{}.2", links_);
    const auto end = [](const Port &port) {
        return End{.ns = *port.node->ns,
                   .port = port.name,
                   .mac = fmt::format("02:00:00:00:00:{:02x}", port.number),
                   .addresses = {port.address + "/24"}};
    };
    link(end(left), end(right));
    for (Port *port : {&left, &right})
        port->node->ns->call(
            [port] { port->ifindex = static_cast<int>(::if_nametoindex(port->name.c_str())); });
}

void Topology::route() {
    for (const auto &host : nodes_) {
        if (host->is_switch)
            continue;
        // Breadth first from the host: each node goes where it was first reached from.
        std::map<const Node *, const Port *> towards{{host.get(), nullptr}};
        std::deque<Node *> reached{host.get()};
        for (; !reached.empty(); reached.pop_front())
            for (const Port *port : reached.front()->ports)
                if (towards.emplace(port->peer->node, port->peer).second)
                    reached.push_back(port->peer->node);
        const std::string net = host->address().substr(0, host->address().rfind('.')) + ".0/24";
        for (const auto &[node, port] : towards) {
            if (port == nullptr)
                continue;
            ways_[{node, host.get()}] = port;
            if (port->peer->node != host.get()) // its neighbour is in that net itself
                node->ns->ip(fmt::format("route add {} via {}", net, port->peer->address));
        }
    }
}

void Topology::make_queues(const std::function<std::uint64_t(const Port &)> &limit) {
    for (const auto &node : nodes_) {
        std::string commands;
        for (Port *port : node->ports) {
            if (port->limit != 0) // it has been here before
                commands += fmt::format("qdisc del dev {} root\n", port->name);
            port->limit = limit(*port);
            commands += tree_commands(*port);
        }
        must(*node->ns, {"tc", "-batch", "-"}, commands);
        const Filler filler(*node);
        for (const Port *port : node->ports) // what the low class is granted to begin with
            filler.send(*port, queue_ids(Priority::low).classid, 1514);
    }
}

Node &Topology::node(std::string_view name) const {
    for (const auto &node : nodes_)
        if (node->name == name)
            return *node;
    throw std::logic_error(fmt::format("no node {}", name));
}

const Node *Topology::next_hop(const Node &from, const Node &to) const {
    return ways_.at({&from, &to})->peer->node;
}

} // namespace spillway::lab
