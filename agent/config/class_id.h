// SPDX-License-Identifier: Apache-2.0
/// Name of a processing queue in a port's qdisc tree, as tc writes it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace spillway {

/// A class ("1:10", both numbers in hex) or the port's root qdisc ("root").
struct ClassId {
    static constexpr std::uint32_t root_handle = 0xFFFFFFFF; ///< TC_H_ROOT

    std::uint32_t handle = root_handle; ///< major << 16 | minor, as the kernel has it in skb->priority

    [[nodiscard]] constexpr bool is_root() const { return handle == root_handle; }
    [[nodiscard]] constexpr std::uint16_t major() const { return static_cast<std::uint16_t>(handle >> 16); }
    [[nodiscard]] constexpr std::uint16_t minor() const { return static_cast<std::uint16_t>(handle); }

    /// Reads "major:minor" (1-4 hex digits each, major 1..fffe, minor 1..ffff) or "root"; none for any other
    /// text.
    static std::optional<ClassId> parse(std::string_view text);
    /// What parse() reads: "1:10" or "root".
    [[nodiscard]] std::string text() const;

    friend constexpr bool operator==(ClassId, ClassId) = default;
    friend constexpr auto operator<=>(ClassId, ClassId) = default;
};

} // namespace spillway
