// SPDX-License-Identifier: Apache-2.0
/// One scenario's fabric, and runs of it under one scheme after the other.
#pragma once

#include "tests/lab/pause_engine.h"
#include "tests/lab/recorder.h"
#include "tests/lab/scenario.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace spillway::lab {

/// A run in which the machine stood still for longer is measured again.
inline constexpr std::uint64_t stall_limit_ns = 15'000'000;

/// A request of a victim.
struct RoundTrip {
    std::uint64_t sent_ns = 0;
    std::optional<std::uint64_t> ns; ///< nothing: lost
};

/// Quantiles are of the requests that were sent while the elephants were.
struct VictimResult {
    std::string name;                   ///< "A2 → C"
    std::vector<RoundTrip> round_trips; ///< all
    double p50_ms = 0;
    double p99_ms = 0;
    double max_ms = 0;
    std::uint64_t sent = 0; ///< all that follow: of the whole run
    std::uint64_t lost = 0;
    std::uint64_t late = 0; ///< answers overtaken by later ones
};

struct ElephantResult {
    std::string name;
    double mbit = 0;               ///< received from its first packet to its last, Mbit/s of IP
    std::uint64_t lost = 0;        ///< datagrams; UDP
    std::uint64_t late = 0;        ///< datagrams overtaken by later ones; UDP
    std::uint64_t blocked = 0;     ///< datagrams that the full socket did not take; UDP
    std::uint64_t retransmits = 0; ///< TCP
};

/// When an elephant was marked at a node, and given back.
struct MarkSpan {
    const Node *node = nullptr;
    std::string port; ///< interface
    std::string flow; ///< as flow_text() writes it
    std::uint16_t destination_port = 0;
    std::uint64_t marked_ns = 0;
    std::optional<std::uint64_t> released_ns;
};

struct RunResult {
    Scheme scheme = Scheme::none;
    std::uint64_t start_ns = 0; ///< first packet of the elephants
    std::uint64_t end_ns = 0;   ///< last one
    std::vector<VictimResult> victims;
    std::vector<ElephantResult> elephants;
    std::vector<MarkSpan> marks; ///< of elephants
    /// What left towards the receivers of elephants while these sent, their first second left out; Mbit/s of
    /// Ethernet.
    double elephants_mbit = 0;
    std::uint64_t victims_marked = 0;
    std::uint64_t cips = 0;     ///< received
    std::uint64_t dropped = 0;  ///< packets, in all queues and switches
    std::uint64_t vanished = 0; ///< bytes that came into a switch and never left it; not without flow control
    std::uint64_t overshoot = 0; ///< bytes; most that waited above an XOFF
    std::vector<PauseInterval> pauses;
    std::vector<PauseArrival> frames;
    std::vector<std::uint64_t> frame_to_gate_ns;
    std::vector<std::uint64_t> crossing_to_gate_ns;
    Record record;
    unsigned attempts = 1; ///< this one included

    /// How long the priority was held back at a port, in seconds, counting from a time on.
    [[nodiscard]] double paused(const Port &port, Priority priority, std::uint64_t from_ns = 0) const;
    /// Ports that were held back at all, counting from a time on.
    [[nodiscard]] std::vector<const Port *> paused_ports(const Topology &topology, Priority priority,
                                                         std::uint64_t from_ns = 0) const;
    /// When the last mark of the elephants' first start was made; nothing without marks.
    [[nodiscard]] std::optional<std::uint64_t> marked_everywhere_ns() const;
};

/// Room for packets that the machine has not got round to receiving: a veth drops what finds none, and a busy
/// machine soon has the kernel's thousand. The setting is the machine's; it is set back afterwards.
class DeepBacklog {
  public:
    DeepBacklog();
    ~DeepBacklog();
    DeepBacklog(const DeepBacklog &) = delete;
    DeepBacklog &operator=(const DeepBacklog &) = delete;

  private:
    unsigned before_ = 0; // 0: it was deep enough
};

/// The fabric of a scenario, with flow control that stands ready.
class Laboratory {
  public:
    /// `seconds` replaces the scenario's own, unless its elephants have phases.
    explicit Laboratory(const Scenario &scenario, std::optional<double> seconds = {});

    /// A run during which the machine stood still, busy with something else, says little about round trips:
    /// it is repeated twice at most, and the calmest one counts.
    RunResult run(Scheme scheme);

    [[nodiscard]] const Scenario &scenario() const { return scenario_; }
    [[nodiscard]] const Topology &topology() const { return topology_; }
    [[nodiscard]] double seconds() const { return seconds_; }
    /// Pause frame → gate closed in the idle fabric, nanoseconds: nineteen of twenty are faster.
    [[nodiscard]] std::uint64_t reaction_ns() const { return reaction_ns_; }
    /// How long a neighbour may take to obey before the room above XOFF is used up.
    [[nodiscard]] std::uint64_t headroom_ns() const;
    /// Bytes above XOFF for which there is room, for each arrival port and priority.
    [[nodiscard]] std::uint64_t headroom(const Port &port) const;

  private:
    RunResult run_once(Scheme scheme);
    [[nodiscard]] nlohmann::json agent_config(const Node &node, Scheme scheme) const;
    void start_agents(Scheme scheme);
    void set_flow_control(Scheme scheme);
    void await_empty(const Recorder &recorder) const;
    void fill_in_queues(RunResult &result);
    [[nodiscard]] double elephants_mbit(const RunResult &result) const;

    Scenario scenario_;
    double seconds_;
    DeepBacklog backlog_;
    Topology topology_;
    std::unique_ptr<Occupancy> occupancy_;
    std::unique_ptr<PauseEngine> engine_;
    std::uint64_t reaction_ns_ = 0;
    std::vector<std::unique_ptr<Agent>> agents_;
    std::map<const Node *, std::string> instances_;
};

/// Makes SIGINT and SIGTERM end a run in good order, by an exception.
void catch_interrupts();
/// The signal that came, or 0.
int interrupted();

} // namespace spillway::lab
