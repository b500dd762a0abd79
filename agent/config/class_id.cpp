// SPDX-License-Identifier: Apache-2.0
#include "agent/config/class_id.h"

#include <charconv>
#include <fmt/core.h>

namespace spillway {

namespace {

/// One to four hex digits and nothing else, from 1 to `most`.
std::optional<std::uint32_t> parse_number(std::string_view text, std::uint32_t most) {
    if (text.size() > 4)
        return std::nullopt;
    std::uint32_t number = 0;
    const char *end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, number, 16);
    if (error != std::errc() || stop != end || number == 0 || number > most)
        return std::nullopt;
    return number;
}

} // namespace

std::optional<ClassId> ClassId::parse(std::string_view text) {
    if (text == "root")
        return ClassId{};
    const auto colon = text.find(':');
    if (colon == std::string_view::npos)
        return std::nullopt;
    // Major ffff is taken: ffff: is the ingress qdisc and ffff:ffff stands for the root.
    const auto major = parse_number(text.substr(0, colon), 0xfffe);
    const auto minor = parse_number(text.substr(colon + 1), 0xffff);
    if (!major || !minor)
        return std::nullopt;
    return ClassId{*major << 16 | *minor};
}

std::string ClassId::text() const {
    return is_root() ? "root" : fmt::format("{:x}:{:x}", major(), minor());
}

} // namespace spillway
