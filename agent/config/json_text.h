// SPDX-License-Identifier: Apache-2.0
/// JSON text to a document, stricter than the usual reader: no key twice, bounded nesting.
#pragma once

#include "agent/core/result.h"

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace spillway {

/// Errors are of kind usage and name `file` and the line and column where reading stopped, or the JSON
/// pointer of a key that is there twice.
Result<nlohmann::json> read_json(std::string_view text, std::string_view file);

} // namespace spillway
