// SPDX-License-Identifier: Apache-2.0
// Configuration files that cannot be read, or are no configuration at all.
#include "agent/config/config.h"
#include "tests/temporary_folder.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <unistd.h>

namespace spillway {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::StartsWith;

class ConfigFile : public testing::Test {
  protected:
    fs::path write(const std::string &text) {
        const fs::path path = dir_ / "spillway.json";
        std::ofstream(path, std::ios::binary) << text;
        return path;
    }

    TemporaryFolder folder_{"config"};
    const fs::path &dir_ = folder_.path();
};

TEST_F(ConfigFile, IsReadWhole) {
    const auto config = load_config(write(R"({"log_level": "debug"})"));
    ASSERT_TRUE(config) << config.error().text();
    EXPECT_EQ(config->log_level, LogLevel::debug);
}

TEST_F(ConfigFile, MayBeAPipe) {
    const std::unique_ptr<std::FILE, int (*)(std::FILE *)> pipe(
        ::popen("echo '{\"mode\": '; echo '\"isolate\"}'", "r"), ::pclose);
    ASSERT_NE(pipe, nullptr);
    EXPECT_TRUE(load_config("/proc/self/fd/" + std::to_string(::fileno(pipe.get()))));
}

TEST_F(ConfigFile, MissingIsAnError) {
    const fs::path path = dir_ / "none.json";
    const auto config = load_config(path);
    ASSERT_FALSE(config);
    EXPECT_EQ(config.error().kind, ErrorKind::usage);
    EXPECT_EQ(config.error().message(),
              "configuration: " + path.string() + ": cannot be read: No such file or directory");
    EXPECT_THAT(config.error().hint, HasSubstr("--config"));
}

TEST_F(ConfigFile, DirectoryIsAnError) {
    const auto config = load_config(dir_);
    ASSERT_FALSE(config);
    EXPECT_EQ(config.error().kind, ErrorKind::usage);
    EXPECT_THAT(config.error().message(), HasSubstr("cannot be read: Is a directory"));
    EXPECT_THAT(config.error().hint, HasSubstr("--config"));
}

TEST_F(ConfigFile, UnreadableIsAnError) {
    const fs::path loop = dir_ / "loop";
    fs::create_symlink("loop", loop);
    const auto config = load_config(loop);
    ASSERT_FALSE(config);
    EXPECT_EQ(config.error().kind, ErrorKind::usage);
    EXPECT_THAT(config.error().message(), HasSubstr("cannot be read: Too many levels of symbolic links"));
}

TEST_F(ConfigFile, SizeIsBounded) {
    const std::string small = R"({"log_level": "debug"})";
    const std::string most = small + std::string((1U << 20) - small.size(), ' ');
    EXPECT_TRUE(load_config(write(most)));
    for (const fs::path &path : {write(most + " "), fs::path("/dev/zero")}) {
        const auto config = load_config(path);
        ASSERT_FALSE(config);
        EXPECT_EQ(config.error().kind, ErrorKind::usage);
        EXPECT_THAT(config.error().message(), HasSubstr("found more than 1 MiB, allowed: at most 1 MiB"));
        EXPECT_FALSE(config.error().hint.empty());
    }
}

TEST_F(ConfigFile, EmptyIsAnError) {
    for (const char *text : {"", " ", "\n\t\r\n"}) {
        const auto config = load_config(write(text));
        ASSERT_FALSE(config);
        EXPECT_THAT(config.error().message(), HasSubstr("found an empty file, allowed: a JSON object"));
        EXPECT_THAT(config.error().hint, HasSubstr(R"({"ports": [{"name": "eth1"}]})"));
    }
}

// The parser would take it for the end.
TEST_F(ConfigFile, ZeroByteIsAnError) {
    const auto config = load_config(write(std::string("{}\0{}", 5)));
    ASSERT_FALSE(config);
    EXPECT_THAT(config.error().message(), HasSubstr("found a zero byte at byte 2, allowed: a JSON object"));
}

TEST(ConfigText, NotJsonNamesLineAndColumn) {
    struct Case {
        const char *text;
        const char *detail;
        const char *hint;
    };
    for (const auto &[text, detail, hint] : {
             Case{"{\n  \"mode\": \"isolate\",\n}", "line 3, column 1: not JSON: unexpected '}'",
                  "remove the comma before }"},
             {R"({"ports": [1, 2, ]})", "line 1, column 18: not JSON: unexpected ']'",
              "remove the comma before ]"},
             {"{\n  // why\n}", "line 2, column 3: not JSON: invalid literal", "JSON has no comments"},
             {"# why\n{}", "line 1, column 1: not JSON: invalid literal", "JSON has no comments"},
             {R"({"mode" "isolate"})", "line 1, column 17: not JSON: unexpected string literal",
              "just before"},
             {R"({"mode": "isolate" "ports": []})", "line 1, column 26: not JSON: unexpected string literal",
              "commas"},
             {R"({"mode": 'isolate'})", "line 1, column 10: not JSON: invalid literal", "quotes"},
             {R"({"mode": "isolate")", "line 1, column 19: not JSON: unexpected end of input", "brackets"},
             {"{\"mode\": \"iso\nlate\"}", "line 1, column 14: not JSON: invalid string: control character",
              "quotes"},
             {R"({"mode": "isolate"}})", "line 1, column 20: not JSON: unexpected '}'", "brackets"},
             {R"({"cip": {"refresh_ms": NaN}})", "line 1, column 24: not JSON: invalid literal", "commas"},
             {R"({"cip": {"refresh_ms": Infinity}})", "line 1, column 24: not JSON: invalid literal",
              "commas"},
             {R"({"cip": {"refresh_ms": 1e999}})", "line 1, column 28: not JSON: number overflow", "commas"},
             {R"({"cip": {"refresh_ms": 0x10}})", "line 1, column 25: not JSON: invalid literal", "commas"},
             {"{\"mode\": \"\xff\"}", "line 1, column 11: not JSON: invalid string: ill-formed UTF-8",
              "quotes"},
             {"mode: isolate", "line 1, column 1: not JSON: invalid literal", "commas"},
         }) {
        const auto config = parse_config(text, "f.json");
        ASSERT_FALSE(config) << text;
        EXPECT_EQ(config.error().kind, ErrorKind::usage);
        EXPECT_THAT(config.error().message(), StartsWith(std::string("configuration: f.json: ") + detail))
            << text;
        EXPECT_THAT(config.error().hint, HasSubstr(hint)) << text;
    }
}

TEST(ConfigText, ErrorsAreShortAndPlainWhateverTheFile) {
    const std::string much(200000, '1');
    for (const std::string &text :
         {"{\"cip\": {\"refresh_ms\": " + much + "}}", "{\"mode\": \"" + much + "\"}",
          "{\"" + much + "\": 1}", "{\"mode\": \"" + much, std::string(R"({"mode": "\u001b[2J\u009b2J"})"),
          std::string(R"({"\u001b[2J\u009b2J": 1})"), std::string(R"({"a\u0000": 1, "a\u0000": 2})"),
          "{\"ports\": [{\"name\": \"" + much + "\"}]}",
          "{\"ports\": [{\"name\": \"e\", \"queues\": [{\"class\": \"" + much + "\"}]}]}",
          "{\"cip\": {\"ethertype\": \"0x" + much + "\"}}", std::string(200000, '['),
          "{\"mode\": " + std::string(200000, '[')}) {
        const auto config = parse_config(text, "f.json");
        ASSERT_FALSE(config) << text.substr(0, 80);
        EXPECT_LT(config.error().text().size(), 600U) << text.substr(0, 80);
        EXPECT_THAT(config.error().message(),
                    testing::Each(testing::AllOf(testing::Ge(' '), testing::Le('~'))))
            << text.substr(0, 80);
    }
}

TEST(ConfigText, AnyDamageIsReadOrTold) {
    const std::string text =
        R"({"ports":[{"name":"e","trap":"tc","queues":[{"class":"1:1","isolate_class":["1:2"],)"
        R"("waterline":{"low":1,"high":2}}]}],"detection":{"guard":"off"}})";
    ASSERT_TRUE(parse_config(text, "f.json"));
    std::size_t refused = 0;
    const auto read = [&refused](const std::string &damaged) {
        const auto config = parse_config(damaged, "f.json");
        refused += config ? 0 : 1;
        EXPECT_TRUE(config || (!config.error().detail.empty() && !config.error().hint.empty())) << damaged;
    };
    for (std::size_t i = 0; i < text.size(); ++i) {
        read(text.substr(0, i));
        read(text.substr(0, i) + text.substr(i + 1));
        std::string changed = text;
        changed[i] = static_cast<char>(changed[i] ^ 1);
        read(changed);
    }
    EXPECT_GT(refused, 2 * text.size());
}

TEST(ConfigText, KeysComeOnce) {
    struct Case {
        const char *text;
        const char *place;
    };
    for (const auto &[text, place] : {
             Case{R"({"mode": "isolate", "mode": "isolate"})", "/mode"},
             {R"({"mode": "isolate", "\u006dode": "isolate"})", "/mode"},
             {R"({"cip": {"refresh_ms": 1, "refresh_ms": 2}})", "/cip/refresh_ms"},
             {R"({"ports": [{"name": "a"}, {"name": "b", "queues": [{"class": "1:1", "class": "1:2"}]}]})",
              "/ports/1/queues/0/class"},
             {R"({"a/b~c": {"d": [], "d": {}}})", "/a~1b~0c/d"},
         }) {
        const auto config = parse_config(text, "f.json");
        ASSERT_FALSE(config) << text;
        EXPECT_EQ(config.error().kind, ErrorKind::usage);
        EXPECT_EQ(config.error().message(),
                  std::string("configuration: f.json: ") + place +
                      ": found this key a second time, allowed: each key once in an object");
        EXPECT_THAT(config.error().hint, StartsWith("remove one of the two \""));
    }
    EXPECT_TRUE(parse_config(R"({"ports": [{"name": "a"}, {"name": "b"}]})", "f.json"));
}

} // namespace
} // namespace spillway
