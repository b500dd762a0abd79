// SPDX-License-Identifier: Apache-2.0
/// Every check of `doctor`, at each level that it can have, from facts that no host need have.
#include "agent/cli/checks_views.h"
#include "agent/doctor/diagnosis.h"

#include <cerrno>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/pkt_sched.h>
#include <nlohmann/json.hpp>
#include <set>

namespace spillway {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::UnorderedElementsAreArray;

constexpr TcHandle class_10 = tc_handle(1, 0x10);
constexpr TcHandle class_20 = tc_handle(1, 0x20);
constexpr TcHandle at_egress = TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_EGRESS);
constexpr TcHandle at_ingress = TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS);

Qdisc qdisc(std::string kind, TcHandle handle, TcHandle parent) {
    return {.kind = std::move(kind), .handle = handle, .parent = parent};
}

TcClass htb_class(TcHandle handle, std::uint32_t prio, std::uint64_t rate) {
    return {.kind = "htb",
            .handle = handle,
            .parent = tc_root,
            .htb = HtbClass{.prio = prio, .rate = rate, .ceil = 200'000'000}};
}

TcClass band(std::string kind, std::uint32_t minor) {
    return {.kind = std::move(kind), .handle = tc_handle(1, minor), .parent = tc_handle(1, 0)};
}

/// prio or ets with three bands.
TcTree banded_tree(const std::string &kind, const Bands &bands) {
    TcTree tree{.ifindex = 1, .qdiscs = {qdisc(kind, tc_handle(1, 0), tc_root)}, .classes = {}};
    tree.qdiscs[0].bands = bands;
    for (std::uint32_t minor = 1; minor <= 3; minor++) {
        tree.classes.push_back(band(kind, minor));
        tree.qdiscs.push_back(qdisc("pfifo", tc_handle(0x10 + minor, 0), tc_handle(1, minor)));
    }
    return tree;
}

/// A host on which all is well: eth1 with queue 1:10, isolated into 1:20.
class Doctor : public testing::Test {
  protected:
    Doctor() {
        QueueConfig queue;
        queue.queue_class = ClassId{class_10};
        queue.isolate_class = {ClassId{class_20}};
        queue.waterline = WaterlineConfig{};
        PortConfig eth1;
        eth1.name = "eth1";
        eth1.queues = {queue};
        facts.config.file = "/etc/spillway/spillway.json";
        facts.config.config.ports = {eth1};
        facts.host.has_btf = true;
        facts.host.links = {link(1, "eth1")};
        facts.host.trees[1] = {
            .ifindex = 1,
            .qdiscs = {qdisc("htb", tc_handle(1, 0), tc_root), qdisc("pfifo", tc_handle(0x10, 0), class_10),
                       qdisc("pfifo", tc_handle(0x20, 0), class_20)},
            .classes = {htb_class(class_10, 1, 198'000'000), htb_class(class_20, 2, 1'000'000)}};
        facts.bpf = {
            .refusal = 0, .programs = {}, .queue_read = true, .ring_buffer = true, .tc_hook = TcHook::tcx};
        facts.system.bpf_filesystem = true;
        facts.ports[1].driver = "ixgbe";
        facts.ports[1].features = std::set<std::string>{"rx-gro", "tx-tcp-segmentation"};
        facts.ports[1].xdp_features = xdp_basic;
        facts.ports[1].xps = false;
    }

    static LinkInfo link(int ifindex, std::string name, std::string kind = "") {
        LinkInfo made;
        made.ifindex = ifindex;
        made.name = std::move(name);
        made.kind = std::move(kind);
        made.arp_type = 1;
        made.up = true;
        made.tx_queues = 4;
        return made;
    }

    PortConfig &config() { return facts.config.config.ports[0]; }
    LinkInfo &eth1() { return facts.host.links[0]; }
    TcTree &tree() { return facts.host.trees[1]; }
    PortFacts &port() { return facts.ports[1]; }
    HtbClass &isolation() { return *tree().classes[1].htb; }

    /// All checks of this id.
    [[nodiscard]] std::vector<Check> all(const std::string &id) const {
        std::vector<Check> found;
        for (const Check &check : diagnose(facts))
            if (check.id == id)
                found.push_back(check);
        return found;
    }
    /// The one check of this id.
    [[nodiscard]] Check only(const std::string &id) const {
        const auto found = all(id);
        EXPECT_EQ(found.size(), 1U) << id;
        return found.empty() ? Check{} : found.front();
    }
    void expect_fine(const std::string &id, const std::string &says) const {
        const Check check = only(id);
        EXPECT_EQ(check.level, Level::fine) << check.text;
        EXPECT_THAT(check.text, HasSubstr(says));
        EXPECT_EQ(check.remedy, "");
    }
    void expect_note(const std::string &id, const std::string &says, const std::string &remedy = "") const {
        const Check check = only(id);
        EXPECT_EQ(check.level, Level::note) << check.text;
        EXPECT_THAT(check.text, HasSubstr(says));
        EXPECT_THAT(check.remedy, HasSubstr(remedy));
        EXPECT_EQ(check.remedy.empty(), remedy.empty()) << check.remedy;
    }
    void expect_problem(const std::string &id, const std::string &says, const std::string &remedy) const {
        const Check check = only(id);
        EXPECT_EQ(check.level, Level::problem) << check.text;
        EXPECT_THAT(check.text, HasSubstr(says));
        EXPECT_THAT(check.remedy, HasSubstr(remedy));
    }

    HostFacts facts;
};

TEST_F(Doctor, AllIsWell) {
    const auto checks = diagnose(facts);
    for (const Check &check : checks) {
        EXPECT_EQ(check.level, Level::fine) << check.text;
        EXPECT_FALSE(check.text.empty()) << check.id;
        EXPECT_EQ(check.port.empty(), !check.text.starts_with("eth1: ")) << check.text;
    }
    std::vector<std::string> ids;
    for (const Check &check : checks)
        ids.push_back(check.id);
    EXPECT_THAT(ids, UnorderedElementsAreArray(check_ids));
}

TEST_F(Doctor, ProblemsComeFirstThenNotesTheHostBeforeItsPorts) {
    facts.bpf.tc_hook = TcHook::clsact;
    port().features->insert("rx-lro");
    port().switch_chip = true;
    facts.host.has_btf = false;
    std::vector<std::string> ids;
    for (const Check &check : diagnose(facts))
        if (check.level != Level::fine)
            ids.push_back(check.id);
    EXPECT_THAT(ids, testing::ElementsAre("btf", "switchdev", "tc_hook", "lro"));
}

// ---- the host

TEST_F(Doctor, Privilege) {
    expect_fine("privilege", "capabilities");
    facts.host.missing_capabilities = {"BPF", "PERFMON"};
    expect_problem("privilege", "BPF, PERFMON", "run as root");
}

TEST_F(Doctor, BpfRefused) {
    facts.bpf = {.refusal = EPERM};
    expect_problem("bpf", "refuses every BPF program", "run as root");
    for (const char *untried : {"programs", "kernel_read", "ring_buffer", "tc_hook"})
        EXPECT_THAT(all(untried), IsEmpty()) << untried;
    facts.bpf = {.refusal = ENOSYS};
    expect_problem("bpf", "refuses every BPF program", "CONFIG_BPF_SYSCALL");
}

TEST_F(Doctor, ProgramsRefused) {
    facts.bpf.programs = Error{.operation = "load BPF programs", .detail = "R1 is sad"};
    expect_problem("programs", "R1 is sad", "5.10");
    facts.bpf.programs->hint = "be root";
    expect_problem("programs", "R1 is sad", "be root");
}

TEST_F(Doctor, TypeInformation) {
    facts.host.has_btf = false;
    expect_problem("btf", "no type information", "CONFIG_DEBUG_INFO_BTF=y");
}

TEST_F(Doctor, KernelRead) {
    expect_fine("kernel_read", "read queues themselves");
    facts.bpf.queue_read = false;
    expect_note("kernel_read", "the agent polls them", "newer kernel");
    facts.config.config.detection.source = DetectionSource::kernel;
    expect_problem("kernel_read", "detection.source", "auto");
}

TEST_F(Doctor, RingBuffer) {
    facts.bpf.ring_buffer = false;
    expect_problem("ring_buffer", "no BPF ring buffers", "5.8");
}

TEST_F(Doctor, TcHookKinds) {
    expect_fine("tc_hook", "tcx");
    facts.bpf.tc_hook = TcHook::clsact;
    expect_note("tc_hook", "clsact", "6.6");
    facts.bpf.tc_hook = TcHook::none;
    expect_problem("tc_hook", "neither", "modprobe sch_ingress");
    facts.bpf.tc_hook.reset();
    EXPECT_THAT(all("tc_hook"), IsEmpty());
}

TEST_F(Doctor, Lockdown) {
    expect_fine("lockdown", "no lockdown");
    for (const char *harmless : {"none", "integrity"}) {
        facts.system.lockdown = harmless;
        expect_fine("lockdown", harmless);
    }
    facts.system.lockdown = "confidentiality";
    expect_fine("lockdown", "all the same");
    facts.bpf.queue_read = false;
    expect_note("lockdown", "confidentiality", "lockdown=integrity");
}

TEST_F(Doctor, BpfFileSystem) {
    facts.system.bpf_filesystem = false;
    expect_note("bpffs", "/sys/fs/bpf", "mount -t bpf");
}

TEST_F(Doctor, Configuration) {
    expect_fine("configuration", "names these ports of the host: eth1");
    facts.config.config.ports[0].name = "eth7";
    expect_fine("configuration", "none");
    expect_problem("port", "no interface has this name", "ip -br link");
    EXPECT_EQ(only("port").port, "eth7");
}

TEST_F(Doctor, NoConfiguration) {
    facts.config.absent = true;
    facts.config.fault = Error{.operation = "read"};
    expect_note("configuration",
                "there is no configuration /etc/spillway/spillway.json; looked at instead: eth1",
                "man spillway.json");
    facts.config.config.ports.clear();
    expect_note("configuration", "no port is looked at", "--config");
}

TEST_F(Doctor, FaultyConfiguration) {
    facts.config.fault =
        Error{.operation = "configuration", .detail = "ports is no list", .hint = "make it one"};
    expect_problem("configuration", "ports is no list; looked at instead: eth1", "make it one");
}

TEST_F(Doctor, ForwardPriority) {
    expect_fine("forward_priority", "does not forward");
    facts.system.forwards_ipv4 = true;
    expect_fine("forward_priority", "leaves packets");
    facts.system.forwarding_sets_priority = true;
    expect_fine("forward_priority", "no qdisc here");
    for (const char *kind : {"prio", "ets", "pfifo_fast", "mqprio"}) {
        tree().qdiscs[0].kind = kind;
        expect_note("forward_priority", std::string("eth1 (") + kind + ")", "ip_forward_update_priority=0");
    }
}

TEST_F(Doctor, BridgeNetfilter) {
    facts.system.bridge_netfilter = {"iptables", "arptables"};
    expect_fine("bridge_netfilter", "no bridged packet");
    facts.host.links.push_back(link(2, "br0", "bridge"));
    expect_note("bridge_netfilter", "iptables, arptables",
                "sysctl -w net.bridge.bridge-nf-call-iptables=0 net.bridge.bridge-nf-call-arptables=0");
    facts.system.bridge_netfilter.clear();
    expect_fine("bridge_netfilter", "no bridged packet");
}

// ---- a port

TEST_F(Doctor, PortState) {
    expect_fine("port", "driver ixgbe");
    port().driver.clear();
    expect_fine("port", "it is up");
    eth1().up = false;
    expect_problem("port", "it is down", "ip link set eth1 up");
    eth1().arp_type = 772;
    expect_problem("port", "no Ethernet frames", "Ethernet ports only");
    EXPECT_THAT(all("xdp"), IsEmpty()) << "nothing else is said of it";
}

TEST_F(Doctor, SwitchChip) {
    port().switch_chip = true;
    expect_problem("switchdev", "never meet the CPU", "hw-tc-offload off");
}

TEST_F(Doctor, Noqueue) {
    expect_fine("noqueue", "htb");
    tree() = {.ifindex = 1, .qdiscs = {qdisc("noqueue", 0, tc_root)}, .classes = {}};
    expect_problem("noqueue", "queue 1:10", "spillway setup eth1 --rate RATE");
    for (const char *unsaid : {"classes", "isolation_class", "drain", "share"})
        EXPECT_THAT(all(unsaid), IsEmpty()) << unsaid;
    config().queues.clear();
    expect_fine("noqueue", "no queue is configured");
}

TEST_F(Doctor, Classes) {
    expect_fine("classes", "1:10");
    config().queues[0].queue_class = ClassId{tc_handle(1, 0x99)};
    expect_problem("classes", "queue 1:99: there is no class 1:99", "tc class show dev eth1");
    config().queues.clear();
    EXPECT_THAT(all("classes"), IsEmpty());
}

TEST_F(Doctor, IsolationClass) {
    expect_fine("isolation_class", "1:20 is served after 1:10");
    isolation().prio = 1;
    expect_problem("isolation_class", "1:20 is not served after 1:10", "larger prio");
    EXPECT_THAT(all("drain"), IsEmpty());
}

TEST_F(Doctor, NoIsolationClass) {
    config().queues[0].isolate_class.clear();
    expect_note("isolation_class", "upstream nodes only", "isolate_class");
    config().rewrite.dscp = 1;
    expect_fine("isolation_class", "lower priority to the next node");
}

TEST_F(Doctor, IsolationClassWithoutAConfiguration) {
    facts.config.fault = Error{.operation = "read"};
    config().queues.clear();
    expect_fine("isolation_class", "1:20 is served after 1:10: it can isolate");
    isolation().prio = 1;
    expect_note("isolation_class", "no class that is served after another", "spillway setup eth1");
}

TEST_F(Doctor, Drain) {
    expect_fine("drain", "1:20 is a FIFO");
    tree().qdiscs[2].kind = "fq_codel";
    expect_note("drain", "fq_codel", "tc qdisc replace dev eth1 parent 1:20 pfifo");
}

TEST_F(Doctor, ShareOfHtb) {
    expect_fine("share", "0.5 %");
    isolation().rate = 100'000;
    expect_note("share", "only 0.05 %", "0.1 to 1 %");
    isolation().rate = 12'112;
    expect_note("share", "only", "0.1 to 1 %");
    isolation().rate = 12'111;
    expect_problem("share", "more than a second", "0.1 to 1 %");
    isolation().rate = 50'000'000;
    expect_note("share", "25 %", "0.1 to 1 %");
    isolation().rate = 1'000'000;
    isolation().ceil = 20'000'000;
    expect_note("share", "10 % of what class 1:10 may", "same ceil as class 1:10");
}

TEST_F(Doctor, ShareOfBands) {
    config().queues[0].queue_class = ClassId{tc_handle(1, 2)};
    config().queues[0].isolate_class = {ClassId{tc_handle(1, 3)}};
    tree() = banded_tree("prio", {.count = 3, .strict = 3});
    expect_note("share", "1:3 is served only while the bands before it are empty", "spillway setup eth1");
    tree() = banded_tree("ets", {.count = 3, .strict = 3});
    expect_note("share", "1:3 is served only", "spillway setup eth1");
    tree() = banded_tree("ets", {.count = 3, .strict = 1, .quanta = {199, 1}});
    expect_fine("share", "0.5 %");
}

TEST_F(Doctor, TransmitQueues) {
    expect_fine("xps", "one qdisc tree");
    tree().qdiscs[0].kind = "mq";
    expect_note("xps", "a hash chooses one of 4 transmit queues", "spillway setup eth1");
    port().xps = true;
    expect_note("xps", "XPS lets the sending CPU choose", "spillway setup eth1");
    config().queues.clear();
    expect_fine("xps", "no queue is configured");
    facts.config.fault = Error{.operation = "read"};
    expect_note("xps", "XPS", "spillway setup eth1");
}

TEST_F(Doctor, Filters) {
    port().filters = {{.parent = at_egress, .filter = {.kind = "matchall"}},
                      {.parent = tc_handle(1, 0), .filter = {.kind = "u32"}},
                      {.parent = tc_handle(1, 0), .filter = {.kind = "u32"}},
                      {.parent = tc_handle(1, 1), .filter = {.kind = "flower"}}};
    expect_note("filters", "judged them: u32 at 1:, flower at 1:1;", "meta priority set");
    port().filters.clear();
    expect_fine("filters", "no filter");
}

TEST_F(Doctor, TcPrograms) {
    facts.host.own_programs = {7};
    port().tcx = {{.egress = true, .id = 7, .name = "spillway_isolat"}};
    port().filters = {{.parent = at_egress,
                       .filter = {.kind = "bpf", .handle = 1, .priority = 1, .program = "spillway_isolat"},
                       .own = true}};
    expect_fine("tc_programs", "no TC program of others");
    port().tcx.push_back({.egress = false, .id = 9, .name = "cil_from_netdev"});
    port().filters.push_back(
        {.parent = at_ingress, .filter = {.kind = "bpf", .program = "bpf.o:[classifier]"}});
    expect_note("tc_programs",
                "cil_from_netdev (id 9) at tcx ingress, bpf bpf.o:[classifier] at clsact ingress",
                "bpftool net show dev eth1");
}

TEST_F(Doctor, TcProgramsOfAnotherInstance) {
    port().tcx = {{.egress = true, .id = 8, .name = "spillway_isolat"}};
    expect_problem("tc_programs", "spillway_isolat (id 8) at tcx egress", "one instance");
    facts.host.others[1] = "lab";
    expect_problem("tc_programs", "instance lab", "lab");
}

TEST_F(Doctor, AFilterThatSetsThePriorityAfterUs) {
    port().filters = {{.parent = at_egress,
                       .filter = {.kind = "matchall", .handle = 1, .priority = 9, .sets_priority = true}}};
    expect_problem("tc_programs", "matchall at clsact egress", "skbedit priority");
    port().filters[0].parent = at_ingress;
    expect_note("tc_programs", "matchall at clsact ingress", "tc filter show dev eth1");
}

TEST_F(Doctor, XdpOfOthers) {
    eth1().xdp = XdpMode::native;
    eth1().xdp_program = 42;
    port().xdp_program = "xdp_firewall";
    expect_note("xdp", "xdp_firewall (id 42) of somebody else", "0x8809");
    for (const TrapMode trap : {TrapMode::native, TrapMode::generic}) {
        config().trap = trap;
        expect_problem("xdp", "somebody else", "set trap to auto");
    }
    facts.host.own_programs = {42};
    config().trap = TrapMode::native;
    expect_fine("xdp", "the driver runs XDP");
}

TEST_F(Doctor, XdpOfTheDriver) {
    expect_fine("xdp", "the driver runs XDP");
    port().xdp_features = 0;
    expect_note("xdp", "no XDP programs: CIPs are taken at TC ingress");
    config().trap = TrapMode::native;
    expect_problem("xdp", "as trap asks", "set trap to auto");
    port().xdp_features.reset();
    expect_fine("xdp", "shows when the agent attaches one");
    EXPECT_THAT(only("xdp").text, Not(HasSubstr("TC ingress")));
    config().trap = TrapMode::automatic;
    expect_fine("xdp", "if it does not, CIPs are taken at TC ingress");
    config().trap = TrapMode::generic;
    expect_note("xdp", "generic XDP", "set trap to auto");
    config().trap = TrapMode::tc;
    expect_fine("xdp", "as configured");
    config().trap = TrapMode::automatic;
    eth1().kind = "veth";
    expect_fine("xdp", "TSO");
}

TEST_F(Doctor, Lro) {
    port().features->insert("rx-lro");
    expect_note("lro", "LRO", "ethtool -K eth1 lro off");
}

TEST_F(Doctor, Gro) {
    expect_fine("gro", "waterlines count bytes");
    config().queues[0].waterline->unit = WaterlineUnit::packets;
    expect_note("gro", "64 KB", "count bytes");
    port().features->clear();
    expect_fine("gro", "are off");
}

TEST_F(Doctor, Offloads) {
    expect_fine("offloads", "no offload");
    port().features->insert("rx-vlan-filter");
    expect_fine("offloads", "VLANs of the port only");
    port().features->insert("l2-fwd-offload");
    expect_note("offloads", "macvlan", "l2-fwd-offload off");
    port().features->insert("hw-tc-offload");
    expect_note("offloads", "never meet the CPU", "hw-tc-offload off");
    port().features.reset();
    for (const char *unknown : {"offloads", "lro", "gro"})
        EXPECT_THAT(all(unknown), IsEmpty()) << unknown;
}

TEST_F(Doctor, Members) {
    facts.host.links.push_back(link(2, "bond0", "bond"));
    eth1().master = 2;
    expect_note("master", "it belongs to the bond bond0: CIPs to any unicast address");
    PortConfig bond;
    bond.name = "bond0";
    facts.config.config.ports.push_back(bond);
    expect_note("master", "judged twice", "eth1");
    eth1().master = 99; // in another namespace
    expect_note("master", "interface 99");
}

TEST_F(Doctor, Masters) {
    eth1().kind = "bridge";
    facts.host.links.push_back(link(2, "eth2"));
    facts.host.links.back().master = 1;
    expect_note("master", "what it forwards passes its ports eth2 only", "eth2");
    eth1().kind = "bond";
    expect_note("master", "waits again at its members eth2", "eth2");
}

TEST_F(Doctor, Uppers) {
    expect_fine("upper", "no other device");
    facts.host.links.push_back(link(2, "eth1.5", "vlan"));
    facts.host.links.back().lower = 1;
    expect_fine("upper", "on it stand eth1.5");
    PortConfig vlan;
    vlan.name = "eth1.5";
    facts.config.config.ports.push_back(vlan);
    expect_note("upper", "eth1.5; their packets are judged twice", "name eth1 only");
}

TEST_F(Doctor, PriorityFlowControl) {
    expect_fine("flow_control", "no priority flow control");
    port().dcb = DcbFacts{};
    expect_fine("flow_control", "no priority flow control");
    port().dcb = DcbFacts{.pfc_enabled = 1U << 3U, .prio_tc = {0, 0, 0, 3, 0, 0, 0, 0}};
    expect_note("flow_control", "on for 3: isolated packets keep their priority", "rewrite.pcp");
    config().rewrite.pcp = 1;
    expect_note("flow_control", "not for priority 1", "prio-pfc 1:on");
    port().dcb->pfc_enabled |= 1U << 1U;
    expect_fine("flow_control", "priority 1 and traffic class 0 to themselves");
    port().dcb->prio_tc[1] = 3;
    expect_problem("flow_control", "shares traffic class 3 with priority 3", "prio-tc 1:TC");
}

// ---- output

TEST(DoctorOutput, Json) {
    const std::vector<Check> checks{{.id = "lro",
                                     .level = Level::note,
                                     .port = "eth1",
                                     .text = "eth1: LRO is on",
                                     .remedy = "turn it off"},
                                    {.id = "btf", .level = Level::fine, .text = "there"}};
    EXPECT_EQ(nlohmann::json::parse(checks_json(checks)), nlohmann::json::parse(R"({"schema":1,"checks":[
        {"id":"lro","level":"note","port":"eth1","text":"eth1: LRO is on","remedy":"turn it off"},
        {"id":"btf","level":"fine","port":null,"text":"there","remedy":null}]})"));
}

TEST(DoctorOutput, Text) {
    const std::vector<Check> checks{{.id = "noqueue",
                                     .level = Level::problem,
                                     .port = "eth1",
                                     .text = "eth1: noqueue",
                                     .remedy = "do this"},
                                    {.id = "btf", .level = Level::fine, .text = "there"}};
    EXPECT_EQ(checks_text(checks), "LEVEL    CHECK    FINDING\n"
                                   "problem  noqueue  eth1: noqueue\n"
                                   "                  HINT: do this\n"
                                   "fine     btf      there\n"
                                   "\n"
                                   "problems 1, notes 0, fine 1\n");
}

} // namespace
} // namespace spillway
