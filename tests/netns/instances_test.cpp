// SPDX-License-Identifier: Apache-2.0
/// Several instances beside each other, and what `purge` takes and leaves.
#include "tests/netns/links.h"
#include "tests/netns/scenario.h"

#include <bpf/bpf.h>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <set>

namespace {

using namespace spillway::lab;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

class Instances : public testing::Test, protected OnePort {
  protected:
    [[nodiscard]] static json waiting(const Agent &agent) {
        return port_status(agent.status(), "eth0")["waiting"];
    }
};

// A port belongs to the instance that came first, its agent running or not, until that one is purged.
TEST_F(Instances, SecondOneOnAPortWaits) {
    Agent first(node, config);
    const auto links = link_ids(first);
    const Agent second(node, config, false);
    EXPECT_TRUE(eventually(3, [&] { return waiting(second) == "other_instance"; }))
        << second.status().dump(1);
    EXPECT_EQ(port_status(second.status(), "eth0")["tc"], "off");
    EXPECT_EQ(port_status(second.status(), "eth0")["xdp"], "off");
    EXPECT_TRUE(link_ids(second).empty());
    EXPECT_THAT(second.log(),
                AllOf(HasSubstr("belongs to instance " + first.instance()), HasSubstr("purge")));
    EXPECT_EQ(second.command({"mark", "udp", "10.0.0.1:1", "10.0.0.2:2", "--port", "eth0"}).code, 1);
    const Output refused = second.command({"check", "--config", second.config_file()});
    EXPECT_EQ(refused.code, 2);
    EXPECT_THAT(refused.err, AllOf(HasSubstr("belongs to instance " + first.instance()), HasSubstr("HINT"),
                                   HasSubstr("purge")));

    EXPECT_EQ(first.command({"check", "--config", first.config_file()}).code, 0) << "it was first";
    EXPECT_EQ(waiting(first), nullptr);
    EXPECT_EQ(link_ids(first), links);
    first.kill();
    first.start(); // it is still the first
    EXPECT_EQ(waiting(first), nullptr);
    first.stop();
    EXPECT_FALSE(eventually(1.5, [&] { return waiting(second) != "other_instance"; }));
    ASSERT_EQ(first.command({"purge"}).code, 0);
    EXPECT_TRUE(eventually(5, [&] { return waiting(second).is_null(); })) << second.status().dump(1);
    first.start(false);
    EXPECT_TRUE(eventually(3, [&] { return waiting(first) == "other_instance"; })) << first.status().dump(1);
    EXPECT_EQ(waiting(second), nullptr);
}

TEST_F(Instances, OnPortsOfTheirOwn) {
    link({.ns = node, .port = "eth1", .mac = "02:00:00:00:00:03"},
         {.ns = peer, .port = "eth1", .mac = "02:00:00:00:00:04"});
    const Agent first(node, config);
    const Agent second(node, configuration(ways[0], {}, {"eth1"}));
    EXPECT_EQ(second.command({"check", "--config", second.config_file()}).code, 0);
    ASSERT_EQ(first.command({"panic"}).code, 0);
    EXPECT_EQ(second.status()["mode"], "isolate");
}

// Interfaces of two namespaces may have one number: neither instance sees the other in it.
TEST_F(Instances, InNamespacesOfTheirOwn) {
    Namespace other{"other"};
    link({.ns = other, .port = "eth0", .mac = "02:00:00:00:00:05"},
         {.ns = peer, .port = "eth1", .mac = "02:00:00:00:00:06"});
    setup(other, "eth0", "200mbit");
    Agent first(node, config);
    const Agent second(other, config);
    const int ifindex = port_status(first.status(), "eth0")["ifindex"];
    EXPECT_EQ(port_status(second.status(), "eth0")["ifindex"], ifindex) << "else this shows nothing";
    const Words mark{"mark", "udp", "10.0.0.1:1", "10.0.0.2:2", "--port", "eth0"};
    ASSERT_EQ(first.command(mark).code, 0);
    EXPECT_TRUE(second.flows(true).empty());
    ASSERT_EQ(second.command(mark).code, 0);
    const auto links = link_ids(second);
    first.stop();
    ASSERT_EQ(first.command({"purge"}).code, 0);
    EXPECT_EQ(waiting(second), nullptr);
    EXPECT_EQ(link_ids(second), links);
    EXPECT_EQ(second.flows().size(), 1U);
    // One instance lives in one namespace.
    const Output twice = run(node, {spillway_program(), "--instance", second.instance(), "agent", "--config",
                                    second.config_file()});
    EXPECT_EQ(twice.code, 1);
    EXPECT_THAT(twice.err, AllOf(HasSubstr("is running"), HasSubstr("HINT")));
}

// Folders and pins of others stay, wherever they are; the instance's own are gone from the port, too.
TEST_F(Instances, PurgeTakesItsOwnAndNothingElse) {
    Agent agent(node, config);
    agent.stop();
    const fs::path root = "/sys/fs/bpf/spillway/" + agent.instance();
    const spillway::Fd map(bpf_obj_get((root / "maps/settings").c_str()));
    ASSERT_TRUE(map);
    const std::vector<fs::path> others{
        root / "mine",           root / "maps/mine",       root / "links/mine",
        root / "progs/settings", root / "folder/settings", root / "maps/sub/settings"};
    for (const fs::path &pin : others) {
        fs::create_directories(pin.parent_path());
        ASSERT_EQ(bpf_obj_pin(map.get(), pin.c_str()), 0) << pin;
    }
    const Output purged = agent.command({"purge"});
    EXPECT_EQ(purged.code, 0) << purged.err;
    EXPECT_THAT(purged.out, HasSubstr("stays in " + root.string()));
    std::set<fs::path> left;
    for (const auto &entry : fs::recursive_directory_iterator(root))
        if (!entry.is_directory())
            left.insert(entry.path());
    EXPECT_EQ(left, std::set<fs::path>(others.begin(), others.end()));
    EXPECT_EQ(agent.command({"status"}).code, 3);
    EXPECT_THAT(run(node, {"tc", "qdisc", "show", "dev", "eth0"}).out,
                AllOf(HasSubstr("htb"), testing::Not(HasSubstr("clsact"))));
    // And a new agent does not mind them.
    agent.start();
    EXPECT_EQ(agent.stop(), 0);
    for (const fs::path &pin : others)
        EXPECT_TRUE(fs::exists(pin)) << pin;
    fs::remove_all(root / "folder");
    fs::remove_all(root / "maps/sub");
    for (const fs::path &pin : others)
        fs::remove(pin);
    EXPECT_EQ(agent.command({"purge"}).out, fmt::format("instance {}: removed\n", agent.instance()));
    EXPECT_FALSE(fs::exists(root));
}

} // namespace
