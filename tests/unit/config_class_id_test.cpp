// SPDX-License-Identifier: Apache-2.0
#include "agent/config/class_id.h"

#include <gtest/gtest.h>
#include <linux/pkt_sched.h>

namespace spillway {
namespace {

TEST(ClassId, ReadsWhatTcWrites) {
    struct Case {
        const char *text;
        std::uint32_t handle;
        const char *written;
    };
    for (const auto &[text, handle, written] : {Case{"1:10", 0x00010010, "1:10"},
                                                {"1:5", 0x00010005, "1:5"},
                                                {"0001:000A", 0x0001000a, "1:a"},
                                                {"8001:1", 0x80010001, "8001:1"},
                                                {"fffe:ffff", 0xfffeffff, "fffe:ffff"},
                                                {"root", TC_H_ROOT, "root"}}) {
        const auto id = ClassId::parse(text);
        ASSERT_TRUE(id) << text;
        EXPECT_EQ(id->handle, handle) << text;
        EXPECT_EQ(id->text(), written);
        EXPECT_EQ(ClassId::parse(id->text()), id) << text;
    }
}

TEST(ClassId, RefusesEverythingElse) {
    for (const char *text :
         {"",        ":",      "1",         "1:",    ":10", "1:0",  "0:1",   "0:0",   "1:12345", "12345:1",
          "1:00010", "ffff:1", "ffff:ffff", "g:1",   "1:g", "-1:1", "1:-1",  "+1:1",  "0x1:1",   "1:0x1",
          " 1:1",    "1:1 ",   "1: 1",      "1:1:1", "1.1", "Root", "root ", "roots", "leaves"})
        EXPECT_EQ(ClassId::parse(text), std::nullopt) << '"' << text << '"';
    EXPECT_EQ(ClassId::parse(std::string_view("1:1\0", 4)), std::nullopt);
}

TEST(ClassId, SplitsIntoMajorAndMinor) {
    constexpr ClassId id{0xabcd0012};
    EXPECT_EQ(id.major(), 0xabcd);
    EXPECT_EQ(id.minor(), 0x12);
    EXPECT_FALSE(id.is_root());
    EXPECT_TRUE(ClassId::parse("root")->is_root());
}

} // namespace
} // namespace spillway
