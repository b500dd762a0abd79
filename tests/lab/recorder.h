// SPDX-License-Identifier: Apache-2.0
/// Looks at a running fabric fifty times a second: what waits in its queues and behind its arrival ports,
/// which flows the agents have marked, how many CIPs they received.
#pragma once

#include "agent/kernel/maps.h"
#include "agent/kernel/netlink.h"
#include "tests/lab/occupancy.h"
#include "tests/lab/topology.h"

#include <atomic>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace spillway::lab {

using QueueName = std::pair<const Port *, Priority>;

/// One value a look; see Record::times_ns.
using Depths = std::vector<std::uint32_t>;

/// Something that an agent did.
struct AgentEvent {
    enum class Kind { marked, released, cip };
    std::uint64_t time_ns = 0; ///< marked: exact; else of the look that found it
    Kind kind = Kind::marked;
    const Node *node = nullptr;
    std::string port;                   ///< interface: marked for, or received on
    std::string flow;                   ///< as flow_text() writes it; empty for a CIP
    std::uint16_t destination_port = 0; ///< of the flow; 0 for a CIP
};

struct Record {
    std::vector<std::uint64_t> times_ns;
    std::map<QueueName, Depths> queues;                   ///< bytes that wait to leave by the port
    std::map<QueueName, Depths> occupancies;              ///< bytes in the switch that came in by the port
    std::map<QueueName, std::vector<std::uint64_t>> sent; ///< bytes that have left by the port
    std::map<QueueName, std::uint64_t> drops;             ///< packets that a queue refused
    std::vector<AgentEvent> events;
    std::uint64_t stall_ns = 0; ///< longest that a look came late or took: the machine was busy elsewhere
};

class Recorder {
  public:
    /// `instances`: the agents, by their node.
    Recorder(const Topology &topology, Occupancy &occupancy,
             const std::map<const Node *, std::string> &instances);
    ~Recorder();
    Recorder(const Recorder &) = delete;
    Recorder &operator=(const Recorder &) = delete;

    /// Bytes that waited in all queues at the last look.
    [[nodiscard]] std::uint64_t waiting() const { return waiting_; }
    /// Looks a last time, ends, and tells. Throws what stopped it earlier, if something did.
    Record finish();

  private:
    struct MarkedFlow {
        std::uint16_t destination_port;
        std::uint64_t since_ns;
    };
    struct AgentView {
        const Node *node;
        Maps maps;
        std::map<std::pair<std::uint32_t, std::string>, MarkedFlow> marked; // by interface and flow
        std::map<std::uint32_t, std::uint64_t> cips;                        // received, by interface
    };

    void run();
    void look();
    void look_at_queues(Netlink &netlink, const Node &node);
    void look_at_agent(AgentView &view, std::uint64_t now);

    const Topology &topology_;
    Occupancy &occupancy_;
    std::vector<std::pair<const Node *, Netlink>> netlinks_;
    std::vector<AgentView> agents_;
    std::map<QueueName, std::uint64_t> old_drops_;
    Record record_;
    std::atomic<std::uint64_t> waiting_ = 0;
    std::atomic<bool> stop_ = false;
    std::exception_ptr failure_;
    std::thread thread_;
};

} // namespace spillway::lab
