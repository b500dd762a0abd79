// SPDX-License-Identifier: Apache-2.0
#include "tests/netns/fixture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
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
                                         "explain", "setup", "panic", "resume", "purge", "cip"),
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
                    Usage{{"explain"}, "FLOW is required"},
                    Usage{{"explain", "udp", "10.0.0.1"}, "is not three words"},
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

// ---- cip decode

const std::string descriptor =
    "04 11 0001 03e8 00000000 1388 1770 0a000001 000000000000000000000000 0a000002 "
    "000000000000000000000000 00000007";

Output decode(const std::string &input, Words options = {}) {
    options.insert(options.begin(), {spillway_program(), "cip", "decode"});
    return run(std::move(options), input, 20);
}

TEST(CipDecode, BothFormsFromText) {
    const Output output = decode("# sent by switch 2\n"
                                 "c1 01 " +
                                 descriptor +
                                 "\n"
                                 "0xc102" +
                                 descriptor +
                                 "  # taken back\n\n"
                                 "02:00:00:00:00:01 02:00:00:00:00:02 81 00 c0 64 88 09 "
                                 "45 00 00 1c 0000 0000 40 11 0000 0a000001 0a000002 1388 1770 0008 0000\n"
                                 "45 00 00 4e 0000 0000 40 11 0000 0a090001 0a090002 9c40 12b5 003a 0000 "
                                 "08000000 00000700 020000000001 020000000002 0800 "
                                 "45 00 00 1c 0000 0000 40 01 0000 0a000001 0a000002\n");
    EXPECT_EQ(output.code, 0) << output.err;
    EXPECT_EQ(output.err, "");
    EXPECT_EQ(output.out,
              "line 2: isolate udp 10.0.0.1:5000 10.0.0.2:6000, descriptor, lifetime 1000 ms, sequence 7\n"
              "line 3: restore udp 10.0.0.1:5000 10.0.0.2:6000, descriptor, lifetime 1000 ms, sequence 7\n"
              "line 5: isolate udp 10.0.0.1:5000 10.0.0.2:6000, headers, from 02:00:00:00:00:02 to "
              "02:00:00:00:00:01, "
              "VLAN 100\n"
              "line 6: isolate icmp 10.0.0.1 10.0.0.2 vni 7, headers\n");
}

TEST(CipDecode, Json) {
    EXPECT_EQ(
        decode("c1 01 " + descriptor, {"--json"}).out,
        R"({"frame":"line 1","form":"descriptor","type":"isolate","family":4,"proto":"udp","src":"10.0.0.1",)"
        R"("sport":5000,"dst":"10.0.0.2","dport":6000,"vni":null,"lifetime_ms":1000,"sequence":7,"from":null,)"
        R"("to":null,"vlan":null})"
        "\n");
}

TEST(CipDecode, CaptureFile) {
    std::string capture(
        "\xd4\xc3\xb2\xa1\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x00\x00\x01\x00\x00\x00",
        24);
    const std::string ethernet("\x02\0\0\0\0\x01\x02\0\0\0\0\x02", 12);
    const auto add = [&](const std::string &frame) {
        capture.append(8, '\0');
        for (int i = 0; i < 2; i++)
            capture += {static_cast<char>(frame.size()), '\0', '\0', '\0'};
        capture += frame;
    };
    const std::string ip("\x45\0\0\x14\0\0\0\0\x40\x32\0\0\x0a\0\0\x01\x0a\0\0\x02", 20);
    add(ethernet + std::string("\x08\x06", 2) + std::string(46, '\0'));      // ARP
    add(ethernet + std::string("\x88\x09\x01", 3) + std::string(45, '\0'));  // LACP
    add(ethernet + std::string("\x88\x09", 2) + ip + std::string(26, '\0')); // a CIP
    add(ethernet + std::string("\x88\xb5", 2) + ip + std::string(26, '\0')); // of another EtherType
    const std::string cip =
        "isolate esp 10.0.0.1 10.0.0.2, headers, from 02:00:00:00:00:02 to 02:00:00:00:00:01\n";
    EXPECT_EQ(decode(capture).out, "frame 3: " + cip);
    EXPECT_EQ(decode(capture, {"--ethertype", "0x88B5"}).out, "frame 4: " + cip);
    expect_refusal(decode(capture.substr(0, 20)), 2, "truncated");
    const Output cut = decode(capture.substr(0, capture.size() - 1));
    EXPECT_EQ(cut.code, 2);
    EXPECT_THAT(cut.err, HasSubstr("after frame 3: truncated"));
    capture[20] = 101; // raw IP
    expect_refusal(decode(capture), 2, "its link type is RAW");
}

// What no node takes is none: two tags, and group addresses.
TEST(CipDecode, OtherPeoplesFramesArePassedOver) {
    const std::string ip = "45 00 00 14 0000 0000 40 32 0000 0a000001 0a000002";
    for (const char *ethernet :
         {"020000000001 020000000002 8100 0005 8100 0006 8809", "0180c2000002 020000000002 8809",
          "020000000001 020000000002 0800", "020000000001 020000000002 8809 01"})
        expect_refusal(decode(ethernet + ip), 1, "none of 1 frames is a CIP");
}

TEST(CipDecode, MalformedOnesAreNamedWithReasonAndByte) {
    struct Case {
        std::string input;
        std::string says;
    };
    for (const Case &bad : {
             Case{"c1 03 " + descriptor, "line 1: no CIP: bad_type at byte 1"},
             Case{"c1 01 05" + descriptor.substr(2), "line 1: no CIP: bad_family at byte 2"},
             Case{"c1 01 04 11 0009" + descriptor.substr(10), "line 1: no CIP: bad_flags at byte 4"},
             Case{"c1 01 04", "line 1: no CIP: too_short at byte 3"},
             Case{"44 00 00 1c 0000 0000 40 11 0000 0a000001 0a000002",
                  "line 1: no CIP: bad_header at byte 19"},
             Case{"020000000001 020000000002 8809 45 00", "line 1: no CIP: too_short at byte 16"},
         })
        expect_refusal(decode(bad.input), 1, bad.says);
    const Output both = decode("c1 01 " + descriptor + "\nc1 03 " + descriptor);
    EXPECT_EQ(both.code, 1);
    EXPECT_THAT(both.out, HasSubstr("line 1: isolate"));
}

TEST(CipDecode, BadInputIsRefused) {
    expect_refusal(decode("c1 0g"), 2, "line 1, column 5: 'g' is no hexadecimal digit");
    expect_refusal(decode("c1 01\nc1 0"), 2, "line 2: an odd number of digits");
    expect_refusal(decode(""), 1, "there are no frames in it");
    expect_refusal(decode("01 80 c2"), 1, "none of 1 frames is a CIP");
    expect_refusal(spillway({"cip", "decode", "/no/such/file"}), 2, "/no/such/file");
    expect_refusal(spillway({"cip", "decode", "/"}), 2, "Is a directory");
    expect_refusal(spillway({"cip"}), 2, "subcommand");
    expect_refusal(spillway({"cip", "encode"}), 2, "subcommand");
    expect_refusal(spillway({"cip", "decode", "--ethertype", "ip"}), 2, "ip");
    expect_refusal(spillway({"cip", "decode", "--ethertype", "5"}), 2, "5");
    expect_refusal(spillway({"cip", "decode", "--vxlan-port", "0"}), 2, "0");
}

// ---- README

/// Names of tests as CTest has them, with or without the last part of a parameter.
std::set<std::string> test_names() {
    const Output listed = run({"ctest", "--test-dir", SPILLWAY_BUILD, "--show-only=json-v1"}, {}, 60);
    std::set<std::string> names;
    const auto all = nlohmann::json::parse(listed.out);
    for (const auto &test : all.at("tests")) {
        const std::string name = test.at("name");
        names.insert(name);
        names.insert(name.substr(0, name.rfind('/')));
    }
    return names;
}

TEST(Readme, NamesOnlyTestsThatThereAre) {
    std::ifstream file(SPILLWAY_README);
    const std::string readme{std::istreambuf_iterator<char>(file), {}};
    const auto begin = readme.find("## What shows it");
    ASSERT_NE(begin, std::string::npos);
    const std::string table = readme.substr(begin, readme.find("\n## ", begin) - begin);
    const std::set<std::string> names = test_names();
    std::set<std::string> rows;
    std::size_t named = 0;
    std::istringstream lines(table);
    for (std::string line; std::getline(lines, line);) {
        if (!line.starts_with("| R") && !line.starts_with("| B"))
            continue;
        std::istringstream words(line.substr(2));
        for (std::string word; words >> word && (word[0] == 'R' || word[0] == 'B');)
            rows.insert(word.substr(0, word.find(',')));
        for (auto at = line.find('`'); at != std::string::npos; at = line.find('`', at + 1)) {
            const auto end = line.find('`', at + 1);
            const std::string name = line.substr(at + 1, end - at - 1);
            EXPECT_TRUE(names.contains(name)) << name;
            named++;
            at = end;
        }
    }
    for (const char *row : {"R1a", "R1b", "R1c", "R1d", "R2a", "R2b", "R2c", "R2d", "R3",  "R4a", "R4b",
                            "R4c", "R4d", "R4e", "R5",  "R6",  "R7",  "R8",  "R9",  "R10", "R11", "R12",
                            "B1",  "B2",  "B3",  "B4",  "B5",  "B6",  "B7",  "B8",  "B9",  "B10", "B11"})
        EXPECT_TRUE(rows.contains(row)) << row;
    EXPECT_GT(named, 30U);
}

} // namespace
} // namespace spillway::lab
