// SPDX-License-Identifier: Apache-2.0
/// Errors as values: what was tried, on which object, why it failed, and what the user can do about it.
#pragma once

#include <cstring>
#include <expected>
#include <string>
#include <string_view>
#include <utility>

namespace spillway {

/// Decides the exit code of the program (design: 1 failed, 2 bad usage or configuration, 3 no data path).
enum class ErrorKind : int { failed = 1, usage = 2, no_data_path = 3 };

/// One failure. Printed as `operation: object: reason` and, on a line of its own, `HINT: remedy`.
struct Error {
    std::string operation{};            ///< what was tried, e.g. "attach tc egress"
    std::string object{};               ///< what it was tried on, e.g. "eth1"; may be empty
    int number = 0;                     ///< errno value, positive; 0 where `detail` alone says why
    std::string detail{};               ///< the reason in words; may be empty when `number` is set
    std::string hint{};                 ///< the remedy; may be empty
    ErrorKind kind = ErrorKind::failed; ///< exit code category

    /// "operation: object: detail: strerror", without the hint, on one line: control characters, which came
    /// from a user or a file name, are written as \xNN.
    [[nodiscard]] std::string message() const {
        std::string text = operation;
        const auto add = [&text](const std::string &part) {
            if (part.empty())
                return;
            if (!text.empty())
                text += ": ";
            text += part;
        };
        add(object);
        add(detail);
        if (number != 0)
            add(std::strerror(number));
        return one_line(text);
    }

    /// message() and, if there is one, the hint on the next line.
    [[nodiscard]] std::string text() const {
        return hint.empty() ? message() : message() + "\nHINT: " + one_line(hint);
    }

  private:
    static std::string one_line(const std::string &text) {
        static constexpr std::string_view digits = "0123456789abcdef";
        std::string line;
        for (const char c : text) {
            const auto byte = static_cast<unsigned char>(c);
            if (byte >= ' ' && byte != 0x7f)
                line += c;
            else
                line.append("\\x").append({digits[byte >> 4U], digits[byte & 0xfU]});
        }
        return line;
    }
};

template <class T = void>
using Result = std::expected<T, Error>;

/// `return fail({.operation = "open", .object = path, .number = errno});`
inline std::unexpected<Error> fail(Error error) {
    return std::unexpected<Error>(std::move(error));
}

} // namespace spillway
