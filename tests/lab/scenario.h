// SPDX-License-Identifier: Apache-2.0
/// What the laboratory can be asked to show: fabrics with their traffic, and what looks after the congestion.
#pragma once

#include "tests/lab/topology.h"

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace spillway::lab {

/// What is done about the congestion.
enum class Scheme {
    none,     ///< no flow control: full queues drop
    pfc,      ///< priority-based flow control
    local,    ///< PFC; the congested switch isolates, and tells nobody
    spillway, ///< PFC; every node has an agent
    oracle,   ///< PFC; the elephants send with the low priority from the start
};
inline constexpr std::array<Scheme, 5> schemes = {Scheme::none, Scheme::pfc, Scheme::local, Scheme::spillway,
                                                  Scheme::oracle};
std::string_view id_of(Scheme scheme);    ///< for the command line and JSON
std::string_view title_of(Scheme scheme); ///< for people

/// Traffic that fills a queue, from one host to another.
struct Elephant {
    std::string from;
    std::string to;
    double mbit = 0;        ///< offered; 0: TCP, as fast as it goes
    unsigned flows = 1;     ///< TCP connections
    double pause_after = 0; ///< seconds; then silence for pause_seconds, then the same again; 0: no pause
    double pause_seconds = 0;

    [[nodiscard]] bool tcp() const { return mbit == 0; }
};

/// A thousand small requests a second, from one host to another.
struct Victim {
    std::string from;
    std::string to;
};

struct Scenario {
    std::string id;
    std::string title;
    std::string text;    ///< a sentence: the fabric and who sends what
    std::string drawing; ///< the fabric, in characters
    std::function<void(Topology &)> build;
    std::vector<Elephant> elephants;
    std::vector<Victim> victims;
    std::string congested;               ///< the switch that has the bottleneck
    std::vector<std::string> plain = {}; ///< switches without an agent
    bool flow_control = true;            ///< else full queues drop, whatever the scheme
    std::uint64_t xoff = 1'000'000;      ///< bytes of an arrival port and priority
    std::uint64_t xon = 900'000;         ///< bytes
    double seconds = 6;                  ///< how long the elephants send
    /// Seconds after the last mark until the normal priority is no longer paused: what had spread before the
    /// isolation has to drain through the bottleneck.
    double settling = 0.5;
    double patience = 4; ///< seconds that a victim waits for its last answers
    std::vector<Scheme> usual = {schemes.begin(), schemes.end()}; ///< schemes, unless asked for others
};

const std::vector<Scenario> &scenarios();

/// Title of a scheme in the scenario: without flow control it does not speak of it.
std::string title_of(const Scenario &scenario, Scheme scheme);
/// Whether ports are paused in such a run.
inline bool pauses(const Scenario &scenario, Scheme scheme) {
    return scenario.flow_control && scheme != Scheme::none;
}

/// The waterlines of the agents, bytes.
inline constexpr std::uint64_t waterline_low = 50'000;
inline constexpr std::uint64_t waterline_high = 200'000;

/// UDP and TCP ports of the traffic: first elephant, first victim.
inline constexpr std::uint16_t elephant_port = 9000;
inline constexpr std::uint16_t victim_port = 7000;
inline bool is_elephant_port(std::uint16_t port) {
    return port >= elephant_port && port < elephant_port + 100;
}

} // namespace spillway::lab
