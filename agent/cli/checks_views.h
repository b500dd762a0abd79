// SPDX-License-Identifier: Apache-2.0
/// What `doctor` prints.
#pragma once

#include "agent/doctor/diagnosis.h"

#include <string>
#include <vector>

namespace spillway {

/// `doctor --json` (design §9).
[[nodiscard]] std::string checks_json(const std::vector<Check> &checks);
/// Aligned lines, each remedy on a line below its check, and how many there are of each level.
[[nodiscard]] std::string checks_text(const std::vector<Check> &checks);

} // namespace spillway
