// SPDX-License-Identifier: Apache-2.0
/// Light traffic behind an elephant: freed by isolation, as well as by a filter that knew the elephant
/// before; and never marked itself.
#include "tests/netns/scenario.h"

#include <cstdio>
#include <gmock/gmock.h>
#include <sstream>

namespace {

using namespace spillway::lab;
using nlohmann::json;

struct Figures {
    double p50_us = 0;
    double p99_us = 0;
    double loss = 0;
    double mbit = 0; ///< the elephant's
};

struct Elephant {
    const char *name;
    int family;
    unsigned tcp_flows; ///< 0: UDP at 300 Mbit/s
};

class Isolation : public testing::TestWithParam<std::tuple<Way, Elephant>> {
  protected:
    const Way &way() const { return std::get<0>(GetParam()); }
    const Elephant &elephant() const { return std::get<1>(GetParam()); }

    /// Victim and elephant together; the victim is measured while the elephant is at its full rate.
    Figures measure(const Bottleneck &lab, double seconds) const {
        const std::string to = lab.chain.receiver_address(elephant().family);
        Traffic reflector(lab.receiver(), "reflect --port 7000");
        Traffic sink(lab.receiver(), elephant().tcp_flows != 0 ? "tcp-sink --port 6000" : "sink --port 6000");
        const std::string send =
            elephant().tcp_flows != 0
                ? fmt::format("tcp-send --to {} --port 6000 --flows {} --congestion cubic --seconds {}", to,
                              elephant().tcp_flows, seconds + 2)
                : fmt::format("flood --to {} --port 6000 --mbit 300 --seconds {}", to, seconds + 2);
        Traffic sender(lab.host(), send);
        // Past the elephant's own beginning: what counts is how the two live together.
        std::this_thread::sleep_for(std::chrono::seconds(1));
        Traffic probe(lab.host(),
                      fmt::format("probe --to {} --port 7000 --hz 1000 --seconds {}", to, seconds));
        const json victim = probe.result();
        sender.result();
        const json heavy = sink.stop();
        return {victim["p50_us"], victim["p99_us"], victim["loss"], heavy["mbit"]};
    }

    void print(const char *what, const Figures &figures) const {
        std::printf("  %-16s victim p50 %9.1f us  p99 %9.1f us  loss %5.2f %%   elephant %6.1f Mbit/s\n",
                    what, figures.p50_us, figures.p99_us, figures.loss * 100, figures.mbit);
    }
};

// Must show 1: 200 Mbit/s, setup tree, FIFO of 1000: victim's p50 at least 100 times better than without and
// within twice the oracle's of the same run, no loss, the elephant within 2 %.
TEST_P(Isolation, FreesTheVictimAndKeepsTheElephant) {
    const Bottleneck lab;
    const Figures without = measure(lab, 2);
    print("without", without);

    // The machine is shared, so a pair is measured again if it does not hold at once.
    Figures with;
    Figures oracle;
    bool holds = false;
    for (int round = 0; round < 3 && !holds; round++) {
        // HTB's own filters, one for each family: the elephant's port at its place behind the IP header.
        lab.node().tc(
            "filter add dev eth1 parent 1: protocol ip prio 1 u32 match u16 6000 0xffff at 22 flowid 1:20");
        lab.node().tc(
            "filter add dev eth1 parent 1: protocol ipv6 prio 2 u32 match u16 6000 0xffff at 42 flowid 1:20");
        oracle = measure(lab, 2);
        lab.node().tc("filter del dev eth1 parent 1:");
        print("oracle", oracle);
        {
            const Agent node(lab.node(), configuration(way(), {"eth1"}, {"eth0"}));
            const Agent host(lab.host(), configuration(way(), {"eth1"}));
            with = measure(lab, 2);
            print("spillway", with);
            EXPECT_EQ(innocent(node.flows(), 6000).size(), 0U) << node.flows().dump(1);
            EXPECT_EQ(innocent(host.flows(), 6000).size(), 0U) << host.flows().dump(1);
            EXPECT_GE(marked_total(node.status(), "eth1"), std::max(1U, elephant().tcp_flows));
        }
        holds = with.p50_us <= 2 * oracle.p50_us && with.loss == 0 && with.mbit >= 0.98 * without.mbit &&
                with.p50_us * 100 <= without.p50_us;
    }
    EXPECT_LE(with.p50_us * 100, without.p50_us);
    EXPECT_LE(with.p50_us, 2 * oracle.p50_us);
    EXPECT_EQ(with.loss, 0);
    EXPECT_GE(with.mbit, 0.98 * without.mbit);
}

INSTANTIATE_TEST_SUITE_P(Of, Isolation,
                         testing::Combine(testing::ValuesIn(ways),
                                          testing::Values(Elephant{"Udp4", 4, 0}, Elephant{"Udp6", 6, 0},
                                                          Elephant{"OneTcp", 4, 1},
                                                          Elephant{"FourTcp", 4, 4})),
                         [](const testing::TestParamInfo<std::tuple<Way, Elephant>> &info) {
                             return std::string(std::get<1>(info.param).name) + std::get<0>(info.param).name;
                         });

class Guard : public testing::TestWithParam<Way> {
  protected:
    /// Lines of the agent's log that tell of a mark.
    static std::vector<std::string> marks(const Agent &agent) {
        std::vector<std::string> found;
        std::istringstream log(agent.log());
        for (std::string line; std::getline(log, line);)
            if (line.find("info: marked ") != std::string::npos)
                found.push_back(line);
        return found;
    }

    /// Repeats a fresh elephant beside steady victims of 1, 2 and 4 % of the rate. Returns the marks of
    /// anybody but the elephants; ends at the first if asked.
    static std::vector<std::string> wrong_marks(const json &config, int repeats, bool stop_at_first) {
        const Bottleneck lab;
        const std::string to = lab.chain.receiver_address();
        const Agent node(lab.node(), config);
        Traffic reflector(lab.receiver(), "reflect --port 7000");
        Traffic sink(lab.receiver(), "sink --port 6000");
        std::vector<std::unique_ptr<Traffic>> victims;
        for (const int percent : {1, 2, 4})
            victims.push_back(std::make_unique<Traffic>(
                lab.host(), fmt::format("probe --to {} --port 7000 --mbit {} --size 400 --seconds 280", to,
                                        2 * percent)));
        std::vector<std::string> wrong;
        int elephants = 0;
        // On a busy machine an elephant may not get the time to be one: such a round does not count.
        for (int tries = 0; elephants < repeats && tries < 2 * repeats && (!stop_at_first || wrong.empty());
             tries++) {
            const json sent =
                Traffic(lab.host(), fmt::format("flood --to {} --port 6000 --mbit 300 --seconds 0.8", to))
                    .result();
            const std::string flow = fmt::format(":{} {}:6000 ", sent["from_port"].get<int>(), to);
            const auto found = [&] {
                return std::ranges::any_of(marks(node), [&](const std::string &line) {
                    return line.find(flow) != std::string::npos;
                });
            };
            if (sent["mbit"] > 260)
                elephants++;
            EXPECT_TRUE(sent["mbit"] <= 260 || eventually(2, found)) << "not found: " << sent.dump();
            EXPECT_TRUE(stop_at_first || eventually(5, [&] { return node.flows().empty(); }))
                << node.flows().dump(1);
            wrong = marks(node);
            std::erase_if(wrong, [&to](const std::string &line) {
                return line.find(fmt::format(" {}:6000 ", to)) != std::string::npos;
            });
        }
        EXPECT_TRUE(stop_at_first || elephants == repeats) << "the machine is too busy for elephants";
        EXPECT_EQ(marks(node).size(), marked_total(node.status(), "eth1")) << "every mark is in the log";
        return wrong;
    }
};

// Must show 2: the victim is never marked: 20 repeats, each a fresh elephant.
TEST_P(Guard, NeverMarksAVictim) {
    EXPECT_THAT(wrong_marks(configuration(GetParam(), {"eth1"}, {"eth0"}), 20, false), testing::IsEmpty());
}

// … and the same harness catches a wrong mark when nothing guards.
TEST_P(Guard, OffMarksVictims) {
    json config = configuration(GetParam(), {"eth1"}, {"eth0"});
    config["detection"]["guard"] = "off";
    EXPECT_THAT(wrong_marks(config, 20, true), testing::Not(testing::IsEmpty()));
}

INSTANTIATE_TEST_SUITE_P(With, Guard, testing::ValuesIn(ways), way_name);

} // namespace
