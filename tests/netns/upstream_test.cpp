// SPDX-License-Identifier: Apache-2.0
/// CIPs: what they look like, where they go, what they bring about, and what is left alone.
#include "tests/netns/scenario.h"

#include <cmath>
#include <gmock/gmock.h>

namespace {

using namespace spillway::lab;
using nlohmann::json;
using Bytes = std::vector<std::uint8_t>;

constexpr std::uint16_t slow_protocols = 0x8809;

class Upstream : public testing::TestWithParam<Way> {};

// Must show 3: the upstream node's own isolation class carries the elephant within a second of the first CIP.
TEST_P(Upstream, IsolatesToo) {
    const Bottleneck lab;
    const Agent node(lab.node(), configuration(GetParam(), {"eth1"}, {"eth0"}));
    json config = configuration(GetParam(), {"eth1"});
    config["ports"][0]["trap"] = "tc"; // the capture sees frames before TC takes them
    const Agent host(lab.host(), config);
    Capture cips(lab.host(), "eth1", {.ethertype = slow_protocols});
    Traffic sink(lab.receiver(), "sink --port 6000");
    Traffic flood(lab.host(), fmt::format("flood --to {} --port 6000 --mbit 300 --seconds 4",
                                          lab.chain.receiver_address()));
    ASSERT_TRUE(eventually(3, [&] { return !cips.frames().empty(); }));
    EXPECT_TRUE(eventually(1, [&] { return class_stats(lab.host(), "eth1", "1:20").packets > 100; }));
    const auto flows = host.flows();
    ASSERT_EQ(flows.size(), 1U);
    EXPECT_EQ(flows[0]["origin"], "cip");
    EXPECT_EQ(flows[0]["dport"], 6000);
    EXPECT_EQ(flows[0]["port"], "eth1");
    EXPECT_TRUE(flows[0]["upstream"].is_null()) << "made on this host: nobody is further upstream";
    const auto here = node.flows();
    ASSERT_EQ(here.size(), 1U);
    EXPECT_EQ(here[0]["origin"], "local");
    EXPECT_EQ(here[0]["upstream"]["port"], "eth0");
    EXPECT_EQ(here[0]["upstream"]["mac"], "02:00:00:00:00:01");
}

// Must show 3: the captured CIP equals bytes written here: the first is the packet's own headers, verbatim.
TEST_P(Upstream, FirstCipIsTheFlowPacketsHeaders) {
    const Bottleneck lab;
    json config = configuration(GetParam(), {"eth1"}, {"eth0"});
    config["ports"][0]["queues"][0]["waterline"] = {{"low", 0}, {"high", 0}}; // every packet crosses
    config["detection"]["guard"] = "off";
    const Agent node(lab.node(), config);
    Capture cips(lab.host(), "eth1", {.ethertype = slow_protocols});

    // Host 10.0.1.1 → receiver 10.0.2.2, UDP 4660 → 22136, identification 0xabcd, TTL 64, TOS 0x08, payload
    // "spillway".
    const Bytes packet{0x02, 0,    0,    0,    1,    0,    0x02, 0,    0,    0,    0,    1,    0x08, 0x00, //
                       0x45, 0x08, 0x00, 0x24, 0xab, 0xcd, 0x40, 0x00, 0x40, 0x11, 0x77, 0xf1,             //
                       10,   0,    1,    1,    10,   0,    2,    2,                                        //
                       0x12, 0x34, 0x56, 0x78, 0x00, 0x10, 0x00, 0x00,                                     //
                       's',  'p',  'i',  'l',  'l',  'w',  'a',  'y'};
    // The upstream node is learned from the flow's packets once it is suspect: more than one is needed.
    EXPECT_TRUE(eventually(3, [&] {
        inject(lab.host(), "eth1", packet);
        return !cips.frames().empty();
    }));
    ASSERT_FALSE(cips.frames().empty());
    // The router has taken one off the TTL and mended the checksum; the rest is the packet's, padded to 60.
    const Bytes expected{
        0x02, 0,    0,    0,    0,    1,    0x02, 0,    0,    0,    1,    0,    0x88, 0x09, //
        0x45, 0x08, 0x00, 0x24, 0xab, 0xcd, 0x40, 0x00, 0x3f, 0x11, 0x78, 0xf1,             //
        10,   0,    1,    1,    10,   0,    2,    2,                                        //
        0x12, 0x34, 0x56, 0x78, 0x00, 0x10, 0x00, 0x00,                                     //
        0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0, 0, 0, 0};
    EXPECT_EQ(cips.frames().front().bytes, expected);
}

// B1: repeats go on while the flow is held back upstream and sends nothing, as long as its packets wait here.
TEST_P(Upstream, RepeatsGoOnWhileTheFlowIsHeldBack) {
    const Bottleneck lab("5mbit"); // 1000 packets take two seconds
    json config = configuration(GetParam(), {"eth1"}, {"eth0"});
    config["flows"]["idle_timeout_ms"] = 10000;
    const Agent node(lab.node(), config);
    Capture cips(lab.host(), "eth1", {.ethertype = slow_protocols});
    Traffic sink(lab.receiver(), "sink --port 6000");
    Traffic(lab.host(),
            fmt::format("flood --to {} --port 6000 --mbit 50 --seconds 1", lab.chain.receiver_address()))
        .result();
    const std::uint64_t silent = now_ns();
    const auto late = [&] { // the node looked for a sender for a tenth of a second
        return std::ranges::count_if(
            cips.frames(), [&](const Frame &frame) { return frame.time_ns > silent + 300'000'000; });
    };
    EXPECT_TRUE(eventually(2, [&] { return late() >= 3; })) << late() << " of " << cips.frames().size();
}

struct Row {
    std::string name;
    Way way;
    bool bridged = false;
};

class ThreeNodes : public testing::TestWithParam<Row> {};

// Must show 4: three nodes in a row, routed, or the two in the middle bridging: every one isolates, and each
// link carries at most the bound of CIPs.
TEST_P(ThreeNodes, AllIsolateAndCipsAreBounded) {
    const Way &way = GetParam().way;
    Chain chain(2, {.bridged = GetParam().bridged ? std::vector<unsigned>{1, 2} : std::vector<unsigned>{}});
    setup(chain.node(2), "eth1", "100mbit");
    setup(chain.node(1), "eth1", "1gbit");
    setup(chain.host(), "eth1", "1gbit");
    const Agent second(chain.node(2), configuration(way, {"eth1"}, {"eth0"}));
    const Agent first(chain.node(1), configuration(way, {"eth1"}, {"eth0"}));
    const Agent host(chain.host(), configuration(way, {"eth1"}));
    Capture to_first(chain.node(1), "eth1", {.ethertype = slow_protocols});
    Capture to_host(chain.host(), "eth1", {.ethertype = slow_protocols});
    Capture back(chain.node(2), "eth0", {.ethertype = slow_protocols}); // nothing may come from upstream
    Traffic sink(chain.receiver(), "sink --port 6000");
    const double seconds = 4;
    const std::uint64_t start = now_ns();
    Traffic flood(chain.host(), fmt::format("flood --to {} --port 6000 --mbit 150 --seconds {}",
                                            chain.receiver_address(), seconds));
    for (const Agent *agent : {&second, &first, &host})
        EXPECT_TRUE(eventually(3, [&] { return agent->flows().size() == 1; })) << agent->log();
    for (const unsigned node : {2U, 1U, 0U})
        EXPECT_TRUE(
            eventually(2, [&] { return class_stats(chain.node(node), "eth1", "1:20").packets > 100; }))
            << "node " << node;
    EXPECT_EQ(second.flows()[0]["origin"], "local");
    EXPECT_EQ(first.flows()[0]["origin"], "cip");
    EXPECT_EQ(host.flows()[0]["origin"], "cip");
    flood.result();
    for (const Agent *agent : {&second, &first, &host})
        EXPECT_TRUE(eventually(5, [&] { return agent->flows().empty(); })) << agent->flows().dump(1);
    const double congested = static_cast<double>(now_ns() - start) / 1e9;
    for (const Capture *link : {&to_first, &to_host}) {
        EXPECT_GE(link->frames().size(), 3U);
        EXPECT_LE(link->frames().size(), most_cips(congested));
    }
    EXPECT_EQ(back.frames().size(), 0U);
}

std::vector<Row> rows() {
    std::vector<Row> all;
    for (const Way &way : ways)
        for (const bool bridged : {false, true})
            all.push_back({std::string(bridged ? "Bridged" : "Routed") + way.name, way, bridged});
    return all;
}
INSTANTIATE_TEST_SUITE_P(In, ThreeNodes, testing::ValuesIn(rows()),
                         [](const testing::TestParamInfo<Row> &info) { return info.param.name; });

/// A CIP of ours in the headers form about UDP host:5000 → receiver:6000.
Bytes cip(Bytes destination, std::uint16_t ethertype = slow_protocols) {
    Bytes frame = std::move(destination);
    const Bytes rest{0x02,
                     0,
                     0,
                     0,
                     9,
                     9,
                     static_cast<std::uint8_t>(ethertype >> 8U),
                     static_cast<std::uint8_t>(ethertype & 0xffU),
                     0x45,
                     0,
                     0,
                     28,
                     0,
                     0,
                     0,
                     0,
                     64,
                     17,
                     0,
                     0,
                     10,
                     0,
                     1,
                     1,
                     10,
                     0,
                     2,
                     2,
                     0x13,
                     0x88,
                     0x17,
                     0x70,
                     0,
                     8,
                     0,
                     0};
    frame.insert(frame.end(), rest.begin(), rest.end());
    frame.resize(60);
    return frame;
}

// Must show 6: LACP, marker and OAM frames, other EtherTypes and group-addressed frames pass; a CIP does not.
TEST_P(Upstream, TrapTakesOnlyOurFrames) {
    const Bottleneck lab;
    json config = configuration(GetParam(), {"eth1"});
    config["ports"][0]["trap"] = "native"; // drops before the capture, so what is captured has passed
    const Agent host(lab.host(), config);
    ASSERT_EQ(port_status(host.status(), "eth1")["xdp"], "native");
    const Bytes us{0x02, 0, 0, 0, 0, 1};
    const Bytes other{0x02, 0, 0, 0, 7, 7};
    const Bytes group{0x01, 0x80, 0xc2, 0, 0, 2};
    const auto slow = [](const Bytes &destination, std::uint8_t subtype) {
        Bytes frame = cip(destination);
        frame[14] = subtype;
        return frame;
    };
    const std::vector<Bytes> pass{
        slow(group, 1),  slow(group, 2), slow(group, 10), // LACP, marker, OAM
        slow(us, 1),     slow(us, 2),    slow(us, 10),    // the same to our own address
        cip(group),                                       // group-addressed, whatever is in it
        cip(other),                                       // somebody else's
        cip(us, 0x88b5),                                  // another EtherType
    };
    Capture passed(lab.host(), "eth1");
    for (const Bytes &frame : pass)
        inject(lab.node(), "eth0", frame);
    inject(lab.node(), "eth0", cip(us));
    EXPECT_TRUE(eventually(3, [&] { return port_status(host.status(), "eth1")["cip"]["received"] == 1; }));
    std::vector<Bytes> seen;
    for (const Frame &frame : passed.frames())
        seen.push_back(frame.bytes);
    for (const Bytes &frame : pass)
        EXPECT_THAT(seen, testing::Contains(frame));
    EXPECT_THAT(seen, testing::Not(testing::Contains(cip(us))));
    EXPECT_TRUE(eventually(2, [&] { return port_status(host.status(), "eth1")["cip"]["accepted"] == 1; }));
}

// Must show 6 (B7): a CIP about a flow that leaves through another port isolates nothing.
TEST_P(Upstream, CipFromAnotherPortIsolatesNothing) {
    const Bottleneck lab;
    const Agent node(lab.node(), configuration(GetParam(), {"eth1"}, {"eth0"}));
    Traffic sink(lab.receiver(), "sink --port 6000");
    Traffic flood(lab.host(), fmt::format("flood --to {} --port 6000 --from-port 5000 --mbit 20 --seconds 3",
                                          lab.chain.receiver_address()));
    inject(lab.host(), "eth1", cip({0x02, 0, 0, 0, 1, 0})); // arrives on eth0; the flow leaves through eth1
    EXPECT_TRUE(eventually(2, [&] { return port_status(node.status(), "eth0")["cip"]["accepted"] == 1; }));
    flood.result();
    EXPECT_EQ(class_stats(lab.node(), "eth1", "1:20").packets, 0U);
    EXPECT_GT(class_stats(lab.node(), "eth1", "1:10").packets, scaled(1000));
    EXPECT_EQ(sink.stop()["lost"], 0);
}

INSTANTIATE_TEST_SUITE_P(With, Upstream, testing::ValuesIn(ways), way_name);

} // namespace
