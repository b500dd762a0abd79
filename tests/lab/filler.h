// SPDX-License-Identifier: Apache-2.0
/// Frames of no meaning, sent through a chosen class of a port for what they do to its queues.
#pragma once

#include "agent/core/fd.h"
#include "tests/lab/topology.h"

#include <cstddef>
#include <cstdint>

namespace spillway::lab {

class Filler {
  public:
    explicit Filler(const Node &node);
    /// `size`: bytes from the destination MAC on, 60 to 1514.
    void send(const Port &port, std::uint32_t classid, std::size_t size) const;

  private:
    Fd socket_;
};

} // namespace spillway::lab
