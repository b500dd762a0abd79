// SPDX-License-Identifier: Apache-2.0
/// Looks through the marked flows: releases those whose reasons have ended and whose packets have left,
/// counts them by port, and shuts the gate of the TC program when nothing is marked.
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
    Maps &maps_;
    PortTable &ports_;
};

} // namespace spillway
