// SPDX-License-Identifier: Apache-2.0
/// How much waits in the switches, by arrival port and priority: the BPF program of occupancy.bpf.c.
#pragma once

#include "tests/lab/occupancy_abi.h"
#include "tests/lab/topology.h"

#include <functional>
#include <memory>
#include <vector>

struct lab_occupancy_bpf;
struct ring_buffer;

namespace spillway::lab {

class Occupancy {
  public:
    /// Counts on every port of every switch, while this object lives.
    explicit Occupancy(const Topology &topology);
    ~Occupancy();
    Occupancy(const Occupancy &) = delete;
    Occupancy &operator=(const Occupancy &) = delete;

    /// Thresholds of a switch's arrival port, in bytes, for each of its priorities. Counts from 0 anew:
    /// nothing may be on the way.
    void begin(const Port &port, std::uint64_t xoff, std::uint64_t xon);

    [[nodiscard]] volatile lab_occupancy &of(const Port &port, Priority priority);

    /// Readable when something crossed a threshold.
    [[nodiscard]] int crossings_fd() const;
    /// Gives `handle` what has crossed since the last call.
    void take_crossings(const std::function<void(const lab_crossing &)> &handle);

  private:
    struct CloseSkeleton {
        void operator()(lab_occupancy_bpf *skeleton) const;
    };
    struct FreeRing {
        void operator()(ring_buffer *ring) const;
    };

    std::unique_ptr<lab_occupancy_bpf, CloseSkeleton> skeleton_;
    std::unique_ptr<ring_buffer, FreeRing> ring_;
    std::vector<Fd> links_;
    lab_occupancy *slots_ = nullptr;
    std::function<void(const lab_crossing &)> handle_;
};

} // namespace spillway::lab
