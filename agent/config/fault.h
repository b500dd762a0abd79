// SPDX-License-Identifier: Apache-2.0
/// How a fault in the configuration file is worded, the same for all kinds of fault.
#pragma once

#include "agent/core/result.h"

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

namespace spillway {

/// One fault: "configuration: FILE: PLACE: found FOUND, allowed: ALLOWED", HINT.
struct Fault {
    std::string place; ///< JSON pointer; empty for the whole document
    std::string found;
    std::string allowed;
    std::string hint;
};

/// An error about the file: kind usage, `reason` in words.
Error config_error(std::string_view file, std::string reason, std::string hint);
Error config_error(std::string_view file, const Fault &fault);

/// A value as JSON, in ASCII and cut short; lists and objects by kind only.
std::string shown(const nlohmann::json &value);
/// A string as shown() has it, in quotes.
std::string in_quotes(std::string_view text);
/// "/key", with ~ and / escaped as RFC 6901 asks and anything outside ASCII as in JSON.
std::string pointer_step(std::string_view key);
/// "a, b or c"
std::string listed(std::span<const std::string> items);

} // namespace spillway
