// SPDX-License-Identifier: Apache-2.0
/// Ports, qdiscs, readings, events and `setup` against the real kernel. Each case has a network namespace of
/// its own, which goes with it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <arpa/inet.h>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>
#include <linux/bpf.h>
#include <linux/capability.h>
#include <linux/if_link.h>
#include <memory>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sstream>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

#include "agent/core/fd.h"
#include "agent/kernel/netlink.h"
#include "agent/kernel/setup_tree.h"
#include "agent/kernel/tc_tree.h"
#include "tests/temporary_folder.h"

namespace spillway {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using namespace std::chrono_literals;

void shell(const std::string &command) {
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
}

int index_of(const char *name) {
    return static_cast<int>(::if_nametoindex(name));
}

/// A namespace with a veth pair p0–p1, both up. Packets to 10.9.0.2 leave through p0 and end at p1.
class NetlinkTest : public testing::Test {
  protected:
    void SetUp() override {
        ASSERT_EQ(::geteuid(), 0U) << "needs root";
        outside_ = Fd(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
        ASSERT_TRUE(outside_);
        ASSERT_EQ(::unshare(CLONE_NEWNET), 0);
        shell("ip link add p0 type veth peer name p1 && ip addr add 10.9.0.1/24 dev p0 &&"
              "sysctl -qw net.ipv6.conf.all.disable_ipv6=1 && ip link set p0 up && ip link set p1 up &&"
              "ip neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev p0");
        auto opened = Netlink::open();
        ASSERT_TRUE(opened) << opened.error().text();
        netlink_ = std::make_unique<Netlink>(std::move(*opened));
    }

    void TearDown() override {
        netlink_.reset();
        if (outside_) {
            ASSERT_EQ(::setns(outside_.get(), CLONE_NEWNET), 0);
        }
    }

    Netlink &netlink() { return *netlink_; }

    LinkInfo link(const char *name) {
        const auto found = netlink().link(name);
        EXPECT_TRUE(found && *found) << name;
        return found && *found ? **found : LinkInfo{};
    }

    TcTree tree(const char *port) {
        auto found = netlink().tree(index_of(port));
        EXPECT_TRUE(found) << found.error().text();
        return found ? std::move(*found) : TcTree{};
    }

    /// The counters of the qdisc under `parent`; all zero when there is none.
    TcCounters reading(const char *port, TcHandle parent) {
        std::vector<QueueReading> all;
        const auto done = netlink().read_queues(all);
        EXPECT_TRUE(done) << done.error().text();
        for (const QueueReading &one : all)
            if (one.ifindex == index_of(port) && one.parent == parent)
                return one.counters;
        ADD_FAILURE() << "no reading of " << port << " " << tc_name(parent);
        return {};
    }

  private:
    Fd outside_;
    std::unique_ptr<Netlink> netlink_;
};

/// Datagrams of 1000 bytes of payload (1042 with their headers) towards 10.9.0.2, with a socket priority.
void send_datagrams(int count, TcHandle priority = 0) {
    const Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const int buffer = 4 << 20;
    ASSERT_EQ(::setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUFFORCE, &buffer, sizeof(buffer)), 0);
    ASSERT_EQ(::setsockopt(socket.get(), SOL_SOCKET, SO_PRIORITY, &priority, sizeof(priority)), 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(9);
    to.sin_addr.s_addr = htonl(0x0A090002);
    const std::array<char, 1000> payload{};
    for (int i = 0; i < count; ++i)
        ASSERT_EQ(::sendto(socket.get(), payload.data(), payload.size(), 0, reinterpret_cast<sockaddr *>(&to),
                           sizeof(to)),
                  static_cast<ssize_t>(payload.size()));
}
constexpr uint32_t datagram_bytes = 1042;

struct Outcome {
    Result<> result;
    std::string said;
};

Outcome setup(const std::string &rate, bool force = false, bool dry_run = false,
              const std::string &port = "p0") {
    std::ostringstream out;
    auto result = setup_port({.port = port, .rate = rate, .dry_run = dry_run, .force = force}, out);
    return {std::move(result), out.str()};
}

#define ASSERT_DONE(outcome) ASSERT_TRUE((outcome).result) << (outcome).result.error().text()

/// A `tc` that fails, saying so, where one of its arguments is `poison`; first in PATH while it lives.
class FailingTc {
  public:
    explicit FailingTc(const std::string &poison) : path_(std::getenv("PATH")) {
        const auto program = folder_.path() / "tc";
        std::ofstream(program) << "#!/bin/sh\ncase \" $* \" in *' " << poison
                               << " '*) echo 'Error: poisoned.' >&2; exit 2;; esac\nPATH='" << path_
                               << "' exec tc \"$@\"\n";
        std::filesystem::permissions(program, std::filesystem::perms::owner_all);
        ::setenv("PATH", (folder_.path().string() + ":" + path_).c_str(), 1);
    }
    FailingTc(const FailingTc &) = delete;
    FailingTc &operator=(const FailingTc &) = delete;
    ~FailingTc() { ::setenv("PATH", path_.c_str(), 1); }

  private:
    std::string path_;
    TemporaryFolder folder_{"tc"};
};

// ---- ports

TEST_F(NetlinkTest, TellsWhatAPortIs) {
    shell("ip link set p0 down && ip link set p0 address 02:00:00:00:00:0a mtu 1400 && ip link set p0 up");
    const LinkInfo port = link("p0");
    EXPECT_EQ(port.ifindex, index_of("p0"));
    EXPECT_EQ(port.name, "p0");
    EXPECT_THAT(port.mac, ElementsAre(2, 0, 0, 0, 0, 0x0A));
    EXPECT_TRUE(port.ethernet());
    EXPECT_TRUE(port.up);
    EXPECT_TRUE(port.running);
    EXPECT_EQ(port.mtu, 1400U);
    EXPECT_EQ(port.master, 0);
    EXPECT_EQ(port.lower, index_of("p1"));
    EXPECT_EQ(port.kind, "veth");
    EXPECT_EQ(port.xdp, XdpMode::none);
    EXPECT_GE(port.tx_queues, 1U);
    EXPECT_GE(port.gso_max_size, 65536U);
    EXPECT_FALSE(link("lo").ethernet());

    shell("ip link set p1 down");
    EXPECT_FALSE(link("p0").running);
    EXPECT_TRUE(link("p0").up);

    const auto same = netlink().link(port.ifindex);
    ASSERT_TRUE(same && *same);
    EXPECT_EQ((*same)->name, "p0");
}

TEST_F(NetlinkTest, AbsentPortIsNoError) {
    for (const char *name : {"nosuch0", "", "a-name-longer-than-fifteen"}) {
        const auto found = netlink().link(name);
        ASSERT_TRUE(found) << found.error().text();
        EXPECT_FALSE(*found) << name;
    }
    for (const int ifindex : {-1, 0, 4711}) {
        const auto found = netlink().link(ifindex);
        ASSERT_TRUE(found) << found.error().text();
        EXPECT_FALSE(*found) << ifindex;
    }
    const auto nothing = netlink().tree(4711);
    ASSERT_TRUE(nothing) << nothing.error().text();
    EXPECT_THAT(nothing->qdiscs, IsEmpty());
    EXPECT_THAT(nothing->classes, IsEmpty());
}

TEST_F(NetlinkTest, KnowsMastersAndThatAPeerIsNoUpper) {
    shell("ip link add br0 type bridge && ip link set p0 master br0");
    EXPECT_EQ(link("p0").master, index_of("br0"));
    const auto all = netlink().links();
    ASSERT_TRUE(all);
    EXPECT_EQ(all->size(), 4U); // lo p0 p1 br0
    EXPECT_FALSE(has_upper(*all, index_of("p0")));
}

TEST_F(NetlinkTest, ReadsAPortWithMoreNamesThanADatagramUsuallyHolds) {
    std::string batch;
    for (int i = 0; i < 400; ++i)
        batch += fmt::format("link property add dev p0 altname {}{:03}\n", std::string(100, 'n'), i);
    const auto file = std::filesystem::temp_directory_path() / fmt::format("spillway-names-{}", ::getpid());
    std::ofstream(file) << batch;
    shell("ip -batch " + file.string());
    std::filesystem::remove(file);
    EXPECT_EQ(link("p0").mtu, 1500U);
    const auto all = netlink().links();
    ASSERT_TRUE(all);
    EXPECT_EQ(all->size(), 3U);
}

TEST_F(NetlinkTest, SeesXdpProgramsOfOthers) {
    const std::array<bpf_insn, 2> pass{
        bpf_insn{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = XDP_PASS},
        bpf_insn{.code = BPF_JMP | BPF_EXIT, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = 0}};
    union bpf_attr load {};
    load.prog_type = BPF_PROG_TYPE_XDP;
    load.insn_cnt = pass.size();
    load.insns = reinterpret_cast<uint64_t>(pass.data());
    load.license = reinterpret_cast<uint64_t>("GPL");
    const Fd program(static_cast<int>(::syscall(SYS_bpf, BPF_PROG_LOAD, &load, sizeof(load))));
    ASSERT_TRUE(program);
    for (const auto &[flag, mode] :
         {std::pair{XDP_FLAGS_DRV_MODE, XdpMode::native}, {XDP_FLAGS_SKB_MODE, XdpMode::generic}}) {
        union bpf_attr attach {};
        attach.link_create.prog_fd = static_cast<uint32_t>(program.get());
        attach.link_create.target_ifindex = static_cast<uint32_t>(index_of("p0"));
        attach.link_create.attach_type = BPF_XDP;
        attach.link_create.flags = flag;
        const Fd attached(static_cast<int>(::syscall(SYS_bpf, BPF_LINK_CREATE, &attach, sizeof(attach))));
        ASSERT_TRUE(attached);
        const LinkInfo port = link("p0");
        EXPECT_EQ(port.xdp, mode);
        EXPECT_NE(port.xdp_program, 0U);
    }
    EXPECT_EQ(link("p0").xdp, XdpMode::none);
}

// ---- qdiscs, classes, readings

TEST_F(NetlinkTest, ReadsTheTreeWithItsDefaultChildren) {
    shell("tc qdisc add dev p0 root handle 1: htb default 20 && "
          "tc class add dev p0 parent 1: classid 1:1 htb rate 40gbit ceil 80gbit quantum 3000 && "
          "tc class add dev p0 parent 1:1 classid 1:20 htb rate 8mbit ceil 16mbit prio 3 quantum 2000 && "
          "tc class add dev p0 parent 1:1 classid 1:30 htb rate 8mbit prio 4 quantum 2000 && "
          "tc qdisc add dev p0 parent 1:30 handle 30: bfifo limit 77777 && tc qdisc add dev p0 clsact");
    const TcTree found = tree("p0");
    const Qdisc *root = find_root(found);
    ASSERT_NE(root, nullptr);
    EXPECT_EQ(root->kind, "htb");
    EXPECT_EQ(root->handle, 0x10000U);
    EXPECT_EQ(root->htb_default, 0x20U);
    EXPECT_THAT(found.qdiscs, Contains(Field(&Qdisc::kind, "clsact")));

    const auto of = [&found](TcHandle handle) {
        return *std::ranges::find(found.classes, handle, &TcClass::handle);
    };
    ASSERT_EQ(found.classes.size(), 3U);
    EXPECT_EQ(of(0x10001).parent, tc_root);
    EXPECT_EQ(of(0x10001).htb,
              (HtbClass{.prio = 0, .rate = 40'000'000'000, .ceil = 80'000'000'000, .quantum = 3000}));
    EXPECT_EQ(of(0x10020).parent, 0x10001U);
    EXPECT_EQ(of(0x10020).leaf, 0U);
    EXPECT_EQ(of(0x10020).htb, (HtbClass{.prio = 3, .rate = 8'000'000, .ceil = 16'000'000, .quantum = 2000}));
    EXPECT_EQ(of(0x10030).leaf, 0x300000U);

    const auto hidden = resolve_leaf(found, 0x10020);
    ASSERT_TRUE(hidden) << hidden.error().text;
    EXPECT_EQ(hidden->handle, 0U);
    EXPECT_EQ(hidden->kind, "pfifo");
    const auto shown = resolve_leaf(found, 0x10030);
    ASSERT_TRUE(shown) << shown.error().text;
    EXPECT_EQ(shown->handle, 0x300000U);
    EXPECT_EQ(std::ranges::find(found.qdiscs, 0x300000U, &Qdisc::handle)->fifo_limit, 77777U);
}

TEST_F(NetlinkTest, SeesNoqueueAndAPortThatWasNeverUp) {
    const auto noqueue = resolve_leaf(tree("p0"), tc_root);
    ASSERT_FALSE(noqueue);
    EXPECT_EQ(noqueue.error().reason, TcReason::noqueue);
    shell("ip link add q0 type veth peer name q1");
    const auto nothing = resolve_leaf(tree("q0"), tc_root);
    ASSERT_FALSE(nothing);
    EXPECT_EQ(nothing.error().reason, TcReason::no_class);
}

TEST_F(NetlinkTest, ReadingsMoveAsPacketsWaitAndLeave) {
    // 1:20 has a default child (handle 0), 1:30 one of its own; at 80 kbit/s hardly anything leaves at once.
    shell("tc qdisc add dev p0 root handle 1: htb default 20 && "
          "tc class add dev p0 parent 1: classid 1:20 htb rate 80kbit quantum 2000 && "
          "tc class add dev p0 parent 1: classid 1:30 htb rate 80kbit quantum 2000 && "
          "tc qdisc add dev p0 parent 1:30 handle 30: pfifo limit 10");
    EXPECT_EQ(reading("p0", 0x10020).backlog_packets, 0U);
    send_datagrams(20);
    send_datagrams(20, 0x10030);

    const TcCounters hidden = reading("p0", 0x10020);
    EXPECT_GE(hidden.backlog_packets, 15U);
    EXPECT_EQ(hidden.backlog_bytes, hidden.backlog_packets * datagram_bytes);
    EXPECT_EQ(hidden.sent_packets + hidden.backlog_packets, 20U);
    EXPECT_EQ(hidden.sent_bytes, hidden.sent_packets * datagram_bytes);
    EXPECT_EQ(hidden.drops, 0U);

    const TcCounters shown = reading("p0", 0x10030);
    EXPECT_GE(shown.backlog_packets, 8U);
    EXPECT_LE(shown.backlog_packets, 10U);
    EXPECT_EQ(shown.sent_packets + shown.backlog_packets + shown.drops, 20U);
    EXPECT_GE(shown.drops, 5U);

    shell("tc class change dev p0 parent 1: classid 1:20 htb rate 100mbit quantum 2000");
    for (int i = 0; i < 100 && reading("p0", 0x10020).backlog_packets > 0; ++i)
        std::this_thread::sleep_for(20ms);
    EXPECT_EQ(reading("p0", 0x10020).backlog_bytes, 0U);
    EXPECT_EQ(reading("p0", 0x10020).sent_bytes, 20U * datagram_bytes);
}

/// What check_below rests on: 1:30 hangs under an inner class of prio 7, 1:20 under one of prio 0, and yet
/// 1:30, the leaf with the smaller number, is served first.
TEST_F(NetlinkTest, HtbServesLeavesByTheirOwnPrio) {
    shell("tc qdisc add dev p0 root handle 1: htb && "
          "tc class add dev p0 parent 1: classid 1:1 htb rate 2mbit quantum 2000 && "
          "tc class add dev p0 parent 1:1 classid 1:2 htb rate 8kbit ceil 2mbit prio 0 quantum 2000 && "
          "tc class add dev p0 parent 1:1 classid 1:3 htb rate 8kbit ceil 2mbit prio 7 quantum 2000 && "
          "tc class add dev p0 parent 1:2 classid 1:20 htb rate 8kbit ceil 2mbit prio 3 quantum 2000 && "
          "tc class add dev p0 parent 1:3 classid 1:30 htb rate 8kbit ceil 2mbit prio 1 quantum 2000");
    send_datagrams(200, 0x10020);
    send_datagrams(200, 0x10030);
    std::this_thread::sleep_for(300ms); // about 70 packets
    const auto late = reading("p0", 0x10020).sent_packets;
    const auto early = reading("p0", 0x10030).sent_packets;
    EXPECT_GT(early, 40U);
    EXPECT_LT(late, 20U);
    EXPECT_TRUE(check_below(tree("p0"), 0x10020, 0x10030));
    EXPECT_FALSE(check_below(tree("p0"), 0x10030, 0x10020));
}

// ---- events

class NetlinkEventsTest : public NetlinkTest {
  protected:
    void SetUp() override {
        NetlinkTest::SetUp();
        if (IsSkipped() || HasFatalFailure())
            return;
        auto opened = NetlinkEvents::open();
        ASSERT_TRUE(opened) << opened.error().text();
        events_ = std::make_unique<NetlinkEvents>(std::move(*opened));
    }

    void TearDown() override {
        events_.reset();
        NetlinkTest::TearDown();
    }

    bool readable() {
        pollfd waiting{.fd = events_->fd(), .events = POLLIN, .revents = 0};
        return ::poll(&waiting, 1, 0) == 1;
    }

    EventBatch drain() {
        auto batch = events_->drain();
        EXPECT_TRUE(batch) << batch.error().text();
        return batch ? std::move(*batch) : EventBatch{};
    }

  private:
    std::unique_ptr<NetlinkEvents> events_;
};

auto is_event(int ifindex, const std::string &name, bool deleted) {
    return testing::AllOf(Field(&LinkEvent::ifindex, ifindex), Field(&LinkEvent::name, name),
                          Field(&LinkEvent::deleted, deleted));
}

TEST_F(NetlinkEventsTest, TellsOfPortsThatComeChangeAndGo) {
    EXPECT_FALSE(readable());
    EXPECT_THAT(drain().links, IsEmpty());

    shell("ip link add q0 type veth peer name q1");
    const int q0 = index_of("q0");
    EXPECT_TRUE(readable());
    EXPECT_THAT(drain().links, Contains(is_event(q0, "q0", false)));
    EXPECT_FALSE(readable());

    shell("ip link set q0 name q7");
    EXPECT_THAT(drain().links, ElementsAre(is_event(q0, "q7", false)));
    shell("ip link set q7 address 02:00:00:00:00:77");
    EXPECT_THAT(drain().links, ElementsAre(is_event(q0, "q7", false)));
    shell("ip link del q7");
    EXPECT_THAT(drain().links, Contains(is_event(q0, "q7", true)));
}

TEST_F(NetlinkEventsTest, LeavingABridgeIsNoDeletion) {
    shell("ip link add br0 type bridge && ip link set p0 master br0");
    static_cast<void>(drain());
    shell("ip link set p0 nomaster");
    const EventBatch batch = drain();
    EXPECT_THAT(batch.links, Contains(is_event(index_of("p0"), "p0", false)));
    EXPECT_THAT(batch.links, Not(Contains(Field(&LinkEvent::deleted, true))));
}

TEST_F(NetlinkEventsTest, TellsOfQdiscsAndClasses) {
    for (const char *command : {"qdisc add dev p0 root handle 1: htb",
                                "class add dev p0 parent 1: classid 1:1 htb rate 1mbit quantum 2000",
                                "class change dev p0 parent 1: classid 1:1 htb rate 2mbit quantum 2000",
                                "qdisc add dev p0 parent 1:1 handle 2: pfifo",
                                "qdisc replace dev p0 root handle 9: pfifo", "qdisc del dev p0 root"}) {
        shell(fmt::format("tc {}", command));
        EXPECT_THAT(drain().tc_ports, ElementsAre(index_of("p0"))) << command;
    }
}

/// A request for a single qdisc would be answered to every listener: ours must stay silent, whoever polls.
TEST_F(NetlinkEventsTest, ReadingMakesNoEvents) {
    shell("tc qdisc add dev p0 root handle 1: htb default 1 && "
          "tc class add dev p0 parent 1: classid 1:1 htb rate 1mbit quantum 2000");
    static_cast<void>(drain());
    static_cast<void>(reading("p0", 0x10001));
    static_cast<void>(tree("p0"));
    static_cast<void>(link("p0"));
    EXPECT_FALSE(readable());
}

TEST_F(NetlinkEventsTest, AsksForResyncAfterALossAndGoesOn) {
    std::string batch;
    for (int i = 0; i < 6000; ++i)
        batch += fmt::format("link set p1 mtu {}\n", 1400 + i % 2);
    const auto file = std::filesystem::temp_directory_path() / fmt::format("spillway-flood-{}", ::getpid());
    std::ofstream(file) << batch;
    shell("ip -batch " + file.string());
    std::filesystem::remove(file);

    bool resync = false;
    for (int i = 0; readable() && i < 100; ++i)
        resync = drain().resync || resync;
    EXPECT_TRUE(resync);
    shell("ip link set p0 down"); // before 6.2 an interface that is up keeps its name
    drain();
    shell("ip link set p0 name q7");
    const EventBatch after = drain();
    EXPECT_FALSE(after.resync);
    EXPECT_THAT(after.links, ElementsAre(is_event(index_of("q7"), "q7", false)));
}

// ---- setup

using SetupTest = NetlinkTest;

TEST_F(SetupTest, MakesTheTreeOnceAndOnlyOnce) {
    const Outcome first = setup("200mbit");
    ASSERT_DONE(first);
    EXPECT_THAT(first.said, HasSubstr("tc qdisc replace dev p0 root handle 1: htb default 10\n"));
    EXPECT_THAT(first.said, Not(HasSubstr("Warning")));
    const TcTree made = tree("p0");
    for (const auto &[classid, handle] :
         {std::pair{0x10005U, 0x50000U}, {0x10010U, 0x100000U}, {0x10020U, 0x200000U}}) {
        const auto leaf = resolve_leaf(made, classid);
        ASSERT_TRUE(leaf) << leaf.error().text;
        EXPECT_EQ(leaf->handle, handle);
        EXPECT_EQ(leaf->kind, "pfifo");
    }
    EXPECT_TRUE(check_below(made, 0x10020, 0x10010));
    EXPECT_TRUE(check_below(made, 0x10010, 0x10005));

    auto events = NetlinkEvents::open();
    ASSERT_TRUE(events);
    const Outcome second = setup("0.2gbit");
    ASSERT_DONE(second);
    EXPECT_EQ(second.said, "p0: has this tree at 200mbit already; nothing to do\n");
    EXPECT_THAT(events->drain()->tc_ports, IsEmpty());
}

TEST_F(SetupTest, IsIdempotentAtOddAndExtremeRates) {
    for (const char *rate : {"1mbit", "333333333", "1.23456789gbit", "40gbit", "10tbit"}) {
        ASSERT_DONE(setup(rate)) << rate;
        const Outcome again = setup(rate);
        ASSERT_DONE(again);
        EXPECT_THAT(again.said, HasSubstr("nothing to do")) << rate;
    }
}

TEST_F(SetupTest, ClassifiesByPriorityAndElseToTheNormalClass) {
    ASSERT_DONE(setup("200mbit"));
    send_datagrams(3);
    send_datagrams(5, 0x10020);
    send_datagrams(7, 0x10005);
    std::this_thread::sleep_for(50ms);
    EXPECT_EQ(reading("p0", 0x10010).sent_packets, 3U);
    EXPECT_EQ(reading("p0", 0x10020).sent_packets, 5U);
    EXPECT_EQ(reading("p0", 0x10005).sent_packets, 7U);
}

TEST_F(SetupTest, ChangesTheRateWithoutLosingQueuedPackets) {
    ASSERT_DONE(setup("1mbit"));
    send_datagrams(300);
    ASSERT_GT(reading("p0", 0x10010).backlog_packets, 200U);
    const Outcome faster = setup("100mbit");
    ASSERT_DONE(faster);
    EXPECT_THAT(faster.said, Not(HasSubstr("tc qdisc")));
    for (int i = 0; i < 200 && reading("p0", 0x10010).backlog_packets > 0; ++i)
        std::this_thread::sleep_for(10ms);
    const TcCounters after = reading("p0", 0x10010);
    EXPECT_EQ(after.sent_packets, 300U);
    EXPECT_EQ(after.drops, 0U);
}

TEST_F(SetupTest, RefusesForeignTreesUnlessForced) {
    for (const char *foreign : {"handle 7: pfifo", "handle 1: pfifo", "handle 1: htb default 10", "bfifo",
                                "handle 1: tbf rate 1mbit burst 10k limit 100k"}) {
        shell("tc qdisc del dev p0 root 2>/dev/null; tc qdisc add dev p0 root " + std::string(foreign));
        const Outcome refused = setup("200mbit");
        ASSERT_FALSE(refused.result) << foreign;
        EXPECT_THAT(refused.result.error().text(), HasSubstr("HINT: ")) << foreign;
        EXPECT_THAT(refused.result.error().hint, HasSubstr("--force")) << foreign;
        EXPECT_EQ(refused.said, "") << foreign;
        EXPECT_EQ(tree("p0").classes.size(), std::string(foreign).find("tbf") == std::string::npos ? 0U : 1U);
        ASSERT_DONE(setup("200mbit", true)) << foreign;
        EXPECT_THAT(setup("200mbit").said, HasSubstr("nothing to do")) << foreign;
    }
}

TEST_F(SetupTest, KeepsAClsactOfOthers) {
    shell("tc qdisc add dev p0 clsact");
    ASSERT_DONE(setup("200mbit"));
    EXPECT_THAT(tree("p0").qdiscs, Contains(Field(&Qdisc::kind, "clsact")));
    EXPECT_THAT(setup("200mbit").said, HasSubstr("nothing to do"));
}

TEST_F(SetupTest, DryRunChangesNothing) {
    const Outcome dry = setup("200mbit", false, true);
    ASSERT_DONE(dry);
    EXPECT_EQ(std::ranges::count(dry.said, '\n'), 8);
    EXPECT_EQ(find_root(tree("p0"))->kind, "noqueue");
}

TEST_F(SetupTest, PrintsCommandsThatCanBePastedOutsideTheNamespace) {
    std::ostringstream out;
    const auto done = setup_port({.port = "p0", .rate = "200mbit", .netns = "sw1", .dry_run = true}, out);
    ASSERT_TRUE(done) << done.error().text();
    EXPECT_THAT(out.str(),
                testing::StartsWith("tc -n sw1 qdisc replace dev p0 root handle 1: htb default 10\n"));
    EXPECT_EQ(std::ranges::count(out.str(), '\n'), 8);
}

TEST_F(SetupTest, TakesBackAHalfMadeTree) {
    const FailingTc failing("1:20");
    const Outcome outcome = setup("200mbit");
    ASSERT_FALSE(outcome.result);
    EXPECT_EQ(outcome.result.error().kind, ErrorKind::failed);
    EXPECT_THAT(outcome.result.error().message(), HasSubstr("Error: poisoned."));
    EXPECT_THAT(outcome.result.error().message(), Not(HasSubstr("could not take back")));
    EXPECT_EQ(find_root(tree("p0"))->kind, "noqueue");
}

TEST_F(SetupTest, LeavesAForeignTreeWhereTheFirstStepFails) {
    shell("tc qdisc add dev p0 root handle 7: pfifo");
    const FailingTc failing("replace");
    ASSERT_FALSE(setup("200mbit", true).result);
    EXPECT_EQ(find_root(tree("p0"))->handle, 0x70000U);
}

TEST_F(SetupTest, TakesBackAHalfChangedRate) {
    ASSERT_DONE(setup("200mbit"));
    {
        const FailingTc failing("1:20");
        ASSERT_FALSE(setup("1gbit").result);
    }
    EXPECT_THAT(setup("200mbit").said, HasSubstr("nothing to do"));
}

TEST_F(SetupTest, NamesTheRemedyForWhatIsMissing) {
    const auto error = [](const Outcome &outcome) {
        return outcome.result ? Error{} : outcome.result.error();
    };
    const Error no_port = error(setup("200mbit", false, false, "nosuch0"));
    EXPECT_THAT(no_port.text(), HasSubstr("nosuch0: there is no such port"));
    EXPECT_EQ(no_port.kind, ErrorKind::failed);
    EXPECT_THAT(error(setup("200mbit", false, false, "lo")).text(), HasSubstr("loopback"));
    EXPECT_EQ(error(setup("")).kind, ErrorKind::usage);
    EXPECT_THAT(error(setup("")).hint, HasSubstr("--rate"));
    std::ostringstream out;
    for (const auto &[kind, sentence] :
         {std::pair{"prio", "prio has no rate"}, {"ets", "ets has no rate"}, {"hfsc", "unknown kind"}}) {
        const auto refused = setup_port({.port = "p0", .kind = kind, .rate = "1gbit"}, out);
        ASSERT_FALSE(refused);
        EXPECT_EQ(refused.error().kind, ErrorKind::usage);
        EXPECT_THAT(refused.error().text(), HasSubstr(sentence));
        EXPECT_THAT(refused.error().text(), HasSubstr("HINT: "));
    }
    EXPECT_EQ(out.str(), "");

    const std::string path = std::getenv("PATH");
    ::setenv("PATH", "/nonexistent", 1);
    const Error no_tc = error(setup("200mbit"));
    ::setenv("PATH", path.c_str(), 1);
    EXPECT_THAT(no_tc.message(), HasSubstr("no program tc"));
    EXPECT_THAT(no_tc.hint, HasSubstr("iproute2"));
    EXPECT_EQ(find_root(tree("p0"))->kind, "noqueue");
}

TEST_F(SetupTest, SaysWhenThePrivilegeIsMissing) {
    Outcome outcome;
    Outcome dry;
    // Capabilities are a thread's own, and a new thread stays in the namespace.
    std::thread([&outcome, &dry] {
        __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
        const std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> none{};
        EXPECT_EQ(::syscall(SYS_capset, &header, none.data()), 0);
        outcome = setup("200mbit");
        dry = setup("200mbit", false, true);
    }).join();
    ASSERT_FALSE(outcome.result);
    EXPECT_THAT(outcome.result.error().message(), HasSubstr("no privilege"));
    EXPECT_THAT(outcome.result.error().hint, HasSubstr("root"));
    EXPECT_TRUE(dry.result);
    EXPECT_EQ(find_root(tree("p0"))->kind, "noqueue");
}

} // namespace
} // namespace spillway
