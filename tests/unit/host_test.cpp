// SPDX-License-Identifier: Apache-2.0
#include "agent/doctor/host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace spillway {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr TcHandle class_10 = tc_handle(1, 0x10);
constexpr TcHandle class_20 = tc_handle(1, 0x20);

Qdisc qdisc(std::string kind, TcHandle handle, TcHandle parent) {
    Qdisc made;
    made.kind = std::move(kind);
    made.handle = handle;
    made.parent = parent;
    return made;
}

TcClass htb_class(TcHandle handle, std::uint32_t prio) {
    TcClass made;
    made.kind = "htb";
    made.handle = handle;
    made.parent = tc_root;
    made.htb = HtbClass{.prio = prio};
    return made;
}

TcTree htb_tree(int ifindex) {
    return {.ifindex = ifindex,
            .qdiscs = {qdisc("htb", tc_handle(1, 0), tc_root), qdisc("pfifo", tc_handle(0x10, 0), class_10),
                       qdisc("pfifo", tc_handle(0x20, 0), class_20)},
            .classes = {htb_class(class_10, 1), htb_class(class_20, 2)}};
}

LinkInfo ethernet(int ifindex, std::string name) {
    LinkInfo link;
    link.ifindex = ifindex;
    link.name = std::move(name);
    link.arp_type = 1;
    link.up = true;
    return link;
}

/// eth1, which has a queue 1:10 that isolates into 1:20, and eth2 without queues.
Config two_ports() {
    Config config;
    PortConfig eth1;
    eth1.name = "eth1";
    QueueConfig queue;
    queue.queue_class = ClassId{class_10};
    queue.isolate_class = {ClassId{class_20}};
    eth1.queues = {queue};
    PortConfig eth2;
    eth2.name = "eth2";
    config.ports = {eth1, eth2};
    return config;
}

Host good_host() {
    Host host;
    host.has_btf = true;
    host.links = {ethernet(1, "eth1"), ethernet(2, "eth2")};
    host.trees[1] = htb_tree(1);
    host.trees[2] = {.ifindex = 2, .qdiscs = {qdisc("noqueue", 0, tc_root)}, .classes = {}};
    return host;
}

std::vector<std::string> sentences(const Config &config, const Host &host) {
    std::vector<std::string> texts;
    for (const auto &problem : host_problems(config, host)) {
        EXPECT_EQ(problem.error.kind, ErrorKind::usage);
        EXPECT_FALSE(problem.error.hint.empty()) << problem.error.message();
        texts.push_back(problem.error.text());
    }
    return texts;
}

TEST(HostProblems, NoneWhenAllIsThere) {
    EXPECT_THAT(sentences(two_ports(), good_host()), IsEmpty());
}

TEST(HostProblems, NoKernelTypes) {
    Host host = good_host();
    host.has_btf = false;
    EXPECT_THAT(sentences(two_ports(), host),
                ElementsAre(AllOf(HasSubstr("no type information"), HasSubstr("CONFIG_DEBUG_INFO_BTF=y"))));
}

TEST(HostProblems, NoPrivilege) {
    Host host = good_host();
    host.missing_capabilities = {"BPF", "PERFMON"};
    EXPECT_THAT(
        sentences(two_ports(), host),
        ElementsAre(AllOf(HasSubstr("capabilities missing: BPF, PERFMON"), HasSubstr("run as root"))));
}

TEST(HostProblems, AbsentPorts) {
    Config config = two_ports();
    config.ports[1].name = "swp*";
    Host host = good_host();
    host.links = {ethernet(2, "eth2")};
    EXPECT_THAT(sentences(config, host),
                ElementsAre(HasSubstr("port eth1: no interface"), HasSubstr("port swp*: no interface")));
}

TEST(HostProblems, AGlobThatMatchesIsChecked) {
    Config config = two_ports();
    config.ports[0].name = "eth*";
    config.ports.pop_back();
    EXPECT_THAT(sentences(config, good_host()),
                ElementsAre(HasSubstr("port eth2: queue 1:10: there is no class 1:10")));
}

TEST(HostProblems, NotEthernetAndDown) {
    Host host = good_host();
    host.links[0].arp_type = 772;
    host.links[1].up = false;
    EXPECT_THAT(sentences(two_ports(), host),
                ElementsAre(HasSubstr("port eth1: it carries no Ethernet"),
                            AllOf(HasSubstr("port eth2: it is down"), HasSubstr("ip link set eth2 up"))));
}

TEST(HostProblems, Noqueue) {
    Host host = good_host();
    host.trees[1] = host.trees[2];
    EXPECT_THAT(sentences(two_ports(), host),
                ElementsAre(AllOf(HasSubstr("port eth1: queue 1:10: "), HasSubstr("noqueue"),
                                  HasSubstr("spillway setup eth1 --rate RATE"), Not(HasSubstr("PORT")))));
}

TEST(HostProblems, EveryIsolateClassIsJudged) {
    Config config = two_ports();
    config.ports[0].queues[0].isolate_class = {ClassId{tc_handle(1, 0x30)}, ClassId{class_20}};
    Host host = good_host();
    host.trees[1].classes[1].htb->prio = 1;
    EXPECT_THAT(sentences(config, host),
                ElementsAre(HasSubstr("there is no class 1:30"), HasSubstr("1:20 is not served after 1:10")));
}

TEST(HostProblems, CipClassMustBeThere) {
    Config config = two_ports();
    config.ports[0].cip_class = ClassId{tc_handle(1, 5)};
    EXPECT_THAT(sentences(config, good_host()),
                ElementsAre(HasSubstr("port eth1: cip_class 1:5: there is no class 1:5")));
}

TEST(HostProblems, ForeignXdpMattersOnlyWhereXdpIsAskedFor) {
    Config config = two_ports();
    Host host = good_host();
    host.links[0].xdp = XdpMode::native;
    host.links[0].xdp_program = 77;
    EXPECT_THAT(sentences(config, host), IsEmpty());
    config.ports[0].trap = TrapMode::tc;
    EXPECT_THAT(sentences(config, host), IsEmpty());
    for (const TrapMode trap : {TrapMode::native, TrapMode::generic}) {
        config.ports[0].trap = trap;
        EXPECT_THAT(sentences(config, host), ElementsAre(HasSubstr("an XDP program of somebody else")));
    }
    host.own_programs = {77};
    EXPECT_THAT(sentences(config, host), IsEmpty());
}

TEST(HostProblems, AllAreListed) {
    Host host = good_host();
    host.has_btf = false;
    host.links[0].up = false;
    host.trees[1].classes.clear();
    EXPECT_EQ(sentences(two_ports(), host).size(), 3);
}

// Its programs are foreign too, which is not said twice.
TEST(HostProblems, PortOfAnotherInstance) {
    Host host = good_host();
    host.others[1] = "lab";
    host.links[0].xdp = XdpMode::native;
    host.links[0].xdp_program = 4711;
    Config config = two_ports();
    config.ports[0].trap = TrapMode::native;
    const auto problems = host_problems(config, host);
    ASSERT_EQ(problems.size(), 1U);
    EXPECT_THAT(problems[0].error.text(), AllOf(HasSubstr("eth1"), HasSubstr("belongs to instance lab"),
                                                HasSubstr("HINT"), HasSubstr("--instance lab purge")));
    EXPECT_EQ(problems[0].error.kind, ErrorKind::usage);
}

} // namespace
} // namespace spillway
