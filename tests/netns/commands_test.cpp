// SPDX-License-Identifier: Apache-2.0
// What the commands do to an instance, and how its maps are read.
#include "agent/core/flow_text.h"
#include "agent/kernel/maps.h"
#include "tests/netns/scenario.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <set>
#include <sys/file.h>
#include <thread>

namespace spillway::lab {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char *udp_flow = "udp 10.0.0.1:5000 10.0.0.2:6000";

/// An agent that serves the port.
class Commands : public testing::Test, protected OnePort {
  protected:
    [[nodiscard]] Paths paths() const { return Paths(agent->instance()); }
    [[nodiscard]] int ifindex() const { return port_status(agent->status(), "eth0")["ifindex"]; }

    std::optional<Agent> agent{std::in_place, node, config};
};

TEST_F(Commands, MarkIsShownUntilUnmark) {
    const Output marked = agent->command({"mark", udp_flow, "--port", "eth0"});
    EXPECT_EQ(marked.code, 0) << marked.err;
    EXPECT_EQ(marked.out, fmt::format("marked {} on eth0\n", udp_flow));
    const json flows = agent->flows();
    ASSERT_EQ(flows.size(), 1U);
    EXPECT_EQ(flows[0]["proto"], "udp");
    EXPECT_EQ(flows[0]["sport"], 5000);
    EXPECT_EQ(flows[0]["port"], "eth0");
    EXPECT_EQ(flows[0]["origin"], "manual");
    EXPECT_EQ(flows[0]["state"], "isolated");
    EXPECT_EQ(flows[0]["class"], nullptr) << "no packet yet";
    EXPECT_EQ(agent->status()["flows"]["congested"], 1);

    const Output again = agent->command({"mark", udp_flow, "--port", "eth0"});
    EXPECT_EQ(again.code, 0);
    EXPECT_THAT(again.out, HasSubstr("was marked before"));

    EXPECT_EQ(agent->command({"unmark", udp_flow, "--port", "eth0"}).code, 0);
    EXPECT_TRUE(eventually(2, [&] { return agent->flows().empty(); })) << agent->flows().dump(1);
    const Output gone = agent->command({"unmark", udp_flow, "--port", "eth0"});
    EXPECT_EQ(gone.code, 1);
    EXPECT_THAT(gone.err, AllOf(HasSubstr("not marked"), HasSubstr("HINT")));
}

TEST_F(Commands, AMarkByHandDoesNotRunOut) {
    ASSERT_EQ(agent->command({"mark", udp_flow, "--port", "eth0"}).code, 0);
    EXPECT_FALSE(eventually(2.5, [&] { return agent->flows().empty(); }));
    EXPECT_EQ(agent->flows()[0]["state"], "isolated");
}

TEST_F(Commands, ExplainSaysWhatIsMissingForAMarkAndWhatHoldsOne) {
    const auto explain = [&](const Words &options = {"--port", "eth0"}) {
        Words words{"explain", udp_flow};
        words.insert(words.end(), options.begin(), options.end());
        return agent->command(words);
    };
    EXPECT_TRUE(eventually(2, [&] {
        return explain().out.contains("1:10 is below: 0 bytes wait, waterline 50000..200000");
    })) << explain().out;
    EXPECT_THAT(explain().out,
                AllOf(HasSubstr(fmt::format("{} on eth0: not isolated: it has no mark\n", udp_flow)),
                      HasSubstr("guard      has nothing of the flow")));
    EXPECT_EQ(explain().code, 0);
    EXPECT_EQ(explain({}).out, explain().out) << "its only port";

    ASSERT_EQ(agent->command({"mark", udp_flow, "--port", "eth0"}).code, 0);
    EXPECT_THAT(explain().out,
                AllOf(HasSubstr("on eth0: isolated: marked "), HasSubstr("first reason manual"),
                      HasSubstr("manual     marked by hand, until `spillway unmark`"),
                      HasSubstr("1000 ms of silence end local and cip")));
    ASSERT_EQ(agent->command({"panic"}).code, 0);
    EXPECT_THAT(explain().out, HasSubstr("panic      every packet passes untouched"));
    ASSERT_EQ(agent->command({"resume"}).code, 0);

    const Output absent = explain({"--port", "eth7"});
    EXPECT_EQ(absent.code, 2);
    EXPECT_THAT(absent.err, AllOf(HasSubstr("eth7: not a port of this instance"), HasSubstr("HINT")));
}

TEST_F(Commands, FragmentsAreAnotherFlow) {
    const Output marked = agent->command({"mark", "udp 10.0.0.1 10.0.0.2", "--port", "eth0"});
    EXPECT_EQ(marked.out, "marked udp 10.0.0.1 10.0.0.2 (fragments) on eth0\n");
    EXPECT_EQ(agent->flows()[0]["sport"], nullptr);
    EXPECT_EQ(agent->command({"unmark", udp_flow, "--port", "eth0"}).code, 1);
}

TEST_F(Commands, MarkAsksForAPortOfTheInstance) {
    const Output output = agent->command({"mark", udp_flow, "--port", "eth7"});
    EXPECT_EQ(output.code, 2);
    EXPECT_THAT(output.err, AllOf(HasSubstr("eth7"), HasSubstr("HINT: its ports are eth0")));
    EXPECT_TRUE(agent->flows(true).empty());
}

TEST_F(Commands, MarkAsksForAnIsolationClass) {
    const Agent plain(peer, configuration(ways[0], {}, {"eth0"}));
    const Output output = plain.command({"mark", udp_flow, "--port", "eth0"});
    EXPECT_EQ(output.code, 1);
    EXPECT_THAT(output.err, AllOf(HasSubstr("no queue with an isolation class"), HasSubstr("HINT")));
    EXPECT_TRUE(plain.flows(true).empty());
}

TEST_F(Commands, MarkAndStatusWorkWithoutTheAgent) {
    agent->kill();
    const Output marked = agent->command({"mark", udp_flow, "--port", "eth0"});
    EXPECT_EQ(marked.code, 0) << marked.err;
    EXPECT_EQ(agent->flows().size(), 1U);
    const json status = agent->status();
    EXPECT_EQ(status["agent"], json({{"running", false}, {"pid", nullptr}, {"version", nullptr}}));
    EXPECT_EQ(status["ports"][0]["queues"][0]["level"], "unknown");
    EXPECT_EQ(status["ports"][0]["queues"][0]["backlog"]["bytes"], nullptr);
    EXPECT_THAT(status["ports"][0]["degraded"].dump(), HasSubstr("agent_stale"));
}

TEST_F(Commands, CheckPrintsALineForEachQueue) {
    const Output output = agent->command({"check", "--config", agent->config_file()});
    EXPECT_EQ(output.code, 0) << output.err;
    EXPECT_EQ(output.err, "");
    EXPECT_THAT(output.out, HasSubstr("eth0  1:10   1:20      50000..200000 bytes\n"));
}

TEST_F(Commands, PurgeTouchesNothingWhileTheAgentRuns) {
    const Output output = agent->command({"purge"});
    EXPECT_EQ(output.code, 1);
    EXPECT_THAT(output.err, AllOf(HasSubstr("is running (pid"), HasSubstr("HINT")));
    EXPECT_EQ(port_status(agent->status(), "eth0")["waiting"], nullptr);
    const Output marked = agent->command({"mark", udp_flow, "--port", "eth0"});
    EXPECT_EQ(marked.code, 0) << marked.err;
}

TEST_F(Commands, AnotherLayoutIsNamedAndPurged) {
    agent->kill();
    const auto maps = Maps::open(paths());
    ASSERT_TRUE(maps) << maps.error().text();
    maps->settings()->abi = SPILLWAY_ABI + 1;
    const Output output = agent->command({"status"});
    EXPECT_EQ(output.code, 1);
    EXPECT_THAT(output.err, AllOf(HasSubstr("another version"), HasSubstr("HINT"), HasSubstr("purge")));
    EXPECT_EQ(agent->command({"purge"}).code, 0);
    EXPECT_EQ(agent->command({"status"}).code, 3);
}

TEST_F(Commands, HalfADataPathIsNone) {
    agent->kill();
    ASSERT_TRUE(std::filesystem::remove(paths().maps / "queues"));
    EXPECT_EQ(agent->command({"status"}).code, 3);
    EXPECT_EQ(agent->command({"purge"}).code, 0);
}

TEST_F(Commands, PurgeLeavesWhatIsNotOurs) {
    agent->kill();
    const auto stranger = paths().root / "stranger";
    std::filesystem::create_directory(stranger);
    const Output output = agent->command({"purge"});
    EXPECT_EQ(output.code, 0);
    EXPECT_THAT(output.out, HasSubstr("what is not its own stays in " + paths().root.string()));
    EXPECT_TRUE(std::filesystem::exists(stranger));
    EXPECT_EQ(agent->command({"status"}).code, 3);
    std::filesystem::remove(stranger);
}

/// Marks flows that differ in their source port only.
class ManyFlows : public Commands {
  protected:
    static constexpr unsigned flows = 5000; // several batches
    static constexpr unsigned first = 10000;

    ManyFlows() {
        auto opened = Maps::open(paths());
        if (!opened)
            throw std::runtime_error(opened.error().text());
        maps.emplace(std::move(*opened));
        change.op = SPILLWAY_EDIT_MARK_MANUAL;
        change.key = parse_flow(std::vector<std::string>{udp_flow}).value();
        change.key.port = static_cast<std::uint32_t>(ifindex());
    }

    /// The answer when all is well.
    spillway_edit_result edit(spillway_edit_op op, unsigned number) const {
        spillway_edit one = change;
        one.op = op;
        one.key.sport = static_cast<std::uint16_t>(first + number);
        return maps->edit(one).value();
    }

    std::optional<Maps> maps;
    spillway_edit change{};
};

TEST_F(ManyFlows, EveryOneIsReadOnce) {
    for (unsigned i = 0; i < flows; i++)
        ASSERT_EQ(edit(SPILLWAY_EDIT_MARK_MANUAL, i), SPILLWAY_EDIT_DONE);
    const auto entries = maps->read_flows();
    ASSERT_TRUE(entries) << entries.error().text();
    std::set<std::uint16_t> ports;
    for (const auto &[key, flow] : *entries) {
        EXPECT_EQ(flow.mark, SPILLWAY_MARK_CONGESTED);
        ports.insert(key.sport);
    }
    EXPECT_EQ(entries->size(), flows);
    EXPECT_EQ(ports.size(), flows);
    EXPECT_EQ(*ports.begin(), first);
    EXPECT_EQ(agent->flows().size(), flows);
}

TEST_F(ManyFlows, NoneIsMissedWhileOthersComeAndGo) {
    constexpr unsigned stay = 2000;
    for (unsigned i = 0; i < stay; i++)
        ASSERT_EQ(edit(SPILLWAY_EDIT_MARK_MANUAL, i), SPILLWAY_EDIT_DONE);
    std::atomic<bool> stop = false;
    std::thread others([&] {
        for (unsigned i = 0; !stop; i = (i + 1) % 1000) {
            edit(SPILLWAY_EDIT_MARK_MANUAL, stay + i);
            edit(SPILLWAY_EDIT_UNMARK, stay + i); // released by the agent's sweep
        }
    });
    for (int reading = 0; reading < 50; reading++) {
        const auto entries = maps->read_flows();
        ASSERT_TRUE(entries) << entries.error().text();
        std::set<std::uint16_t> ports;
        std::size_t stayed = 0;
        for (const auto &[key, flow] : *entries) {
            EXPECT_TRUE(ports.insert(key.sport).second) << "read twice";
            stayed += key.sport < first + stay ? 1U : 0U;
        }
        EXPECT_EQ(stayed, stay);
    }
    stop = true;
    others.join();
}

TEST_F(ManyFlows, AnEditOfNoPortIsRefused) {
    change.key.port = 0x7fffffff;
    EXPECT_EQ(edit(SPILLWAY_EDIT_MARK_MANUAL, 0), SPILLWAY_EDIT_BAD);
    EXPECT_TRUE(maps->read_flows().value().empty());
}

/// The lock of an instance that has no agent.
class Lock : public testing::Test {
  protected:
    ~Lock() override { std::filesystem::remove_all(paths.root); }
    Namespace here{"lock"}; // mounts the BPF file system, and gives a name of its own
    Paths paths{here.name()};
};

TEST_F(Lock, HasOneHolder) {
    EXPECT_FALSE(agent_running(paths)) << "it is not even there";
    auto first = lock_instance(paths);
    ASSERT_TRUE(first) << first.error().text();
    EXPECT_TRUE(agent_running(paths));
    const auto second = lock_instance(paths);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().kind, ErrorKind::failed);
    EXPECT_THAT(second.error().text(),
                AllOf(HasSubstr(fmt::format("an agent of instance {} is running (pid {})", paths.instance,
                                            ::getpid())),
                      HasSubstr("--instance")));
    first->reset();
    EXPECT_FALSE(agent_running(paths));
    EXPECT_TRUE(lock_instance(paths));
}

TEST_F(Lock, IsNotKeptFromAnAgentByThoseWhoLook) {
    ASSERT_TRUE(lock_instance(paths));
    Fd look(::open(paths.root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ASSERT_EQ(::flock(look.get(), LOCK_SH), 0); // as agent_running() does for an instant
    std::thread looker([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        look.reset();
    });
    EXPECT_TRUE(lock_instance(paths));
    looker.join();
}

TEST_F(Lock, OfAFolderThatWasPurgedIsTakenAnew) {
    auto old = lock_instance(paths);
    ASSERT_TRUE(old);
    std::thread purger([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        std::filesystem::remove_all(paths.root);
        old->reset();
    });
    const auto next = lock_instance(paths);
    purger.join();
    ASSERT_TRUE(next) << next.error().text();
    EXPECT_TRUE(agent_running(paths)) << "the lock is on the folder that is there now";
    EXPECT_TRUE(std::filesystem::is_directory(paths.maps));
}

} // namespace
} // namespace spillway::lab
