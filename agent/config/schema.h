// SPDX-License-Identifier: Apache-2.0
/// The schema of the configuration file, and what is wrong with a document by it.
#pragma once

#include "agent/config/fault.h"

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>

namespace spillway {

/// The text of deploy/spillway.schema.json at build time.
std::string_view config_schema();

/// The first structural fault of the document (type, range, value, missing or unknown key), or none.
std::optional<Fault> find_schema_fault(const nlohmann::json &document);

} // namespace spillway
