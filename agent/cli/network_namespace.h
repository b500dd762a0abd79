// SPDX-License-Identifier: Apache-2.0
/// Network namespaces by the names that `ip netns` gives them.
#pragma once

#include "agent/core/result.h"

#include <string>

namespace spillway {

/// Moves this process into the named network namespace. Nothing else of it moves: /sys/fs/bpf stays the same.
[[nodiscard]] Result<> enter_network_namespace(const std::string &name);

} // namespace spillway
