// SPDX-License-Identifier: Apache-2.0
/// Priority-based flow control of a fabric (IEEE 802.1Qbb), both sides of it.
///
/// The side that asks: when more than XOFF of an arrival port and priority waits in a switch, pause frames go
/// out of that port, again before their timer ends, until less than XON waits; then a frame with timer 0. The
/// side that obeys, hosts included: frames are read from the wire, and the gate of the priority is closed
/// until resumed or until the timer ends. The two sides of a link know of each other only by these frames,
/// though one thread plays them all.
#pragma once

#include "tests/lab/gate.h"
#include "tests/lab/occupancy.h"
#include "tests/lab/pause_frame.h"
#include "tests/lab/topology.h"

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace spillway::lab {

/// A priority of a port held back, at the port that obeyed. Times as now_ns().
struct PauseInterval {
    const Port *port = nullptr;
    Priority priority = Priority::normal;
    std::uint64_t start_ns = 0;
    std::uint64_t end_ns = 0;
};

/// A pause frame as it arrived.
struct PauseArrival {
    std::uint64_t time_ns = 0;
    const Port *port = nullptr;
    std::vector<std::uint8_t> bytes;
};

/// What happened since the last look.
struct PauseRecord {
    std::vector<PauseInterval> pauses;
    std::vector<PauseArrival> frames;
    std::vector<std::uint64_t> frame_to_gate_ns;    ///< pause frame sent → gate closed
    std::vector<std::uint64_t> crossing_to_gate_ns; ///< packet above XOFF → gate closed
};

class PauseEngine {
  public:
    PauseEngine(const Topology &topology, Occupancy &occupancy);
    ~PauseEngine();
    PauseEngine(const PauseEngine &) = delete;
    PauseEngine &operator=(const PauseEngine &) = delete;

    /// Pauses and resumes each link `rounds` times; the times from frame to gate, in nanoseconds. Before
    /// start().
    std::vector<std::uint64_t> measure_reaction(unsigned rounds);

    /// Serves from now on, on a thread of its own, until destruction.
    void start();
    /// What happened since the last call; a pause that still lasts is cut here and goes on in the next
    /// record. Throws what stopped the thread, if something did.
    PauseRecord take_record();
    /// Throws what stopped the thread, if something did.
    void rethrow_failure();

  private:
    struct Side { // of one port and priority
        bool asking = false;
        std::uint64_t crossed_ns = 0;
        std::uint64_t sent_ns = 0; // first frame of this pause
        std::uint64_t refresh_ns = 0;
        bool closed = false;
        std::uint64_t since_ns = 0;
        std::uint64_t until_ns = 0;
    };
    struct Station { // of one port
        const Port *port = nullptr;
        Gates *gates = nullptr;
        int sender = -1;
        Fd receiver;
        std::array<Side, 2> sides;
    };

    void serve();
    void turn(std::uint64_t longest_ns);
    void cross(const lab_crossing &crossing);
    void ask(Station &station, Priority priority, std::uint64_t crossed_ns);
    void stop_asking(Station &station, Priority priority);
    void send(const Station &station, Priority priority, std::uint16_t quanta) const;
    void receive(Station &station);
    void obey(Station &station, Priority priority, std::uint16_t quanta);
    void reopen(Station &station, Priority priority, std::uint64_t now);
    void keep_times();
    [[nodiscard]] std::uint64_t next_deadline() const;

    Occupancy &occupancy_;
    std::vector<std::unique_ptr<Gates>> gates_;
    std::vector<Fd> senders_;
    std::vector<Station> stations_; // by port number; the first is empty
    Fd epoll_;
    Fd stop_;
    std::mutex mutex_; // of what follows, and of a turn
    PauseRecord record_;
    std::exception_ptr failure_;
    std::thread thread_;
};

} // namespace spillway::lab
