// SPDX-License-Identifier: Apache-2.0
/// A year of a host in a minute: what happens to ports, qdiscs and the agent, in a random order and under
/// traffic, once without the agent and once with it. No packet is lost but while an event itself has the port
/// out of service, `status` is true after every event, and nothing is left behind.
///
/// SPILLWAY_TEST_SEED in the environment repeats an order; each run prints its own.
#include "tests/netns/scenario.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <map>
#include <net/if.h>
#include <random>
#include <set>
#include <sys/ioctl.h>
#include <sys/socket.h>

namespace {

using namespace spillway::lab;
using nlohmann::json;
using testing::HasSubstr;
using Names = std::set<std::string>;

constexpr unsigned events = 50;

enum class Event { // the first six take the port out of service
    flap,
    new_mac,
    rename,
    made_again,
    moved_away,
    new_tree,
    class_gone,
    agent_killed,
    agent_stopped,
    reload,
    refused_reload,
    panic,
    mark,
};
const std::vector<const char *> event_names{"flap",          "new MAC",  "rename",         "made again",
                                            "moved away",    "new tree", "class gone",     "agent killed",
                                            "agent stopped", "reload",   "reload refused", "panic or resume",
                                            "mark or unmark"};

const char *name_of(Event event) {
    return event_names.at(static_cast<std::size_t>(event));
}

bool out_of_service(Event event) {
    return event <= Event::new_tree;
}

/// Every event about as often as any other.
std::vector<Event> random_order(std::uint64_t seed) {
    std::vector<Event> order;
    for (unsigned i = 0; i < events; i++)
        order.push_back(static_cast<Event>(i % event_names.size()));
    std::mt19937_64 random(seed);
    std::ranges::shuffle(order, random);
    return order;
}

bool has_carrier(const Namespace &ns, const std::string &port) {
    bool running = false;
    ns.call([&] {
        const spillway::Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
        ifreq request{};
        port.copy(request.ifr_name, sizeof(request.ifr_name) - 1);
        running =
            ::ioctl(socket.get(), SIOCGIFFLAGS, &request) == 0 && (request.ifr_flags & IFF_RUNNING) != 0;
    });
    return running;
}

void pause(int milliseconds) {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

/// Host – node – receiver; events happen to the node's port towards the receiver, and to the agent if one is
/// there.
class Site {
  public:
    explicit Site(bool with_agent) {
        make_tree();
        if (!with_agent)
            return;
        agent_.emplace(node(), config());
        pins_ = pins();
        descriptors_ = descriptors();
    }

    void happen(Event event);
    /// Everything that `status`, the BPF file system and /proc say is as it must be now.
    void expect_truth();

    [[nodiscard]] Namespace &host() const { return chain_.host(); }
    [[nodiscard]] Namespace &node() const { return chain_.node(1); }
    [[nodiscard]] Namespace &receiver() const { return chain_.receiver(); }
    [[nodiscard]] std::string address() const { return chain_.receiver_address(); }

  private:
    static constexpr std::uint16_t probe_port = 5000;
    const std::string port_ = "eth1";
    const std::string receiver_mac_ = "02:00:00:00:02:00";

    [[nodiscard]] json config() const {
        json all = configuration(ways[0], {port_}, {"eth0"});
        all["ports"][0]["queues"][0]["waterline"]["high"] = high_;
        return all;
    }
    void make_tree() { setup(node(), port_, "200mbit"); }
    void in_service();
    void down(const char *waiting);
    void restart();
    void command(const Words &words);
    [[nodiscard]] json port() const { return port_status(agent_->status(), port_); }
    [[nodiscard]] Names pins() const;
    [[nodiscard]] std::ptrdiff_t descriptors();

    Chain chain_{1};
    Namespace elsewhere_{"elsewhere"};
    std::optional<Agent> agent_;
    Names pins_;
    std::ptrdiff_t descriptors_ = 0;
    unsigned high_ = 200000;
    std::uint8_t mac_ = 0x10;
    bool panic_ = false;
    bool marked_ = false;
};

Names Site::pins() const {
    Names found;
    for (const auto &entry :
         std::filesystem::recursive_directory_iterator("/sys/fs/bpf/spillway/" + agent_->instance()))
        found.insert(entry.path().string());
    return found;
}

std::ptrdiff_t Site::descriptors() {
    const std::filesystem::directory_iterator open(fmt::format("/proc/{}/fd", agent_->process().pid()));
    return std::distance(begin(open), end(open));
}

/// While the port is out of service, for the same time with and without an agent.
void Site::down(const char *waiting) {
    const std::uint64_t until = now_ns() + 100'000'000;
    if (agent_) {
        EXPECT_TRUE(eventually(3, [&] { return port()["waiting"] == waiting; })) << agent_->status().dump(1);
        if (waiting == std::string("no_port")) { // marks end with their port
            EXPECT_TRUE(eventually(3, [&] { return agent_->flows(true).empty(); }))
                << agent_->flows().dump(1);
            marked_ = false;
        }
    }
    while (now_ns() < until)
        pause(1);
}

/// Up, with the neighbours that are lost when a port goes down, until packets pass.
void Site::in_service() {
    node().ip("link set " + port_ + " up");
    neighbour(node(), port_, address(), receiver_mac_);
    if (!eventually(5, [&] { return has_carrier(node(), port_) && has_carrier(receiver(), "eth0"); }))
        throw std::runtime_error(port_ + " has no carrier");
    pause(20); // the kernel's queue for changes of carrier
}

void Site::restart() {
    if (agent_)
        agent_->start();
    else
        pause(50);
}

void Site::command(const Words &words) {
    if (!agent_)
        return;
    const Output done = agent_->command(words);
    EXPECT_EQ(done.code, 0) << done.err;
}

void Site::happen(Event event) {
    const std::string set = "link set " + port_;
    switch (event) {
    case Event::flap:
        node().ip(set + " down");
        down("port_down");
        in_service();
        break;
    case Event::new_mac: {
        const std::string mac = fmt::format("02:00:00:00:01:{:02x}", mac_++);
        node().ip(set + " address " + mac);
        neighbour(receiver(), "eth0", "10.0.2.1", mac);
        break;
    }
    case Event::rename: // a port that is up keeps its name on older kernels
        node().ip(set + " down");
        node().ip(set + " name other");
        down("no_port");
        node().ip("link set other name " + port_);
        in_service();
        break;
    case Event::made_again:
        node().ip("link del " + port_);
        down("no_port");
        link({.ns = node(), .port = port_, .mac = "02:00:00:00:01:01", .addresses = {"10.0.2.1/24"}},
             {.ns = receiver(), .port = "eth0", .mac = receiver_mac_, .addresses = {"10.0.2.2/24"}});
        receiver().ip("route add 10.0.1.0/24 via 10.0.2.1");
        make_tree();
        in_service();
        break;
    case Event::moved_away:
        node().ip(set + " netns " + elsewhere_.name());
        down("no_port");
        elsewhere_.ip(set + " netns " + node().name());
        make_tree();
        node().ip("address add 10.0.2.1/24 dev " + port_);
        in_service();
        break;
    case Event::new_tree:
        node().tc("qdisc del dev " + port_ + " root");
        down("noqueue");
        make_tree();
        in_service();
        break;
    case Event::class_gone: // what would wait in it waits in the default class
        delete_isolation_class(node(), port_);
        down("no_class");
        make_isolation_class(node(), port_);
        break;
    case Event::agent_killed:
        if (agent_)
            agent_->kill();
        restart();
        break;
    case Event::agent_stopped:
        if (agent_) {
            EXPECT_EQ(agent_->stop(), 0);
        }
        restart();
        break;
    case Event::reload:
        high_ = high_ == 200000 ? 300000 : 200000;
        if (agent_)
            agent_->reload(config());
        break;
    case Event::refused_reload:
        if (agent_) {
            json broken = config();
            broken["ports"][0]["queues"][0]["waterline"]["low"] = 400000;
            const std::size_t before = agent_->log().size();
            agent_->reload(broken);
            EXPECT_TRUE(eventually(3, [&] {
                return agent_->log().find("configuration unchanged", before) != std::string::npos;
            }));
            agent_->write(config()); // for the next start
        }
        break;
    case Event::panic:
        panic_ = !panic_;
        command({panic_ ? "panic" : "resume"});
        break;
    case Event::mark:
        marked_ = !marked_;
        command({marked_ ? "mark" : "unmark", "udp", fmt::format("{}:{}", chain_.host_address(), probe_port),
                 address() + ":7000", "--port", port_});
        break;
    }
}

void Site::expect_truth() {
    if (!agent_)
        return;
    json status;
    const auto holds = [&] {
        status = agent_->status();
        const json here = port_status(status, port_);
        const json there = port_status(status, "eth0");
        int ifindex = 0;
        node().call([&] { ifindex = static_cast<int>(::if_nametoindex(port_.c_str())); });
        return status["mode"] == (panic_ ? "panic" : "isolate") && status["agent"]["running"] == true &&
               status["agent"]["pid"] == agent_->process().pid() && status["ports"].size() == 2 &&
               here["waiting"].is_null() && here["ifindex"] == ifindex && here["tc"] != "off" &&
               here["queues"].size() == 1 && here["queues"][0]["isolate_class"] == json::array({"1:20"}) &&
               here["queues"][0]["waterline"]["high"] == high_ && here["queues"][0]["level"] == "below" &&
               there["waiting"].is_null() && status["flows"]["congested"] == (marked_ ? 1 : 0);
    };
    EXPECT_TRUE(eventually(3, holds)) << status.dump(1);
    EXPECT_TRUE(eventually(1, [&] { return pins() == pins_; })) << testing::PrintToString(pins());
    EXPECT_TRUE(eventually(1, [&] { return descriptors() == descriptors_; })) << descriptors() << " open";
}

/// When an event had the port out of service.
struct Outage {
    Event event;
    std::uint64_t begin_ns;
    std::uint64_t end_ns;
};

struct Loss {
    std::size_t sent = 0;
    std::size_t in_outages = 0;
    std::vector<std::string> others; ///< packets lost though the port was in service: after which event
    std::size_t late = 0;
};

/// A line for each packet: when it was sent, and after what time its answer came (-1: never).
Loss losses(const std::string &series, const std::vector<Outage> &happened) {
    std::vector<std::pair<std::uint64_t, std::int64_t>> packets;
    std::uint64_t slowest = 0; // a packet may have been under way when an event began
    std::ifstream file(series);
    for (std::pair<std::uint64_t, std::int64_t> one; file >> one.first >> one.second;) {
        packets.push_back(one);
        slowest = std::max(slowest, static_cast<std::uint64_t>(std::max<std::int64_t>(one.second, 0)));
    }
    Loss loss;
    loss.sent = packets.size();
    for (const auto &[sent, round_trip] : packets) {
        if (round_trip >= 0)
            continue;
        const bool in_outage = std::ranges::any_of(happened, [&](const Outage &outage) {
            return out_of_service(outage.event) && outage.begin_ns <= sent + slowest && sent <= outage.end_ns;
        });
        if (in_outage) {
            loss.in_outages++;
            continue;
        }
        const Outage *last = nullptr;
        for (const Outage &outage : happened)
            if (outage.begin_ns <= sent)
                last = &outage;
        loss.others.push_back(fmt::format("{} ms after the begin of '{}'",
                                          last != nullptr ? (sent - last->begin_ns) / 1'000'000 : 0,
                                          last != nullptr ? name_of(last->event) : "nothing"));
    }
    return loss;
}

Loss play(const std::vector<Event> &order, bool with_agent) {
    Site site(with_agent);
    Traffic reflector(site.receiver(), "reflect --port 7000");
    const auto series = std::filesystem::temp_directory_path() / (site.node().name() + ".series");
    Traffic probe(
        site.host(),
        fmt::format("probe --to {} --port 7000 --from-port 5000 --hz {} --seconds 500 --patience 0.5 "
                    "--series {}",
                    site.address(), scaled(500), series.string()));
    pause(100);
    std::vector<Outage> happened;
    for (const Event event : order) {
        SCOPED_TRACE(fmt::format("event {} of {}: {}", happened.size() + 1, order.size(), name_of(event)));
        const std::uint64_t begin = now_ns();
        site.happen(event);
        happened.push_back({event, begin, now_ns()});
        site.expect_truth();
        pause(20);
        if (testing::Test::HasFailure())
            break;
    }
    pause(100);
    const json measured = probe.stop();
    Loss loss = losses(series, happened);
    loss.late = measured["late"];
    std::filesystem::remove(series);
    return loss;
}

TEST(RandomEvents, CostNoPacketMoreThanWithoutAgent) {
    const char *chosen = std::getenv("SPILLWAY_TEST_SEED");
    const std::uint64_t seed =
        chosen != nullptr ? std::strtoull(chosen, nullptr, 10) : std::random_device()();
    const std::string repeat = fmt::format("SPILLWAY_TEST_SEED={}", seed);
    SCOPED_TRACE(repeat);
    const std::vector<Event> order = random_order(seed);
    const Loss without = play(order, false);
    const Loss with = play(order, true);
    fmt::print("{}: lost while the port was out of service: {} of {} without agent, {} of {} with it\n",
               repeat, without.in_outages, without.sent, with.in_outages, with.sent);
    EXPECT_THAT(without.others, testing::IsEmpty());
    EXPECT_THAT(with.others, testing::IsEmpty());
    EXPECT_EQ(without.late, 0U);
    EXPECT_EQ(with.late, 0U);
    EXPECT_GT(without.in_outages, 0U) << "there was traffic";
}

} // namespace
