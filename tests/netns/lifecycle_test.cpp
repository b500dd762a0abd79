// SPDX-License-Identifier: Apache-2.0
/// The agent dies, comes back, meets others: the data path stays, no packet is lost, and every refusal is a
/// sentence with a remedy.
#include "tests/bpf_program.h"
#include "tests/netns/scenario.h"

#include <bpf/bpf.h>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <linux/if_link.h>
#include <net/if.h>

namespace {

using namespace spillway::lab;
using nlohmann::json;
using testing::HasSubstr;

class Lifecycle : public testing::TestWithParam<Way> {};

json short_times(const Way &way) {
    json config = configuration(way, {"eth1"}, {"eth0"});
    config["detection"]["stale_agent_ms"] = 1000;
    config["flows"] = {{"clear_timeout_ms", 2000}};
    return config;
}

// Must show 7 (B9): SIGKILL of the agent: traffic goes on, marks run out, no new mark after stale_agent_ms.
TEST_P(Lifecycle, DeadAgentHarmsNobody) {
    const Bottleneck lab;
    const std::string to = lab.chain.receiver_address();
    Agent node(lab.node(), short_times(GetParam()));
    Traffic reflector(lab.receiver(), "reflect --port 7000");
    Traffic sink(lab.receiver(), "sink --port 6000 --ports 2");
    Traffic probe(lab.host(), fmt::format("probe --to {} --port 7000 --hz 500 --seconds 10", to));
    Traffic flood(lab.host(),
                  fmt::format("flood --to {} --port 6000 --mbit 300 --seconds 1.5 --then 0:3 10:3", to));
    ASSERT_TRUE(eventually(3, [&] { return node.flows().size() == 1; }));
    node.kill();
    EXPECT_FALSE(node.status()["agent"]["running"]);
    EXPECT_GT(class_stats(lab.node(), "eth1", "1:20").packets, 100U);

    flood.result();
    // Silent for longer than its idle time, then slow: the mark has run out without anybody sweeping.
    EXPECT_TRUE(eventually(1, [&] { return node.flows().empty(); })) << node.flows(true).dump(1);
    const auto isolated = class_stats(lab.node(), "eth1", "1:20").packets;
    EXPECT_EQ(marked_total(node.status(), "eth1"), 1U);

    // A new elephant fills the normal queue and is not marked.
    Traffic(lab.host(), fmt::format("flood --to {} --port 6001 --mbit 300 --seconds 1", to)).result();
    EXPECT_EQ(marked_total(node.status(), "eth1"), 1U);
    EXPECT_EQ(class_stats(lab.node(), "eth1", "1:20").packets, isolated);
    EXPECT_GT(probe.result()["received"], 3000) << "traffic went on";
}

// Must show 7: a new agent adopts programs, maps and marks without a lost packet.
TEST_P(Lifecycle, NewAgentAdopts) {
    const Bottleneck lab;
    const std::string to = lab.chain.receiver_address();
    Agent node(lab.node(), configuration(GetParam(), {"eth1"}, {"eth0"}));
    ASSERT_EQ(node.command({"mark", "udp", "10.0.1.1:5000", to + ":6000", "--port", "eth1"}).code, 0);
    const auto links = [&] {
        json ids = json::array();
        const std::filesystem::path dir = "/sys/fs/bpf/spillway/" + node.instance() + "/links";
        for (const auto &entry : std::filesystem::directory_iterator(dir))
            ids.push_back(entry.path().filename().string());
        return ids;
    };
    const json before = links();
    Traffic sink(lab.receiver(), "sink --port 6000 --ports 2");
    Traffic marked(lab.host(),
                   fmt::format("flood --to {} --port 6000 --from-port 5000 --mbit 50 --seconds 6", to));
    Traffic other(lab.host(),
                  fmt::format("flood --to {} --port 6001 --from-port 5001 --mbit 50 --seconds 6", to));
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    node.kill();
    node.start();
    const auto flows = node.flows();
    ASSERT_EQ(flows.size(), 1U) << flows.dump(1);
    EXPECT_EQ(flows[0]["origin"], "manual");
    EXPECT_EQ(links(), before);
    EXPECT_EQ(node.stop(), 0);
    node.start();
    marked.result();
    other.result();
    EXPECT_GT(class_stats(lab.node(), "eth1", "1:20").packets, 1000U) << "the mark stayed throughout";
    const json got = sink.stop();
    EXPECT_EQ(got["lost"], 0);
    EXPECT_EQ(got["late"], 0);
    ASSERT_EQ(node.command({"unmark", "udp", "10.0.1.1:5000", to + ":6000", "--port", "eth1"}).code, 0);
    EXPECT_TRUE(eventually(3, [&] { return node.flows().empty(); })) << node.flows(true).dump(1);
}

// Must show 8: what bpftool sees equals what the program says; last_seen advances while the flow sends.
TEST_P(Lifecycle, BpftoolSeesTheSame) {
    const Bottleneck lab;
    const std::string to = lab.chain.receiver_address();
    const Agent node(lab.node(), configuration(GetParam(), {"eth1"}, {"eth0"}));
    Traffic sink(lab.receiver(), "sink --port 6000");
    Traffic flood(lab.host(),
                  fmt::format("flood --to {} --port 6000 --from-port 5000 --mbit 300 --seconds 3", to));
    ASSERT_TRUE(eventually(3, [&] { return node.flows().size() == 1; }));
    const auto dump = [&] {
        const Output output = run({"bpftool", "-j", "map", "dump", "pinned",
                                   "/sys/fs/bpf/spillway/" + node.instance() + "/maps/flows"});
        EXPECT_EQ(output.code, 0) << output.err;
        return json::parse(output.out).at(0)["formatted"];
    };
    const json first = dump();
    const json shown = node.flows()[0];
    const auto text = [](const json &bytes) {
        return fmt::format("{}.{}.{}.{}", bytes[0].get<int>(), bytes[1].get<int>(), bytes[2].get<int>(),
                           bytes[3].get<int>());
    };
    EXPECT_EQ(json(text(first["key"]["src"])), shown["src"]);
    EXPECT_EQ(json(text(first["key"]["dst"])), shown["dst"]);
    EXPECT_EQ(first["key"]["sport"], shown["sport"]);
    EXPECT_EQ(first["key"]["dport"], shown["dport"]);
    EXPECT_EQ(first["key"]["proto"], 17);
    EXPECT_EQ(first["key"]["family"], 4);
    EXPECT_THAT(first["value"]["mark"].dump(), testing::AnyOf("1", HasSubstr("CONGESTED")));
    EXPECT_EQ(shown["mark"], "congested");
    EXPECT_EQ(shown["state"], "isolated");
    EXPECT_EQ(shown["class"], "1:20");
    EXPECT_TRUE(
        eventually(2, [&] { return dump()["value"]["last_seen_ns"] > first["value"]["last_seen_ns"]; }));
}

INSTANTIATE_TEST_SUITE_P(With, Lifecycle, testing::ValuesIn(ways), way_name);

/// One node with two ports, no traffic: for what is refused.
class Refusal : public testing::Test {
  protected:
    Refusal() {
        link({.ns = node, .port = "eth0", .mac = "02:00:00:00:00:01", .addresses = {"10.0.0.1/24"}},
             {.ns = peer, .port = "eth0", .mac = "02:00:00:00:00:02", .addresses = {"10.0.0.2/24"}});
    }
    Namespace node{"node"};
    Namespace peer{"peer"};
    json tree() const { return configuration(ways[0], {"eth0"}); }

    /// `spillway check` of the configuration, in the node.
    Output check(const json &config) const {
        const auto file = std::filesystem::temp_directory_path() / (node.name() + ".json");
        std::ofstream(file) << config;
        Output output = run(node, {spillway_program(), "check", "--config", file.string()});
        std::filesystem::remove(file);
        return output;
    }
};

TEST_F(Refusal, SecondAgentOfTheInstance) {
    setup(node, "eth0", "200mbit");
    const Agent first(node, tree());
    const Output second = first.command({"agent", "--config", first.config_file()});
    EXPECT_EQ(second.code, 1);
    EXPECT_THAT(second.err, HasSubstr(first.instance()));
    EXPECT_THAT(second.err, HasSubstr("HINT"));
    EXPECT_TRUE(first.status()["agent"]["running"]);
}

// `ip netns exec` mounts another /sys: an agent started so does not see the lock of the first.
TEST_F(Refusal, SecondAgentInAnotherMountNamespace) {
    setup(node, "eth0", "200mbit");
    const Agent first(node, tree());
    const Output second = run(node, {"unshare", "--mount", "sh", "-c", "umount -l /sys/fs/bpf; exec \"$@\"",
                                     "sh", spillway_program(), "--instance", first.instance(), "agent",
                                     "--config", first.config_file()});
    EXPECT_EQ(second.code, 1);
    EXPECT_THAT(second.err, AllOf(HasSubstr("is running in this network namespace"), HasSubstr("HINT")));
    EXPECT_TRUE(first.status()["agent"]["running"]);
}

// The reader of the log goes away: the agent goes on.
TEST_F(Refusal, LogWithoutReader) {
    setup(node, "eth0", "200mbit");
    const Agent first(node, tree());
    const std::string instance = first.instance() + "-log";
    const auto spillway = [&](const std::string &arguments) {
        Words all{spillway_program(), "--instance", instance};
        for (std::string &word : words(arguments))
            all.push_back(std::move(word));
        return run(node, all);
    };
    const Process agent(node, {"sh", "-c", "exec \"$0\" \"$@\" 2>&1 | head -n 1", spillway_program(),
                               "--instance", instance, "agent", "--config", first.config_file()});
    const auto pid = [&]() -> std::optional<int> {
        const Output shown = spillway("status --json");
        if (shown.code != 0)
            return std::nullopt;
        const json status = json::parse(shown.out);
        return status["agent"]["pid"].is_null() ? std::nullopt : std::optional<int>(status["agent"]["pid"]);
    };
    ASSERT_TRUE(eventually(5, [&] { return pid().has_value(); }));
    const int running = *pid();
    for (int i = 0; i < 3; i++) { // each reload writes a line
        ::kill(running, SIGHUP);
        EXPECT_FALSE(eventually(0.2, [&] { return pid() != running; }));
    }
    ::kill(running, SIGTERM);
    EXPECT_TRUE(eventually(3, [&] { return !pid(); }));
    EXPECT_EQ(spillway("purge").code, 0);
}

// Refused after it could have pinned something, it leaves nothing.
TEST_F(Refusal, WithoutRawSockets) {
    const Agent other(node, tree(), false); // has a configuration file
    const std::string instance = other.instance() + "-raw";
    const Output refused =
        run(node, {"setpriv", "--bounding-set=-net_raw,-sys_admin", "--inh-caps=-net_raw,-sys_admin",
                   spillway_program(), "--instance", instance, "agent", "--config", other.config_file()});
    EXPECT_EQ(refused.code, 1);
    EXPECT_THAT(refused.err, AllOf(HasSubstr("packet socket"), HasSubstr("HINT")));
    EXPECT_FALSE(std::filesystem::exists("/sys/fs/bpf/spillway/" + instance));
}

TEST_F(Refusal, NoqueuePort) {
    const Output checked = check(tree());
    EXPECT_EQ(checked.code, 2);
    EXPECT_THAT(checked.err, HasSubstr("noqueue"));
    EXPECT_THAT(checked.err, HasSubstr("HINT"));
    // The agent serves the rest and says why it waits; it serves the port as soon as it can.
    const Agent agent(node, tree(), false);
    EXPECT_TRUE(eventually(3, [&] { return port_status(agent.status(), "eth0")["waiting"] == "noqueue"; }))
        << agent.status().dump(1);
    setup(node, "eth0", "200mbit");
    EXPECT_TRUE(eventually(3, [&] { return port_status(agent.status(), "eth0")["waiting"].is_null(); }))
        << agent.status().dump(1);
}

TEST_F(Refusal, IsolateClassNotBelow) {
    setup(node, "eth0", "200mbit");
    json config = tree();
    config["ports"][0]["queues"][0]["isolate_class"] = "1:5"; // the class of CIPs is served first
    const Output checked = check(config);
    EXPECT_EQ(checked.code, 2);
    EXPECT_THAT(checked.err, HasSubstr("1:5"));
    EXPECT_THAT(checked.err, HasSubstr("HINT"));
    const Agent agent(node, config, false);
    EXPECT_TRUE(eventually(3, [&] { return port_status(agent.status(), "eth0")["waiting"] == "not_below"; }));
}

TEST_F(Refusal, MissingPortAndClass) {
    setup(node, "eth0", "200mbit");
    json config = tree();
    config["ports"][0]["queues"][0]["class"] = "1:99";
    EXPECT_EQ(check(config).code, 2);
    json absent = tree();
    absent["ports"][0]["name"] = "swp7";
    const Output checked = check(absent);
    EXPECT_EQ(checked.code, 2);
    EXPECT_THAT(checked.err, HasSubstr("swp7"));
    const Agent agent(node, absent, false);
    EXPECT_EQ(port_status(agent.status(), "swp7")["waiting"], "no_port");
    // It comes: it is served.
    node.ip("link add swp7 type veth peer name swp8");
    node.ip("link set swp7 up");
    node.ip("link set swp8 up");
    setup(node, "swp7", "100mbit");
    EXPECT_TRUE(eventually(3, [&] { return port_status(agent.status(), "swp7")["waiting"].is_null(); }))
        << agent.status().dump(1);
}

/// Somebody else's XDP program on a port, which lets everything pass.
spillway::Fd foreign_xdp(const Namespace &ns, const std::string &port) {
    const spillway::Fd program = spillway::make_program(BPF_PROG_TYPE_XDP, "stranger", XDP_PASS);
    spillway::Fd link;
    ns.call([&] {
        LIBBPF_OPTS(bpf_link_create_opts, options, .flags = XDP_FLAGS_DRV_MODE);
        link = spillway::Fd(bpf_link_create(program.get(), static_cast<int>(::if_nametoindex(port.c_str())),
                                            BPF_XDP, &options));
    });
    return link;
}

TEST_F(Refusal, ForeignXdpProgramStays) {
    setup(node, "eth0", "200mbit");
    const spillway::Fd foreign = foreign_xdp(node, "eth0");
    ASSERT_TRUE(foreign);
    json config = tree();
    config["ports"][0]["trap"] = "native";
    const Output checked = check(config);
    EXPECT_EQ(checked.code, 2);
    EXPECT_THAT(checked.err, HasSubstr("XDP"));
    EXPECT_THAT(checked.err, HasSubstr("HINT"));
    Agent agent(node, config, false);
    EXPECT_TRUE(
        eventually(3, [&] { return port_status(agent.status(), "eth0")["waiting"] == "foreign_xdp"; }));
    config["ports"][0]["trap"] = "auto";
    agent.reload(config);
    EXPECT_TRUE(eventually(3, [&] { return port_status(agent.status(), "eth0")["xdp"] == "tc"; }));
    bpf_link_info info{};
    std::uint32_t size = sizeof(info);
    ASSERT_EQ(bpf_obj_get_info_by_fd(foreign.get(), &info, &size), 0);
    EXPECT_EQ(info.xdp.ifindex, port_status(agent.status(), "eth0")["ifindex"]) << "it stays";
}

// A mark ends with its port, one made by hand too: nobody could take it back.
TEST_F(Refusal, MarkOfAPortThatIsGone) {
    setup(node, "eth0", "200mbit");
    const Agent agent(node, tree());
    ASSERT_EQ(agent.command({"mark", "udp", "10.0.0.1:1", "10.0.0.2:2", "--port", "eth0"}).code, 0);
    ASSERT_EQ(agent.flows(true).size(), 1U);
    node.ip("link del eth0");
    EXPECT_TRUE(eventually(3, [&] { return agent.flows(true).empty(); })) << agent.flows(true).dump(1);
    EXPECT_EQ(port_status(agent.status(), "eth0")["waiting"], "no_port");
}

// By hand only where there is somewhere to move the flow to.
TEST_F(Refusal, MarkWithoutIsolationClass) {
    const Agent agent(node, configuration(ways[0], {}, {"eth0"}));
    const Output marked = agent.command({"mark", "udp", "10.0.0.1:1", "10.0.0.2:2", "--port", "eth0"});
    EXPECT_EQ(marked.code, 1);
    EXPECT_THAT(marked.err, HasSubstr("HINT"));
    EXPECT_TRUE(agent.flows(true).empty());
}

TEST_F(Refusal, WithoutPrivilege) {
    const Output output =
        run(node, {"setpriv", "--bounding-set=-all", "--inh-caps=-all", spillway_program(), "status"});
    EXPECT_NE(output.code, 0);
    EXPECT_THAT(output.err, HasSubstr("HINT"));
}

TEST_F(Refusal, BrokenReloadChangesNothing) {
    setup(node, "eth0", "200mbit");
    Agent agent(node, tree());
    const json before = agent.status()["ports"];
    json broken = tree();
    broken["ports"][0]["queues"][0]["waterline"]["low"] = 300000;
    agent.reload(broken);
    EXPECT_TRUE(eventually(3, [&] { return agent.log().find("HINT") != std::string::npos; }));
    EXPECT_THAT(agent.log(), HasSubstr("/ports/0/queues/0/waterline"));
    EXPECT_EQ(agent.status()["ports"][0]["queues"][0]["waterline"], before[0]["queues"][0]["waterline"]);
    EXPECT_TRUE(agent.status()["agent"]["running"]);
}

TEST_F(Refusal, PurgeLeavesNothingAndTakesNothingElse) {
    setup(node, "eth0", "200mbit");
    Agent agent(node, tree());
    EXPECT_EQ(agent.command({"purge"}).code, 1) << "an agent runs";
    agent.stop();
    EXPECT_EQ(agent.command({"status"}).code, 0) << "the data path stays";
    EXPECT_EQ(agent.command({"purge"}).code, 0);
    EXPECT_FALSE(std::filesystem::exists("/sys/fs/bpf/spillway/" + agent.instance()));
    EXPECT_EQ(agent.command({"status"}).code, 3);
    EXPECT_EQ(class_stats(node, "eth0", "1:10").dropped, 0U) << "the qdisc tree is the user's";
    EXPECT_EQ(agent.command({"purge"}).code, 0) << "nothing there is no error";
}

TEST_F(Refusal, DetachOnExit) {
    setup(node, "eth0", "200mbit");
    const std::string instance = node.name(); // swept if this test is killed
    const auto file = std::filesystem::temp_directory_path() / (node.name() + ".json");
    std::ofstream(file) << tree();
    Process agent(node, {spillway_program(), "--instance", instance, "agent", "--config", file.string(),
                         "--detach-on-exit"});
    const std::filesystem::path links = "/sys/fs/bpf/spillway/" + instance + "/links";
    const auto attached = [&] { // links, and where the kernel has no tcx also filters
        std::error_code gone;
        const auto pinned = std::distance(std::filesystem::directory_iterator(links, gone),
                                          std::filesystem::directory_iterator());
        const std::string clsact = run(node, {"tc", "filter", "show", "dev", "eth0", "egress"}).out +
                                   run(node, {"tc", "filter", "show", "dev", "eth0", "ingress"}).out;
        return pinned + (clsact.contains("spillway_isolat") ? 1 : 0) +
               (clsact.contains("spillway_ingres") ? 1 : 0);
    };
    EXPECT_TRUE(eventually(10, [&] { return attached() >= 2; }));
    agent.signal(SIGTERM);
    EXPECT_EQ(agent.wait(5), 0);
    EXPECT_EQ(attached(), 0);
    const json left =
        json::parse(run(node, {spillway_program(), "--instance", instance, "status", "--json"}).out);
    EXPECT_EQ(port_status(left, "eth0")["tc"], "off");
    EXPECT_EQ(port_status(left, "eth0")["xdp"], "off");
    EXPECT_EQ(run(node, {spillway_program(), "--instance", instance, "purge"}).code, 0);
    std::filesystem::remove(file);
}

} // namespace
