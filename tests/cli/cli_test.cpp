// SPDX-License-Identifier: Apache-2.0
#include "tests/netns/fixture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <string>
#include <unistd.h>

namespace spillway::lab {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsEmpty;

/// `spillway ARGUMENTS…`. The instance of these tests never exists.
Output spillway(Words arguments) {
    arguments.insert(arguments.begin(), spillway_program());
    return run(std::move(arguments), {}, 20);
}

const Words absent{"--instance", "no-such-instance"};

Output absent_instance(const Words &arguments) {
    Words all = absent;
    all.insert(all.end(), arguments.begin(), arguments.end());
    return spillway(std::move(all));
}

/// One sentence and one hint, on standard error only.
void expect_refusal(const Output &output, int code, const std::string &says) {
    EXPECT_EQ(output.code, code);
    EXPECT_THAT(output.out, IsEmpty());
    EXPECT_THAT(output.err, ContainsRegex("^spillway: [^\n]+\nHINT: [^\n]+\n$"));
    EXPECT_THAT(output.err, HasSubstr(says));
}

class Help : public testing::TestWithParam<const char *> {};

TEST_P(Help, IsShortAndHasAnExample) {
    const Output output = spillway({GetParam(), "--help"});
    EXPECT_EQ(output.code, 0);
    EXPECT_THAT(output.err, IsEmpty());
    EXPECT_THAT(output.out, HasSubstr(std::string("Usage: spillway ") + GetParam()));
    EXPECT_THAT(output.out, ContainsRegex("Examples?:"));
    EXPECT_LE(std::count(output.out.begin(), output.out.end(), '\n'), 24) << "fits a screen";
}

INSTANTIATE_TEST_SUITE_P(Of, Help,
                         testing::Values("agent", "check", "doctor", "status", "flows", "mark", "unmark",
                                         "setup", "panic", "resume", "purge"),
                         [](const auto &info) { return std::string(info.param); });

TEST(Program, HelpListsEveryCommandAndGlobalOption) {
    const Output output = spillway({"--help"});
    EXPECT_EQ(output.code, 0);
    for (const char *word : {"agent", "check", "doctor", "status", "flows", "mark", "unmark", "setup",
                             "panic", "resume", "purge", "--instance", "--netns", "--version", "Exit status"})
        EXPECT_THAT(output.out, HasSubstr(word));
}

TEST(Program, Version) {
    const Output output = spillway({"--version"});
    EXPECT_EQ(output.code, 0);
    EXPECT_THAT(output.out, ContainsRegex("^spillway [0-9]+\\.[0-9]+\\.[0-9]+\n$"));
}

struct Usage {
    Words arguments;
    std::string says;
};

class BadUsage : public testing::TestWithParam<Usage> {};

TEST_P(BadUsage, Exits2) {
    expect_refusal(spillway(GetParam().arguments), 2, GetParam().says);
}

INSTANTIATE_TEST_SUITE_P(
    Of, BadUsage,
    testing::Values(Usage{{}, "no command is given"},
                    Usage{{"bogus"}, "'bogus' is neither command nor option"},
                    Usage{{"--bogus"}, "'--bogus' is neither command nor option"},
                    Usage{{"status", "--bogus"}, "--bogus"}, Usage{{"status", "more"}, "more"},
                    Usage{{"status", "--all"}, "--all"}, Usage{{"status", "--instance"}, "--instance"},
                    Usage{{"--json", "status"}, "--json"}, Usage{{"--instance"}, "--instance"},
                    // Commands and options of later versions.
                    Usage{{"monitor"}, "monitor"}, Usage{{"explain"}, "explain"},
                    Usage{{"setup", "eth1", "--rate", "1gbit", "--kind", "prio"}, "--kind"},
                    // Instances and namespaces.
                    Usage{{"--instance", "a/b", "status"}, "'a/b' is no name"},
                    Usage{{"--instance", "..", "purge"}, "'..' is no name"},
                    Usage{{"--instance", "", "purge"}, "'' is no name"},
                    Usage{{"--instance", "ä", "status"}, "is no name"},
                    Usage{{"--instance", std::string(33, 'x'), "status"}, "is no name"},
                    Usage{{"--netns", "../etc/passwd", "status"}, "is no name of a network namespace"},
                    Usage{{"--netns", "", "status"}, "'' is no name of a network namespace"},
                    Usage{{"--netns", "..", "status"}, "is no name of a network namespace"},
                    // Flows; all of this is known before the instance is looked for.
                    Usage{{"mark"}, "FLOW is required"},
                    Usage{{"mark", "udp 10.0.0.1:1 10.0.0.2:2"}, "--port is required"},
                    Usage{{"mark", "--port", "eth1"}, "FLOW is required"},
                    Usage{{"mark", "udp", "--port", "eth1"}, "'udp' is not three words"},
                    Usage{{"mark", "udp 10.0.0.1:1", "10.0.0.2", "--port", "eth1"}, "'10.0.0.2' has no port"},
                    Usage{{"unmark", "udp", "10.0.0.1:1", "10.0.0.2:2", "vni", "x", "--port", "eth1"},
                          "'x' is not a VNI"},
                    Usage{{"mark", "-1", "10.0.0.1", "10.0.0.2", "--port", "eth1"}, "'-1' is not a protocol"},
                    Usage{{"setup"}, "PORT is required"}, Usage{{"setup", "eth1"}, "rate"},
                    Usage{{"setup", "eth1", "--rate", "fast"}, "fast"}, Usage{{"doctor", "eth1"}, "eth1"},
                    Usage{{"doctor", "--all"}, "--all"}, Usage{{"doctor", "--config"}, "--config"},
                    Usage{{"check", "--config", "/no/such/file"}, "/no/such/file"},
                    Usage{{"agent", "--config", "/no/such/file"}, "/no/such/file"}));

TEST(Program, ALongestInstanceNameIsTaken) {
    EXPECT_EQ(spillway({"status", "--instance", "no-such-instance"}).code, 3); // also after the command
    EXPECT_EQ(spillway({"--instance", std::string(32, 'x'), "status"}).code, 3);
}

TEST(Program, WithoutADataPathItExits3) {
    for (const Words &arguments :
         {Words{"status"}, Words{"status", "--json"}, Words{"flows"}, Words{"flows", "--json", "--all"},
          Words{"mark", "udp 10.0.0.1:1 10.0.0.2:2", "--port", "eth1"},
          Words{"unmark", "tcp", "[fd00::1]:1", "[fd00::2]:2", "--port", "eth1"}})
        expect_refusal(absent_instance(arguments), 3, "instance no-such-instance: no data path");
}

TEST(Program, PurgeOfNothingIsDone) {
    const Output output = absent_instance({"purge"});
    EXPECT_EQ(output.code, 0);
    EXPECT_EQ(output.out, "instance no-such-instance: nothing to remove\n");
}

TEST(Program, ANamespaceThatIsNotThere) {
    expect_refusal(spillway({"--netns", "no-such-namespace", "status"}), 1, "'no-such-namespace'");
}

/// A file of its own, gone with the test.
class ConfigFile : public testing::Test {
  protected:
    ConfigFile()
        : path_(std::filesystem::temp_directory_path() / fmt::format("spillway-cli-{}.json", ::getpid())) {}
    ~ConfigFile() override {
        std::error_code ignored;
        std::filesystem::remove(path_, ignored);
    }

    Output check(const std::string &text) { return with("check", text); }
    Output doctor(const std::string &text) { return with("doctor", text); }

  private:
    Output with(const std::string &command, const std::string &text) {
        std::ofstream(path_) << text;
        return spillway({command, "--config", path_.string()});
    }

    std::filesystem::path path_;
};

TEST_F(ConfigFile, WithAFaultExits2) {
    expect_refusal(check("{"), 2, "spillway-cli-");
    expect_refusal(check(R"({"ports":[{"name":"eth1","colour":1}]})"), 2, "colour");
}

TEST_F(ConfigFile, EveryProblemOfTheHostIsListed) {
    const Output output = check(R"({"ports":[{"name":"nowhere0"},{"name":"nowhere*"},{"name":"lo"}]})");
    EXPECT_EQ(output.code, 2);
    EXPECT_THAT(output.out, IsEmpty());
    EXPECT_THAT(output.err, AllOf(HasSubstr("port nowhere0: "), HasSubstr("port nowhere*: "),
                                  HasSubstr("port lo: it carries no Ethernet")));
}

TEST(Doctor, JsonHasTheSameKeysInEveryCheck) {
    const Output output = spillway({"doctor", "--json", "--config", "/no/such/file"});
    EXPECT_THAT(output.code, testing::AnyOf(0, 1)) << output.err; // as this host is
    const auto document = nlohmann::json::parse(output.out);
    EXPECT_EQ(document.size(), 2U);
    EXPECT_EQ(document["schema"], 1);
    ASSERT_FALSE(document["checks"].empty());
    bool problem = false;
    for (const auto &check : document["checks"]) {
        EXPECT_EQ(check.size(), 5U) << check;
        EXPECT_TRUE(check["id"].is_string()) << check;
        EXPECT_THAT(check["level"], testing::AnyOf("fine", "note", "problem")) << check;
        EXPECT_TRUE(check["port"].is_string() || check["port"].is_null()) << check;
        EXPECT_TRUE(check["text"].is_string()) << check;
        EXPECT_TRUE(check["remedy"].is_string() || check["remedy"].is_null()) << check;
        EXPECT_TRUE(check["level"] != "problem" || check["remedy"].is_string()) << check;
        problem = problem || check["level"] == "problem";
    }
    EXPECT_EQ(output.code, problem ? 1 : 0);
    EXPECT_EQ(output.err.empty(), !problem) << output.err;
}

TEST(Doctor, WithoutAConfigurationSaysSo) {
    const Output output = spillway({"doctor", "--config", "/no/such/file"});
    EXPECT_THAT(output.out,
                ContainsRegex("\nnote +configuration +there is no configuration /no/such/file; "));
    EXPECT_THAT(output.out, ContainsRegex("\nproblems [0-9]+, notes [0-9]+, fine [0-9]+\n$"));
}

TEST_F(ConfigFile, WithAFaultIsAProblemForDoctor) {
    const Output output = doctor("{");
    EXPECT_EQ(output.code, 1);
    EXPECT_THAT(output.out, ContainsRegex("\nproblem +configuration +[^\n]*spillway-cli-"));
    EXPECT_THAT(output.err, ContainsRegex("^spillway: [0-9]+ problems? found\nHINT: "));
}

TEST_F(ConfigFile, PortsThatAreNotThereAreProblemsForDoctor) {
    const Output output = doctor(R"({"ports":[{"name":"nowhere0"},{"name":"lo"}]})");
    EXPECT_EQ(output.code, 1);
    EXPECT_THAT(output.out, AllOf(ContainsRegex("\nproblem +port +nowhere0: no interface"),
                                  ContainsRegex("\nproblem +port +lo: it carries no Ethernet")));
}

TEST(Program, OutputThatCannotBeWrittenIsAFailure) {
    const Output output =
        run({"sh", "-c", spillway_program() + " --instance no-such-instance purge >/dev/full"});
    EXPECT_EQ(output.code, 1);
    EXPECT_THAT(output.err, HasSubstr("standard output"));
}

} // namespace
} // namespace spillway::lab
