// SPDX-License-Identifier: Apache-2.0
/// A fabric of routed nodes in network namespaces: hosts and switches on veth pairs, each port with a queue
/// for each priority.
///
///     Topology fabric;
///     Node &a = fabric.add_host("A"), &s = fabric.add_switch("switch1"), &b = fabric.add_host("B");
///     fabric.connect(a, s, 100 * mbit);
///     fabric.connect(s, b, 20 * mbit);
///     fabric.route();
///
/// The egress side of a port, whoever owns it:
///
///     1: htb default 10
///     └─ 1:1 rate R
///        ├─ 1:5  prio 0   congestion isolation packets    pfifo
///        ├─ 1:10 prio 1   normal priority                 tbf, with a FIFO inside
///        └─ 1:20 prio 2   low priority (DSCP 1)           tbf, with a FIFO inside
///
/// The low priority has no share of its own: what HTB grants a class overtakes other classes, and the
/// switches are to keep the priorities strictly. A plain filter sorts by DSCP, so that a node without an
/// agent does so too. The rate of a TBF is far above that of the port: it lets everything through, until it
/// is set to almost nothing (see gate.h).
#pragma once

#include "tests/netns/fixture.h"

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace spillway::lab {

inline constexpr std::uint64_t mbit = 1'000'000; ///< bit/s

/// The scheduling priorities of the fabric; each is also the number of its 802.1Qbb priority.
enum class Priority : std::uint8_t { normal = 0, low = 1 };
inline constexpr std::array<Priority, 2> priorities = {Priority::normal, Priority::low};
std::string_view to_string(Priority priority); ///< "normal", "low"

/// The class of a priority, and the handle of the TBF in it, as in the tree above.
struct QueueIds {
    std::uint32_t classid;
    std::uint32_t handle;
    std::string_view classid_text;
    std::string_view handle_text;
};
const QueueIds &queue_ids(Priority priority);

struct Node;

/// One end of a link, and the queues that leave through it.
struct Port {
    unsigned number = 0; ///< unique in the fabric, from 1; the last byte of its MAC 02:00:00:00:00:NN
    Node *node = nullptr;
    Port *peer = nullptr;
    std::string name;                                      ///< interface: "to-" and the neighbour's name
    std::string address;                                   ///< without prefix length
    int ifindex = 0;                                       ///< in the node's namespace
    std::uint64_t rate = 0;                                ///< bit/s
    std::uint64_t limit = 0;                               ///< bytes that fit into the queue of a priority
    [[nodiscard]] std::string label() const;               ///< "switch1 → B": what leaves here
    [[nodiscard]] std::array<std::uint8_t, 6> mac() const; ///< see number
};

struct Node {
    std::string name;
    bool is_switch = false;
    std::unique_ptr<Namespace> ns;
    std::vector<Port *> ports;

    [[nodiscard]] const std::string &address() const { return ports.front()->address; } ///< of a host
};

class Topology {
  public:
    Node &add_host(const std::string &name); ///< has exactly one link
    Node &add_switch(const std::string &name);
    /// A link of that rate in both directions; the queues are made by make_queues().
    void connect(Node &a, Node &b, std::uint64_t rate);
    /// Gives every node the shortest way to every host.
    void route();
    /// Makes the tree above on every port. `limit` tells the bytes a queue of a port holds.
    void make_queues(const std::function<std::uint64_t(const Port &)> &limit);

    [[nodiscard]] const std::vector<std::unique_ptr<Node>> &nodes() const { return nodes_; }
    [[nodiscard]] const std::vector<std::unique_ptr<Port>> &ports() const { return ports_; }
    [[nodiscard]] Node &node(std::string_view name) const;
    /// Where `from` sends packets for the host `to`.
    [[nodiscard]] const Node *next_hop(const Node &from, const Node &to) const;

  private:
    Node &add(const std::string &name, bool is_switch);
    Port &add_port(Node &node, const Node &neighbour, std::uint64_t rate);

    std::vector<std::unique_ptr<Node>> nodes_;
    std::vector<std::unique_ptr<Port>> ports_;
    std::map<std::pair<const Node *, const Node *>, const Port *> ways_; // (from, to) → out of which port
    unsigned links_ = 0;
};

} // namespace spillway::lab
