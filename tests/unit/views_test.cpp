// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/views.h"
#include "agent/core/flow_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace spillway {
namespace {

using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::uint64_t ns_per_ms = 1'000'000;
constexpr std::uint64_t now = 100'000 * ns_per_ms;
constexpr std::uint32_t eth1 = 7;

constexpr std::uint64_t ago(std::uint64_t ms) {
    return now - ms * ns_per_ms;
}

spillway_flow_key key_of(const std::string &text, std::uint32_t port = eth1) {
    auto key = parse_flow(std::vector{text}).value();
    key.port = port;
    return key;
}

spillway_flow local_mark() {
    spillway_flow flow{};
    flow.mark = SPILLWAY_MARK_CONGESTED;
    flow.state = SPILLWAY_STATE_ISOLATED;
    flow.origin = SPILLWAY_ORIGIN_LOCAL;
    flow.marked_ns = ago(3200);
    flow.last_seen_ns = ago(12);
    flow.local_until_ns = now + 500 * ns_per_ms;
    flow.packets = 1234;
    flow.bytes = 1776960;
    flow.classid = 0x10020;
    return flow;
}

/// A running agent that serves eth1, whose queue is above its waterlines, and waits for eth2.
Snapshot one_port() {
    Snapshot snapshot;
    snapshot.instance = "lab";
    snapshot.now_ns = now;
    snapshot.agent_running = true;
    snapshot.settings.abi = SPILLWAY_ABI;
    snapshot.settings.agent_pid = 4711;
    std::strcpy(snapshot.settings.version, "1.2.3");
    snapshot.settings.heartbeat_ns = ago(5);
    snapshot.settings.stale_agent_ns = 5000 * ns_per_ms;
    snapshot.settings.stale_ns = 50 * ns_per_ms;
    snapshot.settings.idle_ns = 1000 * ns_per_ms;
    snapshot.settings.life_ns = 1000 * ns_per_ms;
    snapshot.settings.clear_ns = 30000 * ns_per_ms;
    snapshot.settings.source = SPILLWAY_SOURCE_POLL;
    snapshot.flows_capacity = 65536;

    snapshot.ports.resize(port_slots);
    spillway_port &port = snapshot.ports[eth1];
    port.ifindex = eth1;
    std::strcpy(port.name, "eth1");
    port.first_queue = 3;
    port.queue_count = 1;
    port.trap = SPILLWAY_TRAP_NATIVE;
    port.attach = SPILLWAY_ATTACH_TCX;
    spillway_port &absent = snapshot.ports[SPILLWAY_PORTS_MAX];
    std::strcpy(absent.name, "eth2");
    absent.waiting = SPILLWAY_WAITING_NO_PORT;

    snapshot.queues.resize(SPILLWAY_QUEUES_MAX);
    spillway_queue &queue = snapshot.queues[3];
    queue.ifindex = eth1;
    queue.isolation_count = 1;
    queue.waterline = {.probability = SPILLWAY_PROBABILITY_ONE / 10,
                       .low = 50000,
                       .high = 200000,
                       .unit = SPILLWAY_UNIT_BYTES,
                       .set = 1};
    queue.level = SPILLWAY_LEVEL_ABOVE;
    queue.normal.classid = 0x10010;
    queue.normal.generation = 1;
    queue.normal.read_ns = ago(20);
    queue.normal.backlog_bytes = 301000;
    queue.normal.backlog_packets = 201;
    queue.isolation[0].classid = 0x10020;
    queue.isolation[0].generation = 1;
    queue.marked_total = 2;
    queue.restored_total = 1;

    snapshot.counters[{eth1, SPILLWAY_CIP_SENT}] = 3;
    snapshot.counters[{eth1, SPILLWAY_REJECTED_TOO_SHORT}] = 4;
    snapshot.counters[{0, SPILLWAY_LOST_EVENTS}] = 5;
    snapshot.counters[{eth1, SPILLWAY_LOST_EVENTS}] = 6;

    spillway_flow flow = local_mark();
    flow.queue = 3;
    snapshot.flows.emplace_back(key_of("udp 10.0.0.1:5000 10.0.0.2:6000"), flow);
    snapshot.interfaces = {{eth1, "eth1"}, {9, "eth0"}};
    return snapshot;
}

TEST(StatusView, JsonOfAServedAndAnAbsentPort) {
    EXPECT_EQ(
        status_json(status_view(one_port())),
        R"({"schema":1,"instance":"lab","mode":"isolate",)"
        R"("agent":{"running":true,"pid":4711,"version":"1.2.3"},)"
        R"("ports":[)"
        R"({"name":"eth1","ifindex":7,"waiting":null,"xdp":"native","tc":"tcx","source":"poll","degraded":[],)"
        R"("queues":[{"class":"1:10","isolate_class":["1:20"],"backlog":{"bytes":301000,"packets":201},)"
        R"("waterline":{"low":50000,"high":200000,"probability":0.1,"unit":"bytes"},"level":"above",)"
        R"("marked_total":2,"restored_total":1,"suspect_total":0,"would_mark_total":0}],"rewrite":null,)"
        R"("cip":{"sent":3,"received":0,"accepted":0,"rejected":{"too_short":4,"bad_version":0,"bad_header":0,)"
        R"("too_many_extensions":0,"not_ip":0,"too_many_tags":0,"nested_tunnel":0,"bad_type":0,"bad_family":0,"bad_flags":0,"not_accepted":0,"rate_limited":0,"table_full":0,"quota":0}}},)"
        R"({"name":"eth2","ifindex":null,"waiting":"no_port","xdp":"off","tc":"off","source":null,"degraded":[],)"
        R"("queues":[],"rewrite":null,"cip":{"sent":0,"received":0,"accepted":0,"rejected":{"too_short":0,"bad_version":0,)"
        R"("bad_header":0,"too_many_extensions":0,"not_ip":0,"too_many_tags":0,"nested_tunnel":0,"bad_type":0,"bad_family":0,"bad_flags":0,"not_accepted":0,"rate_limited":0,"table_full":0,"quota":0}}}],)"
        R"("flows":{"congested":1,"entries":1,"capacity":65536},)"
        R"("lost":{"events":11,"table_full":0,"cip_rate":0,"cip_send":0,"no_upstream":0,"suspects":0,"parse":0,"entries":0,"handover":0}})"
        "\n");
}

TEST(StatusView, TextOfTheSame) {
    EXPECT_EQ(status_text(status_view(one_port())),
              R"(instance  lab, isolate
agent     running, pid 4711, version 1.2.3
flows     1 congested, 1 in a table of 65536
lost      events 11
rejected  eth1: too_short 4

PORT  STATE             TRAP    TC   SOURCE  CIP-SENT  RECEIVED  ACCEPTED  REJECTED  DEGRADED
eth1  served            native  tcx  poll           3         0         0         4  -
eth2  waiting: no_port  off     off  -              0         0         0         0  -

PORT  QUEUE  ISOLATES  LEVEL   BYTES  PACKETS  WATERLINE            MARKED  RESTORED
eth1  1:10   1:20      above  301000      201  50000..200000 bytes       2         1
)");
}

TEST(StatusView, ShowsWhatIsRewritten) {
    Snapshot snapshot = one_port();
    snapshot.ports[eth1].flags = SPILLWAY_PORT_REWRITE_DSCP | SPILLWAY_PORT_REWRITE_PCP;
    snapshot.ports[eth1].rewrite_pcp = 0;
    snapshot.ports[eth1].rewrite_dscp = 8;
    EXPECT_THAT(status_json(status_view(snapshot)),
                HasSubstr(R"("rewrite":{"pcp":0,"dscp":8,"ecn":false,"tag_untagged":false})"));
    EXPECT_THAT(status_text(status_view(snapshot)), HasSubstr("1:20 pcp 0 dscp 8"));
    snapshot.ports[eth1].flags = SPILLWAY_PORT_REWRITE_PCP | SPILLWAY_PORT_TAG_UNTAGGED;
    snapshot.ports[eth1].rewrite_pcp = 1;
    EXPECT_THAT(status_json(status_view(snapshot)),
                HasSubstr(R"("rewrite":{"pcp":1,"dscp":null,"ecn":false,"tag_untagged":true})"));
    EXPECT_THAT(status_text(status_view(snapshot)), HasSubstr("1:20 tag+pcp 1"));
}

TEST(StatusView, DetachedPortIsNotServed) {
    Snapshot snapshot = one_port();
    snapshot.ports[eth1].attach = SPILLWAY_ATTACH_OFF;
    EXPECT_THAT(status_text(status_view(snapshot)), HasSubstr("eth1  detached"));
}

TEST(StatusView, WithoutTheAgentNothingIsKnownOfQueues) {
    Snapshot snapshot = one_port();
    snapshot.agent_running = false;
    const auto view = status_view(snapshot);
    EXPECT_EQ(view.pid, std::nullopt);
    EXPECT_EQ(view.version, std::nullopt);
    EXPECT_THAT(view.ports[0].degraded, ElementsAre("agent_stale"));
    EXPECT_EQ(view.ports[0].queues[0].level, "unknown");
    EXPECT_EQ(view.ports[0].queues[0].backlog_bytes, std::nullopt);
    EXPECT_EQ(view.ports[0].queues[0].marked_total, 2);
    EXPECT_THAT(status_json(view), HasSubstr(R"("agent":{"running":false,"pid":null,"version":null})"));
    EXPECT_THAT(status_json(view), HasSubstr(R"("backlog":{"bytes":null,"packets":null})"));
    EXPECT_THAT(status_text(view), HasSubstr("agent     not running\n"));
    EXPECT_THAT(status_text(view), HasSubstr("unknown      -        -"));
}

TEST(StatusView, AHungAgentIsStale) {
    Snapshot snapshot = one_port();
    snapshot.settings.heartbeat_ns = ago(5001);
    EXPECT_THAT(status_view(snapshot).ports[0].degraded, ElementsAre("agent_stale"));
}

TEST(StatusView, AReadingIsFreshForASecondOrForStaleMs) {
    Snapshot snapshot = one_port();
    const auto level = [&snapshot](std::uint64_t age_ms, std::uint64_t stale_ms) {
        snapshot.queues[3].normal.read_ns = ago(age_ms);
        snapshot.settings.stale_ns = stale_ms * ns_per_ms;
        return status_view(snapshot).ports[0].queues[0].level;
    };
    EXPECT_EQ(level(999, 50), "above");
    EXPECT_EQ(level(1000, 50), "unknown");
    EXPECT_EQ(level(1999, 2000), "above");
    EXPECT_EQ(level(2000, 2000), "unknown");
    snapshot.queues[3].normal.generation = 0; // the class is gone, the reading is of what was there before
    EXPECT_EQ(level(1, 50), "unknown");
}

TEST(StatusView, AReadingFromTheFutureIsFresh) {
    Snapshot snapshot = one_port();
    snapshot.queues[3].normal.read_ns = now + ns_per_ms; // another CPU's clock
    snapshot.settings.heartbeat_ns = now + ns_per_ms;
    EXPECT_EQ(status_view(snapshot).ports[0].queues[0].level, "above");
    EXPECT_THAT(status_view(snapshot).ports[0].degraded, IsEmpty());
}

TEST(StatusView, PanicIsTheMode) {
    Snapshot snapshot = one_port();
    snapshot.settings.panic = 1;
    EXPECT_THAT(status_json(status_view(snapshot)), HasSubstr(R"("mode":"panic")"));
    EXPECT_THAT(
        status_text(status_view(snapshot)),
        HasSubstr("instance  lab, panic\n"
                  "          every packet passes untouched, until `spillway --instance lab resume`\n"));
}

TEST(StatusView, NamesOfReasons) {
    Snapshot snapshot = one_port();
    const auto waiting = [&snapshot](spillway_waiting reason) {
        snapshot.ports[eth1].waiting = reason;
        return status_view(snapshot).ports[0].waiting;
    };
    EXPECT_EQ(waiting(SPILLWAY_WAITING_NO), std::nullopt);
    EXPECT_EQ(waiting(SPILLWAY_WAITING_NO_PORT), "no_port");
    EXPECT_EQ(waiting(SPILLWAY_WAITING_NO_CLASS), "no_class");
    EXPECT_EQ(waiting(SPILLWAY_WAITING_NOQUEUE), "noqueue");
    EXPECT_EQ(waiting(SPILLWAY_WAITING_NOT_BELOW), "not_below");
    EXPECT_EQ(waiting(SPILLWAY_WAITING_FOREIGN_XDP), "foreign_xdp");
    EXPECT_EQ(waiting(SPILLWAY_WAITING_NO_PRIVILEGE), "no_privilege");
    EXPECT_EQ(waiting(SPILLWAY_WAITING_PORT_DOWN), "port_down");
    EXPECT_EQ(waiting(static_cast<spillway_waiting>(15)), "unknown");
    snapshot.ports[eth1].degraded = SPILLWAY_DEGRADED_POLL_ONLY | SPILLWAY_DEGRADED_TC_TRAP |
                                    SPILLWAY_DEGRADED_GENERIC_XDP | SPILLWAY_DEGRADED_DRAIN_UNKNOWN |
                                    SPILLWAY_DEGRADED_CLSACT;
    EXPECT_THAT(status_view(snapshot).ports[0].degraded,
                ElementsAre("poll_only", "tc_trap", "generic_xdp", "drain_unknown", "clsact"));
}

TEST(StatusView, AWaitingPortOrAQueueWithoutWaterlineHasNoSource) {
    Snapshot snapshot = one_port();
    snapshot.ports[eth1].waiting = SPILLWAY_WAITING_PORT_DOWN;
    EXPECT_EQ(status_view(snapshot).ports[0].source, std::nullopt);
    snapshot.ports[eth1].waiting = SPILLWAY_WAITING_NO;
    snapshot.queues[3].waterline = {};
    const auto view = status_view(snapshot);
    EXPECT_EQ(view.ports[0].source, std::nullopt);
    EXPECT_THAT(status_json(view), HasSubstr(R"("waterline":null)"));
}

TEST(StatusView, QueuesOfAnotherPortAreNotShown) {
    Snapshot snapshot = one_port();
    snapshot.ports[eth1].queue_count = 2; // the next entry is not (yet) this port's
    EXPECT_EQ(status_view(snapshot).ports[0].queues.size(), 1);
    snapshot.ports[eth1].first_queue = SPILLWAY_QUEUES_MAX - 1;
    snapshot.ports[eth1].queue_count = 0xffffffff;
    EXPECT_EQ(status_view(snapshot).ports[0].queues.size(), 0);
}

TEST(StatusView, AReleasedSlotIsNoPort) {
    Snapshot snapshot = one_port();
    snapshot.ports[eth1].ifindex = 0; // its name is still there
    EXPECT_THAT(status_view(snapshot).ports, ElementsAre(Field(&PortRow::name, "eth2")));
}

TEST(StatusView, AnAgentThatIsStarting) {
    Snapshot snapshot = one_port();
    snapshot.settings.agent_pid = 0;
    EXPECT_THAT(status_json(status_view(snapshot)),
                HasSubstr(R"({"running":true,"pid":null,"version":null})"));
    EXPECT_THAT(status_text(status_view(snapshot)), HasSubstr("agent     starting\n"));
}

TEST(StatusView, BytesThatAreNoUtf8AreReplaced) {
    Snapshot snapshot = one_port();
    std::strcpy(snapshot.ports[eth1].name, "e\xff");
    EXPECT_THAT(status_json(status_view(snapshot)), HasSubstr("\"name\":\"e\xef\xbf\xbd\""));
}

TEST(StatusView, ANameWithoutRoomForItsNul) {
    Snapshot snapshot = one_port();
    std::memset(snapshot.ports[eth1].name, 'x', SPILLWAY_NAME_MAX);
    EXPECT_EQ(status_view(snapshot).ports[1].name, std::string(SPILLWAY_NAME_MAX, 'x'));
}

TEST(StatusView, RootAndPackets) {
    Snapshot snapshot = one_port();
    snapshot.queues[3].normal.classid = SPILLWAY_CLASS_ROOT;
    snapshot.queues[3].isolation[0].classid = 0;
    snapshot.queues[3].waterline = {.probability = SPILLWAY_PROBABILITY_ONE,
                                    .low = 100,
                                    .high = 100,
                                    .unit = SPILLWAY_UNIT_PACKETS,
                                    .set = 1};
    const auto view = status_view(snapshot);
    EXPECT_THAT(status_json(view), HasSubstr(R"("class":"root","isolate_class":[])"));
    EXPECT_THAT(status_json(view), HasSubstr(R"({"low":100,"high":100,"probability":1.0,"unit":"packets"})"));
    EXPECT_THAT(status_text(view), HasSubstr("100 packets"));
}

TEST(FlowRows, JsonOfALocalMark) {
    EXPECT_EQ(flows_json(flow_rows(one_port(), false)),
              R"({"schema":1,"flows":[{"family":4,"proto":"udp","src":"10.0.0.1","sport":5000,)"
              R"("dst":"10.0.0.2","dport":6000,"vni":null,"port":"eth1","class":"1:20","state":"isolated",)"
              R"("mark":"congested","origin":"local","age_ms":3200,"idle_ms":12,"packets":1234,)"
              R"("bytes":1776960,"upstream":null,"cips_sent":0}]})"
              "\n");
}

TEST(FlowRows, TextOfTheSame) {
    EXPECT_EQ(
        flows_text(flow_rows(one_port(), false)),
        R"(FLOW                             PORT  CLASS  STATE     ORIGIN   AGE  IDLE  PACKETS    BYTES  UPSTREAM  CIPS
udp 10.0.0.1:5000 10.0.0.2:6000  eth1  1:20   isolated  local   3.2s  12ms     1234  1776960  -            0
)");
}

TEST(FlowRows, NoneIsAListToo) {
    Snapshot snapshot = one_port();
    snapshot.flows.clear();
    EXPECT_EQ(flows_json(flow_rows(snapshot, true)), "{\"schema\":1,\"flows\":[]}\n");
    EXPECT_EQ(flows_text(flow_rows(snapshot, true)), "no congested flows\n");
}

TEST(FlowRows, AThreeTupleHasNoPorts) {
    Snapshot snapshot = one_port();
    snapshot.flows = {{key_of("icmpv6 fd00::1 fd00::2"), local_mark()}};
    EXPECT_THAT(flows_json(flow_rows(snapshot, false)),
                HasSubstr(R"("family":6,"proto":"icmpv6","src":"fd00::1","sport":null,)"
                          R"("dst":"fd00::2","dport":null)"));
}

TEST(FlowRows, AMarkThatRanOutUnsweptIsDraining) {
    Snapshot snapshot = one_port();
    auto &flow = snapshot.flows[0].second;
    flow.local_until_ns = ago(1);
    EXPECT_EQ(flow_rows(snapshot, false)[0].state, "draining");
    EXPECT_EQ(flow_rows(snapshot, false)[0].mark, "congested");
    EXPECT_EQ(flow_rows(snapshot, false)[0].origin, "local");

    snapshot.queues[3].normal.busy_ns = ago(999); // as the program saw it
    EXPECT_EQ(flow_rows(snapshot, false)[0].state, "isolated");
    snapshot.queues[3].normal.busy_ns = 0;
    snapshot.queues[3].normal.polled_busy_ns = ago(999); // as the agent saw it
    EXPECT_EQ(flow_rows(snapshot, false)[0].state, "isolated");
    snapshot.queues[3].normal.polled_busy_ns = 0;
    snapshot.queues[3].isolation[0].busy_ns = ago(999);
    EXPECT_EQ(flow_rows(snapshot, false)[0].state, "isolated");
    snapshot.queues[3].ifindex = 8; // reused by another port
    EXPECT_EQ(flow_rows(snapshot, false)[0].state, "draining");
    flow.queue = SPILLWAY_QUEUES_MAX;
    EXPECT_EQ(flow_rows(snapshot, false)[0].state, "draining");
}

TEST(FlowRows, AnIdleFlowIsDrainingHoweverBusyTheQueue) {
    Snapshot snapshot = one_port();
    snapshot.flows[0].second.last_seen_ns = ago(1010);
    snapshot.queues[3].normal.busy_ns = ago(1);
    EXPECT_EQ(flow_rows(snapshot, false)[0].state, "draining");
    snapshot.flows[0].second.manual = 1; // by hand: until taken back
    EXPECT_EQ(flow_rows(snapshot, false)[0].state, "isolated");
    EXPECT_EQ(flow_rows(snapshot, false)[0].origin, "manual");
}

TEST(FlowRows, OnlyAllShowsFlowsThatAreNotMarked) {
    Snapshot snapshot = one_port();
    snapshot.flows[0].second.mark = SPILLWAY_MARK_NORMAL;
    snapshot.flows[0].second.state = SPILLWAY_STATE_NORMAL;
    EXPECT_THAT(flow_rows(snapshot, false), IsEmpty());
    const auto rows = flow_rows(snapshot, true);
    ASSERT_EQ(rows.size(), 1);
    EXPECT_EQ(rows[0].mark, "normal");
    EXPECT_EQ(rows[0].state, "normal");
}

TEST(FlowRows, UpstreamNodeIsFoundWhateverThePort) {
    Snapshot snapshot = one_port();
    spillway_upstream node{};
    node.learned_ns = ago(100);
    node.port = 9;
    node.sent = 3;
    node.mac[0] = 0x02;
    node.mac[5] = 0xab;
    snapshot.upstreams = {{key_of("udp 10.0.0.9:1 10.0.0.2:2", 0), spillway_upstream{}},
                          {key_of("udp 10.0.0.1:5000 10.0.0.2:6000", 0), node},
                          {key_of("udp 10.0.0.0:1 10.0.0.2:2", 0), spillway_upstream{}}};
    auto json = flows_json(flow_rows(snapshot, false));
    EXPECT_THAT(json, HasSubstr(R"("upstream":{"port":"eth0","mac":"02:00:00:00:00:ab"},"cips_sent":3)"));
    EXPECT_THAT(flows_text(flow_rows(snapshot, false)), HasSubstr("eth0 02:00:00:00:00:ab     3"));

    snapshot.upstreams[1].second.learned_ns = 0; // asked for, not found yet
    json = flows_json(flow_rows(snapshot, false));
    EXPECT_THAT(json, HasSubstr(R"("upstream":null,"cips_sent":3)"));
}

TEST(FlowRows, NamesOfPorts) {
    Snapshot snapshot = one_port();
    snapshot.flows = {{key_of("udp 10.0.0.1:1 10.0.0.2:2", 9), local_mark()},
                      {key_of("udp 10.0.0.1:1 10.0.0.2:2", 10), local_mark()},
                      {key_of("udp 10.0.0.1:1 10.0.0.2:2", 0), local_mark()}};
    EXPECT_THAT(
        flow_rows(snapshot, false),
        ElementsAre(Field(&FlowRow::port, "?"), Field(&FlowRow::port, "?"), Field(&FlowRow::port, "eth0")));
}

TEST(FlowRows, ByPortThenOldestFirst) {
    Snapshot snapshot = one_port();
    spillway_flow old = local_mark();
    old.marked_ns = ago(9000);
    snapshot.flows = {{key_of("udp 10.0.0.1:1 10.0.0.2:2"), local_mark()},
                      {key_of("udp 10.0.0.1:3 10.0.0.2:2"), old},
                      {key_of("udp 10.0.0.1:1 10.0.0.2:2", 9), local_mark()}};
    std::vector<std::string> order;
    for (const auto &row : flow_rows(snapshot, false))
        order.push_back(row.port + " " + flow_text(row.key));
    EXPECT_THAT(order, ElementsAre("eth0 udp 10.0.0.1:1 10.0.0.2:2", "eth1 udp 10.0.0.1:3 10.0.0.2:2",
                                   "eth1 udp 10.0.0.1:1 10.0.0.2:2"));
}

TEST(FlowRows, TimesOfTheFutureAreZero) {
    Snapshot snapshot = one_port();
    snapshot.flows[0].second.last_seen_ns = now + 1;
    snapshot.flows[0].second.marked_ns = now + 1;
    snapshot.flows[0].second.classid = 0;
    const auto json = flows_json(flow_rows(snapshot, false));
    EXPECT_THAT(json, HasSubstr(R"("age_ms":0,"idle_ms":0)"));
    EXPECT_THAT(json, HasSubstr(R"("class":null)"));
}

TEST(FlowRows, AgesAreReadable) {
    Snapshot snapshot = one_port();
    const auto text_at = [&snapshot](std::uint64_t ms) {
        snapshot.flows[0].second.marked_ns = ago(ms);
        return flows_text(flow_rows(snapshot, false));
    };
    EXPECT_THAT(text_at(999), HasSubstr("local   999ms"));
    EXPECT_THAT(text_at(59999), HasSubstr("local   59.9s"));
    EXPECT_THAT(text_at(61000), HasSubstr("local   1m01s"));
    snapshot.now_ns += 7'260'000 * ns_per_ms;
    EXPECT_THAT(text_at(0), HasSubstr("2h01m"));
}

TEST(FindExistingPort, TakesPortsThatAreThere) {
    const Snapshot snapshot = one_port();
    EXPECT_EQ(find_existing_port(snapshot.ports, "eth1"), &snapshot.ports[eth1]);
    EXPECT_EQ(find_existing_port(snapshot.ports, "eth2"), nullptr);
    EXPECT_EQ(find_existing_port(snapshot.ports, "eth"), nullptr);
    EXPECT_EQ(find_existing_port(snapshot.ports, ""), nullptr);
}

} // namespace
} // namespace spillway
