// SPDX-License-Identifier: Apache-2.0
/// `explain`: why a flow is or is not isolated on a port, from a snapshot and the guard's slot of the flow.
#pragma once

#include "agent/cli/snapshot.h"

#include <optional>
#include <string>

namespace spillway {

/// `key` has the port. `suspect` is what the guard has added up for the flow on that port; none: nothing.
[[nodiscard]] std::string explanation(const Snapshot &snapshot, const spillway_flow_key &key,
                                      const std::optional<spillway_suspect> &suspect);

} // namespace spillway
