// SPDX-License-Identifier: Apache-2.0
/// Looks through the flows: releases those whose reasons have ended and whose packets have left, clears those
/// without a mark that are silent, counts them by port, and shuts the gate of the TC program when nothing is
/// marked.
#pragma once

#include "agent/daemon/port_table.h"
#include "agent/kernel/maps.h"

namespace spillway {

class Sweeper {
  public:
    Sweeper(Maps &maps, PortTable &ports) : maps_(maps), ports_(ports) {}

    /// One sweep. Returns the flows that were in the table at its beginning.
    Result<FlowEntries> sweep();

  private:
    /// Entries without a mark are cleared every so many turns.
    static constexpr unsigned clear_turns = 10;

    Maps &maps_;
    PortTable &ports_;
    unsigned turns_ = 0;
    bool leftovers_ = true; ///< entries of a time when every flow had one may be left
};

} // namespace spillway
