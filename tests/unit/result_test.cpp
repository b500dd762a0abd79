// SPDX-License-Identifier: Apache-2.0
#include "agent/core/result.h"

#include <gtest/gtest.h>

namespace spillway {
namespace {

TEST(Error, JoinsWhatIsKnown) {
    const Error error{.operation = "open", .object = "x", .number = 2, .detail = "why", .hint = "do"};
    EXPECT_EQ(error.message(), "open: x: why: No such file or directory");
    EXPECT_EQ(error.text(), "open: x: why: No such file or directory\nHINT: do");
    EXPECT_EQ((Error{.operation = "open"}).text(), "open");
}

// A terminal obeys control characters, and a line must not look like two.
TEST(Error, ControlCharactersAreWrittenOut) {
    const Error error{.operation = "a\nb", .object = "\x1b[31m", .hint = "c\x7f\r"};
    EXPECT_EQ(error.text(), "a\\x0ab: \\x1b[31m\nHINT: c\\x7f\\x0d");
    EXPECT_EQ((Error{.operation = "größe"}).text(), "größe");
}

} // namespace
} // namespace spillway
