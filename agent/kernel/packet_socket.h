// SPDX-License-Identifier: Apache-2.0
/// Sends Ethernet frames of our own (spec R3, design §8 'How it leaves').
#pragma once

#include "agent/core/fd.h"
#include "agent/core/result.h"

#include <cstdint>
#include <span>

namespace spillway {

class PacketSocket {
  public:
    /// Opens the sockets in the current network namespace. They receive nothing (protocol 0).
    static Result<PacketSocket> open();

    /// Sends a whole frame out of `ifindex`, past the port's qdisc, so that it does not wait in the queue
    /// whose congestion it reports; through the qdisc with `priority` (an skb->priority, so also a class id)
    /// when the driver has no room at once.
    [[nodiscard]] Result<> send(int ifindex, std::span<const std::uint8_t> frame,
                                std::uint32_t priority) const;

  private:
    PacketSocket(Fd bypass, Fd queued) : bypass_(std::move(bypass)), queued_(std::move(queued)) {}
    Fd bypass_;
    Fd queued_;
};

} // namespace spillway
