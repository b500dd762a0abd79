// SPDX-License-Identifier: Apache-2.0
/// What the agent does when the host changes around it: ports, qdiscs and classes that come, go and change,
/// and configurations and programs that are replaced, under traffic.
#include "agent/kernel/links.h"
#include "tests/netns/links.h"
#include "tests/netns/scenario.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <gmock/gmock.h>
#include <map>
#include <net/if.h>

namespace {

using namespace spillway::lab;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

/// What `tc` knows of filters, and the kernel of tcx programs, at the port's egress.
bool has_programs(const Namespace &ns, const std::string &port) {
    bool found = false;
    ns.call([&] {
        const auto ifindex = static_cast<int>(::if_nametoindex(port.c_str()));
        found = !spillway::tcx_programs(ifindex, spillway::Hook::egress).empty();
    });
    return found || !run(ns, {"tc", "filter", "show", "dev", port, "egress"}).out.empty();
}

class Ports : public testing::Test, protected OnePort {
  protected:
    /// Whether the port comes to wait for this (null: it is served).
    static bool waits_for(const Agent &agent, const std::string &port, const json &reason) {
        return eventually(3, [&] {
            const json shown = port_status(agent.status(), port);
            return !shown.is_null() && shown["waiting"] == reason;
        });
    }
    static int mark(const Agent &agent, const std::string &port = "eth0") {
        return agent.command({"mark", "udp", "10.0.0.1:5000", "10.0.0.2:6000", "--port", port}).code;
    }
    /// Packets of the flow of mark() that pass the isolation class.
    [[nodiscard]] std::uint64_t isolated(const std::string &port = "eth0") const {
        Traffic sink(peer, "sink --port 6000");
        const auto before = class_stats(node, port, "1:20").packets;
        Traffic(node, "flood --to 10.0.0.2 --port 6000 --from-port 5000 --mbit 10 --seconds 0.2").result();
        return class_stats(node, port, "1:20").packets - before;
    }
};

TEST_F(Ports, ClassAndTreeComeAndGo) {
    const Agent agent(node, config);
    ASSERT_EQ(mark(agent), 0);
    EXPECT_GT(isolated(), 10U);
    delete_isolation_class(node, "eth0");
    EXPECT_TRUE(waits_for(agent, "eth0", "no_class"));
    make_isolation_class(node, "eth0");
    EXPECT_TRUE(waits_for(agent, "eth0", nullptr));
    EXPECT_GT(isolated(), 10U);
    node.tc("qdisc del dev eth0 root");
    EXPECT_TRUE(waits_for(agent, "eth0", "noqueue"));
    EXPECT_EQ(port_status(agent.status(), "eth0")["queues"][0]["level"], "unknown");
    setup(node, "eth0", "200mbit");
    EXPECT_TRUE(waits_for(agent, "eth0", nullptr));
    EXPECT_GT(isolated(), 10U);
    EXPECT_EQ(agent.flows().size(), 1U);
}

TEST_F(Ports, DeletedAndMadeAgain) {
    const Agent agent(node, config);
    const json before = port_status(agent.status(), "eth0");
    const auto links = link_ids(agent).size();
    for (int i = 0; i < 3; i++) {
        ASSERT_EQ(mark(agent), 0);
        node.ip("link del eth0");
        if (i != 2) { // once without a look at it in between
            EXPECT_TRUE(waits_for(agent, "eth0", "no_port"));
            EXPECT_TRUE(link_ids(agent).empty());
            EXPECT_TRUE(eventually(3, [&] { return agent.flows(true).empty(); }));
        }
        make_port();
        EXPECT_TRUE(waits_for(agent, "eth0", nullptr)) << agent.status().dump(1);
        EXPECT_TRUE(eventually(3, [&] { return agent.flows(true).empty(); })) << "marks end with their port";
        const json now = port_status(agent.status(), "eth0");
        EXPECT_NE(now["ifindex"], before["ifindex"]);
        EXPECT_EQ(now["tc"], before["tc"]);
        EXPECT_EQ(link_ids(agent).size(), links);
    }
    ASSERT_EQ(mark(agent), 0);
    EXPECT_GT(isolated(), 10U);
}

TEST_F(Ports, RenamedWithinAGlobKeepsItsPrograms) {
    json glob = config;
    glob["ports"][0]["name"] = "eth*";
    const Agent agent(node, glob);
    ASSERT_EQ(mark(agent), 0);
    const auto before = link_ids(agent);
    node.ip("link set eth0 down"); // a port that is up keeps its name on older kernels
    node.ip("link set eth0 name eth7");
    node.ip("link set eth7 up");
    EXPECT_TRUE(waits_for(agent, "eth7", nullptr)) << agent.status().dump(1);
    EXPECT_TRUE(port_status(agent.status(), "eth0").is_null());
    std::map<std::string, std::uint32_t> renamed;
    for (const auto &[name, id] : before)
        renamed["eth7" + name.substr(4)] = id;
    EXPECT_EQ(link_ids(agent), renamed);
    EXPECT_EQ(agent.flows()[0]["port"], "eth7");
    neighbour(node, "eth7", "10.0.0.2", "02:00:00:00:00:02");
    EXPECT_GT(isolated("eth7"), 10U);
}

TEST_F(Ports, RenamedOutOfTheConfigurationIsLeft) {
    const Agent agent(node, config);
    node.ip("link set eth0 down");
    node.ip("link set eth0 name mine");
    EXPECT_TRUE(waits_for(agent, "eth0", "no_port"));
    EXPECT_TRUE(link_ids(agent).empty());
    EXPECT_FALSE(has_programs(node, "mine"));
    node.ip("link set mine name eth0");
    node.ip("link set eth0 up");
    EXPECT_TRUE(waits_for(agent, "eth0", nullptr));
    EXPECT_TRUE(has_programs(node, "eth0"));
}

TEST_F(Ports, FlappedKeepsMarksAndPrograms) {
    const Agent agent(node, config);
    ASSERT_EQ(mark(agent), 0);
    const auto links = link_ids(agent);
    for (int i = 0; i < 3; i++) {
        node.ip("link set eth0 down");
        EXPECT_TRUE(waits_for(agent, "eth0", "port_down"));
        node.ip("link set eth0 up");
        EXPECT_TRUE(waits_for(agent, "eth0", nullptr));
    }
    EXPECT_EQ(link_ids(agent), links);
    EXPECT_EQ(agent.flows()[0]["origin"], "manual");
    neighbour(node, "eth0", "10.0.0.2", "02:00:00:00:00:02");
    EXPECT_GT(isolated(), 10U);
}

// A CIP is addressed to the port: to its address of now.
TEST_F(Ports, NewMacIsTheOneThatCipsComeTo) {
    const Agent agent(node, config);
    const auto arrives = [&](std::uint8_t last) {
        std::vector<std::uint8_t> cip{
            0x02, 0, 0,  0,    0, last, 0x02, 0,    0,    0,    0, 2, 0x88, 0x09, // Ethernet
            0x45, 0, 0,  0x1c, 0, 0,    0,    0,    0x40, 17,   0, 0, 10,   0,
            0,    1, 10, 0,    0, 2,    0x13, 0x88, 0x17, 0x70, 0, 8, 0,    0};
        cip.resize(60);
        inject(peer, "eth0", cip);
    };
    const auto received = [&] { return port_status(agent.status(), "eth0")["cip"]["received"]; };
    arrives(0x01);
    EXPECT_TRUE(eventually(2, [&] { return received() == 1; }));
    node.ip("link set eth0 address 02:00:00:00:00:77");
    EXPECT_TRUE(eventually(3, [&] {
        arrives(0x77);
        return received() == 2;
    }));
    arrives(0x01); // nobody's
    arrives(0x77);
    EXPECT_TRUE(eventually(2, [&] { return received() == 3; }));
    EXPECT_FALSE(eventually(0.2, [&] { return received() != 3; }));
}

// The programs do not follow a port out of the instance's namespace.
TEST_F(Ports, ChangesNamespace) {
    const Namespace elsewhere{"elsewhere"};
    const Agent agent(node, config);
    const auto links = link_ids(agent).size();
    ASSERT_EQ(mark(agent), 0);
    for (int i = 0; i < 2; i++) {
        node.ip("link set eth0 netns " + elsewhere.name());
        EXPECT_TRUE(waits_for(agent, "eth0", "no_port"));
        EXPECT_FALSE(has_programs(elsewhere, "eth0"));
        EXPECT_TRUE(link_ids(agent).empty());
        EXPECT_TRUE(eventually(3, [&] { return agent.flows(true).empty(); }));
        elsewhere.ip("link set eth0 netns " + node.name());
        node.ip("link set eth0 up");
        setup(node, "eth0", "200mbit");
        EXPECT_TRUE(waits_for(agent, "eth0", nullptr)) << agent.status().dump(1);
        EXPECT_EQ(link_ids(agent).size(), links);
    }
    node.ip("address add 10.0.0.1/24 dev eth0");
    neighbour(node, "eth0", "10.0.0.2", "02:00:00:00:00:02");
    ASSERT_EQ(mark(agent), 0);
    EXPECT_GT(isolated(), 10U);
}

/// Two steady flows through the node, of which the test marks the one from port 5000 to 6000.
class TwoFlows {
  public:
    explicit TwoFlows(const Bottleneck &lab) : lab_(lab) {}

    /// The marked one goes on being isolated; neither has lost a packet, or had one overtaken.
    void expect_isolated_and_none_lost() {
        const auto isolated = [this] { return class_stats(lab_.node(), "eth1", "1:20").packets; };
        const auto before = isolated();
        EXPECT_TRUE(eventually(3, [&] { return isolated() > before + scaled(100); }));
        marked_.stop();
        other_.stop();
        const json got = sink_.stop();
        EXPECT_EQ(got["lost"], 0);
        EXPECT_EQ(got["late"], 0);
        EXPECT_GT(got["received"], scaled(1000));
    }

  private:
    [[nodiscard]] Traffic flow(unsigned number) const {
        return {lab_.host(), fmt::format("flood --to {} --port {} --from-port {} --mbit 20 --seconds 60",
                                         lab_.chain.receiver_address(), 6000 + number, 5000 + number)};
    }

    const Bottleneck &lab_;
    Traffic sink_{lab_.receiver(), "sink --port 6000 --ports 2"};
    Traffic marked_ = flow(0);
    Traffic other_ = flow(1);
};

class PortsUnderTraffic : public testing::TestWithParam<Way> {
  protected:
    Bottleneck lab;
    const std::string to = lab.chain.receiver_address();
    const json config = configuration(GetParam(), {"eth1"}, {"eth0"});
};

// What waited is lost with the qdisc; the mark is not, and ends as it would have.
TEST_P(PortsUnderTraffic, TreeReplacedWhileMarkedPacketsWait) {
    const Agent node(lab.node(), config);
    Traffic sink(lab.receiver(), "sink --port 6000");
    Traffic flood(lab.host(), fmt::format("flood --to {} --port 6000 --mbit 300 --seconds 60", to));
    const auto isolation = [&] { return class_stats(lab.node(), "eth1", "1:20"); };
    for (int i = 0; i < 3; i++) {
        ASSERT_TRUE(eventually(3, [&] { return isolation().backlog > 0; })) << node.flows(true).dump(1);
        lab.node().tc("qdisc del dev eth1 root");
        if (i != 1) { // once so fast that no reading shows that it was gone
            EXPECT_TRUE(
                eventually(3, [&] { return port_status(node.status(), "eth1")["waiting"] == "noqueue"; }));
        }
        setup(lab.node(), "eth1", "200mbit");
        EXPECT_TRUE(eventually(3, [&] { return port_status(node.status(), "eth1")["waiting"].is_null(); }))
            << node.status().dump(1);
    }
    ASSERT_TRUE(eventually(3, [&] { return isolation().backlog > 0; })) << node.flows(true).dump(1);
    flood.stop();
    EXPECT_TRUE(eventually(5, [&] { return node.flows(true).empty(); })) << node.flows(true).dump(1);
    const json queue = port_status(node.status(), "eth1")["queues"][0];
    EXPECT_EQ(queue["marked_total"], queue["restored_total"]);
    EXPECT_EQ(queue["level"], "below");
}

// All of it or nothing, and not a packet for it.
TEST_P(PortsUnderTraffic, ReloadIsAllOrNothing) {
    Agent node(lab.node(), config);
    ASSERT_EQ(node.command({"mark", "udp", "10.0.1.1:5000", to + ":6000", "--port", "eth1"}).code, 0);
    TwoFlows flows(lab);
    const auto links = link_ids(node);
    const auto reload = [&](const json &fresh, const char *says) {
        const auto before = node.log().size();
        node.reload(fresh);
        EXPECT_TRUE(eventually(5, [&] { return node.log().find(says, before) != std::string::npos; }))
            << node.log();
    };
    // Only the last key is wrong: none of the others is taken over.
    json broken = config;
    broken["ports"][0]["queues"][0]["waterline"] = {{"low", 1000}, {"high", 2000}};
    broken["ports"][1]["accept_cip"] = false;
    broken["cip"]["ethertype"] = "0x88B5";
    broken["flows"]["capacity"] = 4096;
    const json before = node.status();
    reload(broken, "configuration unchanged");
    const json after = node.status();
    EXPECT_EQ(port_status(after, "eth1")["queues"][0]["waterline"],
              port_status(before, "eth1")["queues"][0]["waterline"]);
    EXPECT_EQ(after["agent"], before["agent"]);

    // New programs, new waterlines, polling instead of reading and back: in place.
    json fresh = config;
    fresh["ports"][0]["queues"][0]["waterline"] = {{"low", 60000}, {"high", 300000}};
    fresh["cip"]["ethertype"] = "0x88B5";
    reload(fresh, "configuration reloaded");
    EXPECT_EQ(port_status(node.status(), "eth1")["queues"][0]["waterline"]["high"], 300000);
    fresh["detection"]["source"] = "poll";
    reload(fresh, "configuration reloaded");
    EXPECT_EQ(port_status(node.status(), "eth1")["source"], "poll");
    reload(config, "configuration reloaded");
    EXPECT_EQ(link_ids(node), links);
    EXPECT_EQ(node.flows().size(), 1U);

    flows.expect_isolated_and_none_lost();
}

// SPILLWAY_TEST_PREVIOUS in the environment names a program built from an earlier commit; else the upgrade is
// to the same version, from a program file that is gone afterwards.
TEST_P(PortsUnderTraffic, UpgradeTakesOverWhatThePreviousProgramPinned) {
    Agent node(lab.node(), config);
    node.stop();
    ASSERT_EQ(node.command({"purge"}).code, 0);
    const char *given = std::getenv("SPILLWAY_TEST_PREVIOUS");
    const fs::path copy = fs::temp_directory_path() / (lab.node().name() + "-spillway");
    fs::copy_file(given != nullptr ? given : spillway_program(), copy);
    std::optional<Process> previous;
    previous.emplace(lab.node(), Words{copy.string(), "--instance", node.instance(), "agent", "--config",
                                       node.config_file()});
    const auto served = [&] {
        const Output shown = node.command({"status", "--json"});
        if (shown.code != 0)
            return false;
        const json status = json::parse(shown.out);
        return status["agent"]["pid"] == previous->pid() && port_status(status, "eth1")["waiting"].is_null();
    };
    ASSERT_TRUE(eventually(10, served)) << previous->err();
    fs::remove(copy);
    const auto links = link_ids(node);
    ASSERT_EQ(node.command({"mark", "udp", "10.0.1.1:5000", to + ":6000", "--port", "eth1"}).code, 0);
    TwoFlows flows(lab);
    ASSERT_TRUE(eventually(3, [&] { return class_stats(lab.node(), "eth1", "1:20").packets > scaled(100); }));
    previous->signal(GetParam().name == ways[0].name ? SIGTERM : SIGKILL);
    ASSERT_TRUE(previous->wait(5));
    node.start();
    EXPECT_EQ(link_ids(node), links) << "in place";
    EXPECT_EQ(node.flows()[0]["origin"], "manual");
    flows.expect_isolated_and_none_lost();
}

INSTANTIATE_TEST_SUITE_P(With, PortsUnderTraffic, testing::ValuesIn(ways), way_name);

} // namespace
