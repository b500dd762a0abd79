// SPDX-License-Identifier: Apache-2.0
/// R4a, R4d, R4e on the wire: what the receiver and the next node see of the priority fields of isolated
/// packets.
#include "tests/netns/scenario.h"

#include <gmock/gmock.h>

namespace {

using namespace spillway::lab;
using nlohmann::json;
using Bytes = std::vector<std::uint8_t>;

constexpr const char *both_classes = "qdisc add dev eth1 root handle 1: htb default 10";

/// HTB with a normal and a low class, and nothing that knows of spillway.
void plain_tree(const Namespace &ns) {
    ns.tc(both_classes);
    ns.tc("class add dev eth1 parent 1: classid 1:1 htb rate 1gbit");
    ns.tc("class add dev eth1 parent 1:1 classid 1:10 htb prio 0 rate 990mbit ceil 1gbit");
    ns.tc("class add dev eth1 parent 1:1 classid 1:20 htb prio 1 rate 10mbit ceil 1gbit");
}

/// The plain one-class queue of eth1 at 1 Gbit/s: nothing waits, marks are made by hand.
json rewriting(const json &rewrite, bool isolate_class) {
    json queue{{"class", "1:10"}};
    if (isolate_class)
        queue["isolate_class"] = "1:20";
    return {{"ports", {{{"name", "eth1"}, {"queues", {queue}}, {"rewrite", rewrite}}}}};
}

void mark(const Agent &agent, const std::string &flow) {
    const Output marked = agent.command({"mark", flow, "--port", "eth1"});
    ASSERT_EQ(marked.code, 0) << marked.err;
}

/// Address and port as FLOW writes them.
std::string end(const std::string &address, int port) {
    return address.find(':') == std::string::npos ? fmt::format("{}:{}", address, port)
                                                  : fmt::format("[{}]:{}", address, port);
}

/// Of the captured packets to UDP or TCP port 6000: how many have which TOS byte or traffic class.
std::map<unsigned, std::size_t> priorities(const std::vector<Frame> &frames) {
    std::map<unsigned, std::size_t> seen;
    for (const Frame &frame : frames) {
        const Bytes &b = frame.bytes;
        if (b.size() < 58)
            continue;
        const bool v6 = b[12] == 0x86 && b[13] == 0xdd;
        const std::size_t ports = v6 ? 54 : 34;
        if ((b[ports + 2] << 8U | b[ports + 3]) == 6000)
            seen[v6 ? (b[14] << 4U | b[15] >> 4U) & 0xffU : b[15]]++;
    }
    return seen;
}

// R4a, R4d: DSCP with isolate_class; a next node without an agent sorts by it. IPv4 and IPv6.
TEST(Rewrite, NextNodeWithoutAgentSortsByDscp) {
    for (const int family : {4, 6}) {
        SCOPED_TRACE(family);
        const Chain chain(2);
        setup(chain.node(1), "eth1", "1gbit");
        plain_tree(chain.node(2));
        chain.node(2).tc("filter add dev eth1 parent 1: protocol ip prio 1 u32 match ip dsfield 0x04 0xfc "
                         "flowid 1:20");
        chain.node(2).tc(
            "filter add dev eth1 parent 1: protocol ipv6 prio 2 u32 match ip6 priority 0x04 0xfc "
            "flowid 1:20");
        const Agent agent(chain.node(1), rewriting({{"dscp", 1}}, true));
        const std::string from = chain.host_address(family), to = chain.receiver_address(family);
        mark(agent, fmt::format("udp {} {}", end(from, 5000), end(to, 6000)));
        Traffic sink(chain.receiver(), "sink --port 6000 --ports 2");
        Traffic(chain.host(),
                fmt::format("flood --to {} --port 6000 --from-port 5000 --mbit 5 --seconds 0.5", to))
            .result();
        const auto low = class_stats(chain.node(2), "eth1", "1:20").packets;
        const json received = sink.stop();
        EXPECT_GT(low, scaled(100));
        EXPECT_EQ(low, received["received"]);
        EXPECT_EQ(class_stats(chain.node(1), "eth1", "1:20").packets, low);
        EXPECT_EQ(received["late"], 0);
    }
}

// R4a alone, with a priority tag; a bridge without an agent sorts by PCP, and the receiver takes the packets.
TEST(Rewrite, NextNodeWithoutAgentSortsByPcp) {
    const Chain chain(2, {.bridged = {2}});
    plain_tree(chain.node(1));
    plain_tree(chain.node(2));
    Words filter = words("tc filter add dev eth1 parent 1: prio 1 bpf bytecode");
    filter.emplace_back("5,32 0 0 4294963244,116 0 0 13,21 0 1 1,6 0 0 4294967295,6 0 0 0"); // tag's PCP is 1
    for (const char *word : {"flowid", "1:20"})
        filter.emplace_back(word);
    must(chain.node(2), filter);
    const Agent agent(chain.node(1), rewriting({{"pcp", 1}, {"tag_untagged", true}}, false));
    mark(agent, fmt::format("udp {}:5000 {}:6000", chain.host_address(), chain.receiver_address()));
    Capture wire(chain.receiver(), "eth0");
    Traffic sink(chain.receiver(), "sink --port 6000");
    Traffic(chain.host(), fmt::format("flood --to {} --port 6000 --from-port 5000 --mbit 5 --seconds 0.5",
                                      chain.receiver_address()))
        .result();
    const json received = sink.stop();
    EXPECT_GT(received["received"], scaled(100));
    EXPECT_EQ(received["lost"], 0);
    EXPECT_EQ(class_stats(chain.node(2), "eth1", "1:20").packets, received["received"]);
    EXPECT_EQ(class_stats(chain.node(1), "eth1", "1:20").packets, 0U) << "there is no isolation class";
    std::size_t tagged = 0;
    for (const Frame &frame : wire.frames())
        tagged += frame.vlan_tci == 0x2000 ? 1 : 0;
    EXPECT_EQ(tagged, received["received"]);
}

// R4a, R4e: tags that come in the metadata keep VID and DEI, and a lower PCP stays; untagged packets stay so.
TEST(Rewrite, TagsOnABridge) {
    const Chain chain(1, {.bridged = {1}});
    plain_tree(chain.node(1));
    const Agent agent(chain.node(1), rewriting({{"pcp", 0}}, true));
    mark(agent, "udp 10.9.9.1:4660 10.9.9.2:22136");
    Capture wire(chain.receiver(), "eth0");
    const auto send = [&](std::optional<unsigned> tci) {
        const Bytes addresses{0x02, 0, 0, 0, 2, 0, 0x02, 0, 0, 0, 0, 1};
        const Bytes packet{0x08, 0x00, 0x45, 0,    0,   0x24, 0xab, 0xcd, 0x40, 0,   0x40,
                           0x11, 0x63, 0x00, 10,   9,   9,    1,    10,   9,    9,   2,
                           0x12, 0x34, 0x56, 0x78, 0,   0x10, 0,    0,    's',  'p', 'i',
                           'l',  'l',  'w',  'a',  'y', 0,    0,    0,    0,    0,   0};
        Bytes frame;
        const auto add = [&frame](const Bytes &more) { std::ranges::copy(more, std::back_inserter(frame)); };
        add(addresses);
        if (tci)
            add({0x81, 0x00, static_cast<std::uint8_t>(*tci >> 8U), static_cast<std::uint8_t>(*tci)});
        add(packet);
        inject(chain.host(), "eth1", frame);
    };
    const auto arrived = [&] {
        std::vector<std::optional<std::uint16_t>> tags;
        for (const Frame &frame : wire.frames())
            if (frame.bytes.size() > 50 && frame.bytes[12] == 0x08 && frame.bytes[26] == 10 &&
                frame.bytes[27] == 9)
                tags.push_back(frame.vlan_tci);
        return tags;
    };
    for (const std::optional<unsigned> tci :
         std::initializer_list<std::optional<unsigned>>{0xb064, 0x2064, 0x1064, {}})
        send(tci);
    EXPECT_TRUE(eventually(3, [&] { return arrived().size() == 4; }));
    EXPECT_THAT(arrived(), testing::ElementsAre(0x1064, // PCP 5 → 0; DEI and VID 100 as they were
                                                0x2064, // PCP 1 is lower than 0
                                                0x1064, std::nullopt));
}

struct Stack {
    const char *name;
    int family;
};

class RewriteOffload : public testing::TestWithParam<Stack> {};

std::uint64_t snmp(const Namespace &ns, const std::string &counter) {
    return std::stoull(
        must(ns, {"sh", "-c", "nstat -az " + counter + " | awk '$1==\"" + counter + "\"{print $2}'"}).out);
}

// R4a with checksums and segmentation left to the device: the receiver finds no packet broken, every packet
// of the marked flow is lowered, and its ECN bits are the sender's.
TEST_P(RewriteOffload, GsoPacketsArriveWhole) {
    const Chain chain(1, {.link = {.offloads = true}});
    plain_tree(chain.node(1));
    chain.host().sysctl("ipv4/tcp_ecn", "1");
    chain.receiver().sysctl("ipv4/tcp_ecn", "1");
    const Agent agent(chain.node(1), rewriting({{"dscp", 1}}, true));
    const int family = GetParam().family;
    const std::string to = chain.receiver_address(family);
    mark(agent, fmt::format("tcp {} {}", end(chain.host_address(family), 5000), end(to, 6000)));
    Capture wire(chain.receiver(), "eth0");
    Traffic sink(chain.receiver(), "tcp-sink --port 6000");
    const json sent =
        Traffic(chain.host(),
                fmt::format("tcp-send --to {} --port 6000 --from-port 5000 --mbit 200 --dscp 10 "
                            "--seconds 1",
                            to))
            .result();
    EXPECT_GT(sent["mbit"], scaled(100)) << sent;
    const auto seen = priorities(wire.frames());
    std::size_t largest = 0;
    for (const Frame &frame : wire.frames())
        largest = std::max(largest, frame.bytes.size());
    EXPECT_GT(largest, 1600U) << "no packet was larger than the MTU: the offloads were not tried";
    EXPECT_GT(seen.contains(0x06) ? seen.at(0x06) : 0, 20U) << "ECT(0) with DSCP 1";
    for (const auto &[tos, count] : seen)
        EXPECT_EQ(tos >> 2U, 1U) << count << " packets";
    EXPECT_EQ(snmp(chain.receiver(), "TcpInCsumErrors"), 0U);
    EXPECT_EQ(snmp(chain.receiver(), "IpInHdrErrors"), 0U);
    EXPECT_EQ(snmp(chain.receiver(), "Ip6InHdrErrors"), 0U);
}

INSTANTIATE_TEST_SUITE_P(, RewriteOffload, testing::Values(Stack{"IPv4", 4}, Stack{"IPv6", 6}),
                         [](const auto &info) { return std::string(info.param.name); });

// A mark by hand where only the fields are rewritten, and the error where nothing would be done.
TEST(Rewrite, IsChecked) {
    const Chain chain(1);
    plain_tree(chain.node(1));
    const Agent agent(chain.node(1), rewriting({{"dscp", 1}, {"pcp", 1}}, false));
    const Output checked = agent.command({"check", "--config", agent.config_file()});
    EXPECT_EQ(checked.code, 0) << checked.err;
    EXPECT_THAT(checked.out, testing::HasSubstr("eth1  1:10   pcp 1 dscp 1  -"));
    EXPECT_EQ(agent.command({"mark", "udp 10.0.0.1:5000 10.0.0.2:6000", "--port", "eth1"}).code, 0);
}

} // namespace
