// SPDX-License-Identifier: Apache-2.0
/// What `doctor` says of a port in a namespace.
#include "agent/core/fd.h"
#include "agent/kernel/tcx.h"
#include "tests/bpf_program.h"
#include "tests/netns/lacking.h"
#include "tests/netns/scenario.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fmt/format.h>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <net/if.h>

namespace spillway::lab {
namespace {

using nlohmann::json;
using testing::ContainsRegex;
using testing::HasSubstr;

class DoctorOf : public testing::Test {
  protected:
    DoctorOf() {
        node.ip("link add eth0 numtxqueues 2 numrxqueues 2 type veth peer eth1 numtxqueues 2 numrxqueues 2");
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

TEST_F(DoctorOf, TcProgramsOfOthersAreNamed) {
    setup(node, "eth0", "100mbit");
    const Fd program = make_program(BPF_PROG_TYPE_SCHED_CLS, "stranger", -1);
    Fd link; // none before Linux 6.6
    node.call([&] {
        const auto port = static_cast<int>(::if_nametoindex("eth0"));
        LIBBPF_OPTS(bpf_tc_hook, clsact, .ifindex = port, .attach_point = BPF_TC_INGRESS);
        LIBBPF_OPTS(bpf_tc_opts, filter, .prog_fd = program.get());
        ASSERT_EQ(bpf_tc_hook_create(&clsact), 0);
        ASSERT_EQ(bpf_tc_attach(&clsact, &filter), 0);
        link = Fd(bpf_link_create(program.get(), port, tcx_egress, nullptr));
    });
    const json found = check("tc_programs");
    EXPECT_EQ(found["level"], "note");
    EXPECT_THAT(found["text"].get<std::string>(),
                ContainsRegex(R"(bpf stranger:\[[0-9]+\] at clsact ingress)"));
    if (link) {
        EXPECT_THAT(found["text"].get<std::string>(),
                    ContainsRegex(R"(stranger \(id [0-9]+\) at tcx egress)"));
    }
    EXPECT_EQ(code, 0);
}

TEST_F(DoctorOf, XdpProgramOfOthersIsNamed) {
    setup(node, "eth0", "100mbit");
    const Fd program = make_program(BPF_PROG_TYPE_XDP, "stranger", XDP_PASS);
    node.call([&] {
        ASSERT_EQ(bpf_xdp_attach(static_cast<int>(::if_nametoindex("eth0")), program.get(), 0, nullptr), 0);
    });
    const json found = check("xdp");
    EXPECT_EQ(found["level"], "note");
    EXPECT_THAT(found["text"].get<std::string>(), ContainsRegex(R"(stranger \(id [0-9]+\))"));
}

TEST_F(DoctorOf, FilterThatSetsThePriorityAnewIsAProblem) {
    setup(node, "eth0", "100mbit");
    node.tc("qdisc add dev eth0 clsact");
    SPILLWAY_MAKE_OR_SKIP(node, "tc filter add dev eth0 egress matchall action skbedit priority 1:10");
    const json found = check("tc_programs");
    EXPECT_EQ(found["level"], "problem");
    EXPECT_THAT(found["text"].get<std::string>(), HasSubstr("matchall at clsact egress"));
    EXPECT_EQ(code, 1);
}

TEST_F(DoctorOf, MemberOfABond) {
    SPILLWAY_MAKE_OR_SKIP(node, "ip link add bond0 type bond");
    node.ip("link set eth0 down");
    node.ip("link set eth0 master bond0");
    EXPECT_THAT(check("master")["text"].get<std::string>(), HasSubstr("it belongs to the bond bond0"));
}

TEST_F(DoctorOf, TransmitQueuesThatTheSenderChooses) {
    node.tc("qdisc replace dev eth0 root handle 8: mq");
    EXPECT_THAT(check("xps")["text"].get<std::string>(),
                HasSubstr("a hash chooses one of 2 transmit queues"));
    // Here the mounted /sys is that of the namespace; for the program under test it is the machine's.
    ASSERT_EQ(run({"ip", "netns", "exec", node.name(), "sh", "-c",
                   "echo 1 >/sys/class/net/eth0/queues/tx-0/xps_cpus"})
                  .code,
              0);
    const json found = check("xps");
    EXPECT_EQ(found["level"], "note");
    EXPECT_THAT(found["text"].get<std::string>(), HasSubstr("XPS lets the sending CPU choose"));
    EXPECT_EQ(check("classes")["level"], "problem");
}

TEST_F(DoctorOf, AnotherInstanceIsNamed) {
    setup(node, "eth0", "100mbit");
    const Agent other(node, configuration(ways[0], {"eth0"}));
    const json programs = check("tc_programs");
    EXPECT_NE(programs["level"], "fine");
    EXPECT_THAT(programs["text"].get<std::string>(), HasSubstr(other.instance()));
}

} // namespace
} // namespace spillway::lab
