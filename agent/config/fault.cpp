// SPDX-License-Identifier: Apache-2.0
#include "agent/config/fault.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

namespace spillway {

Error config_error(std::string_view file, std::string reason, std::string hint) {
    return {.operation = "configuration",
            .object = std::string(file),
            .detail = std::move(reason),
            .hint = std::move(hint),
            .kind = ErrorKind::usage};
}

Error config_error(std::string_view file, const Fault &fault) {
    return config_error(file,
                        fmt::format("{}{}found {}, allowed: {}", fault.place, fault.place.empty() ? "" : ": ",
                                    fault.found, fault.allowed),
                        fault.hint);
}

namespace {

/// The text as JSON writes it, without the quotes; what is not ASCII is escaped, so that no text in a file
/// can steer the terminal that shows the error.
std::string escaped(std::string_view text) {
    constexpr std::size_t most = 64;
    std::string escaped = nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    escaped = escaped.substr(1, escaped.size() - 2);
    return escaped.size() <= most ? escaped : escaped.substr(0, most) + "...";
}

} // namespace

std::string in_quotes(std::string_view text) {
    return '"' + escaped(text) + '"';
}

std::string shown(const nlohmann::json &value) {
    if (value.is_object())
        return value.empty() ? "an empty object" : "an object";
    if (value.is_array())
        return value.empty() ? "an empty list" : fmt::format("a list of {}", value.size());
    if (value.is_string())
        return in_quotes(value.get_ref<const std::string &>());
    return value.dump();
}

std::string pointer_step(std::string_view key) {
    std::string step = "/";
    for (const char c : escaped(key)) {
        if (c == '~')
            step += "~0";
        else if (c == '/')
            step += "~1";
        else
            step += c;
    }
    return step;
}

std::string listed(std::span<const std::string> items) {
    std::string text;
    for (std::size_t i = 0; i < items.size(); ++i) {
        if (i > 0)
            text += i + 1 == items.size() ? " or " : ", ";
        text += items[i];
    }
    return text;
}

} // namespace spillway
