// SPDX-License-Identifier: Apache-2.0
/// What spillway-traffic can play. Every role blocks until its time is over or a SIGTERM or SIGINT came, and
/// returns the JSON object that the program prints. Rates and byte counts are those of the IP layer: UDP
/// payload plus UDP and IP headers.
#pragma once

#include "agent/core/result.h"

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace spillway::traffic {

/// Where the traffic of a role comes from or goes to, and for how long.
struct Endpoint {
    std::string to;              ///< destination, an IPv4 or IPv6 address; senders only
    std::uint16_t port = 0;      ///< port sent to, or bound by a receiver
    std::uint16_t from_port = 0; ///< source port of the first flow, one more for each further; 0 = any
    double seconds = 0;          ///< how long; 0 = until a signal comes (receivers only)
};

struct ProbeOptions {
    Endpoint end;
    double hz = 1000;      ///< requests a second
    double mbit = 0;       ///< if not 0: requests at this rate instead of `hz`
    std::size_t size = 64; ///< UDP payload, bytes
    double patience = 2;   ///< seconds after the last request: a paused priority takes its time
    std::string series;    ///< file for every round trip; empty = none
};

/// Another rate for some time.
struct Phase {
    double mbit = 0; ///< 0 = silence
    double seconds = 0;
};

struct FloodOptions {
    Endpoint end;
    double mbit = 0;         ///< all flows together
    std::vector<Phase> then; ///< phases after the first; the sequence of each flow goes on
    std::size_t size = 1400; ///< UDP payload, bytes
    unsigned flows = 1;      ///< flows, each with a socket and a sequence of its own
    unsigned dscp = 0;       ///< 0 … 63
    int send_buffer = 0;     ///< bytes a socket may have waiting, as SO_SNDBUF; 0 = more than enough
};

struct SinkOptions {
    Endpoint end;
    unsigned ports = 1; ///< ports end.port … end.port + ports - 1 are bound
};

struct TcpOptions {
    Endpoint end;
    unsigned flows = 1;
    std::string congestion = "cubic"; ///< congestion control of the sender
    double mbit = 0;                  ///< paced to this rate, all flows together; 0 = as fast as TCP goes
    unsigned dscp = 0;                ///< 0 … 63
};

/// Sends every UDP datagram back to where it came from.
Result<nlohmann::json> reflect(const Endpoint &end);
/// The victim: timed requests to a reflector, sent on time whether or not the answers come. The series has a
/// line for each request, in order: when it was sent (CLOCK_MONOTONIC, nanoseconds) and its round trip in
/// nanoseconds, or -1 if it was lost.
Result<nlohmann::json> probe(const ProbeOptions &options);
/// UDP elephants: paced, numbered datagrams.
Result<nlohmann::json> flood(const FloodOptions &options);
/// Receives numbered datagrams and judges loss and order, flow by flow.
Result<nlohmann::json> sink(const SinkOptions &options);
/// TCP elephants.
Result<nlohmann::json> tcp_send(const TcpOptions &options);
/// Receives TCP elephants.
Result<nlohmann::json> tcp_sink(const Endpoint &end);

} // namespace spillway::traffic
