// SPDX-License-Identifier: Apache-2.0
/// Stops and starts one priority of a port: what a neighbour does that obeys a pause frame.
///
/// The TBF of the priority's class is given another rate over netlink, which takes effect for the next packet
/// and fills its bucket anew: at 8 bit/s one packet slips through and the rest wait. The kernel does not look
/// at the queue again by itself when the rate comes back (measured: nothing moved for seconds), so a small
/// frame of no meaning is sent through the port's first class, which makes it look.
#pragma once

#include "agent/kernel/netlink.h"
#include "tests/lab/filler.h"
#include "tests/lab/topology.h"

#include <vector>

namespace spillway::lab {

/// Rates of the TBFs, as tc and netlink write them.
inline constexpr std::uint32_t open_rate = 1'250'000'000; ///< bytes a second: 10 Gbit/s
inline constexpr std::uint32_t open_burst = 1 << 20;      ///< bytes
inline constexpr std::uint32_t closed_rate = 1;           ///< bytes a second
inline constexpr std::uint32_t closed_burst = 1600;       ///< bytes: a packet must fit, else it is dropped

/// The gates of one node, on sockets that stay open. Not thread-safe.
class Gates {
  public:
    explicit Gates(const Node &node);

    void close(const Port &port, Priority priority);
    void open(const Port &port, Priority priority);

  private:
    void set_rate(const Port &port, Priority priority, std::uint32_t rate, std::uint32_t burst);

    std::string node_;
    detail::NlSocket netlink_;
    Filler kick_;
};

} // namespace spillway::lab
