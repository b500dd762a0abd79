// SPDX-License-Identifier: Apache-2.0
/// What `doctor` says of a port in a namespace.
#include "tests/netns/scenario.h"

#include <fmt/format.h>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace spillway::lab {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class DoctorOf : public testing::Test {
  protected:
    DoctorOf() {
        node.ip("link add eth0 type veth peer name eth1");
        node.ip("link set eth0 up");
        node.ip("link set eth1 up");
        std::ofstream(file) << R"({"ports":[{"name":"eth0","queues":[{"class":"1:10","isolate_class":"1:20",)"
                               R"("waterline":{"high":200000}}]}]})";
    }
    ~DoctorOf() override { std::filesystem::remove(file); }

    /// The check of that name, for eth0.
    json check(const std::string &id) {
        const Output output =
            run({spillway_program(), "--netns", node.name(), "doctor", "--json", "--config", file.string()});
        code = output.code;
        const json document = json::parse(output.out);
        for (const json &check : document["checks"])
            if (check["id"] == id && check["port"] == "eth0")
                return check;
        return nullptr;
    }

    Namespace node{"doctor"};
    std::filesystem::path file =
        std::filesystem::temp_directory_path() / fmt::format("spillway-doctor-{}.json", ::getpid());
    int code = 0;
};

TEST_F(DoctorOf, PortWithoutQueue) {
    const json found = check("noqueue");
    EXPECT_EQ(code, 1);
    EXPECT_EQ(found["level"], "problem");
    EXPECT_THAT(found["text"].get<std::string>(), HasSubstr("noqueue"));
    EXPECT_THAT(found["remedy"].get<std::string>(), HasSubstr("spillway setup eth0"));
}

TEST_F(DoctorOf, TreeOfSetupIsFine) {
    setup(node, "eth0", "100mbit");
    for (const char *id :
         {"noqueue", "isolation_class", "drain", "share", "filters", "tc_programs", "xdp", "master"})
        EXPECT_EQ(check(id)["level"], "fine") << id;
    EXPECT_EQ(code, 0);
}

TEST_F(DoctorOf, FilterOfTheTreeAndBridgeAreNamed) {
    setup(node, "eth0", "100mbit");
    node.ip("link add br0 type bridge");
    node.ip("link set eth0 master br0");
    node.tc("filter add dev eth0 parent 1: protocol ip prio 1 u32 match u32 0 0 flowid 1:10");
    const json filters = check("filters");
    EXPECT_EQ(filters["level"], "note");
    EXPECT_THAT(filters["text"].get<std::string>(), HasSubstr("u32 at 1:"));
    EXPECT_FALSE(filters["remedy"].is_null());
    EXPECT_THAT(check("master")["text"].get<std::string>(), HasSubstr("the bridge br0"));
}

TEST_F(DoctorOf, ProgramsOfOthersAreNamed) {
    setup(node, "eth0", "100mbit");
    const Agent other(node, configuration(ways[0], {"eth0"}));
    const json programs = check("tc_programs");
    EXPECT_NE(programs["level"], "fine");
    EXPECT_THAT(programs["text"].get<std::string>(), HasSubstr(other.instance()));
}

} // namespace
} // namespace spillway::lab
