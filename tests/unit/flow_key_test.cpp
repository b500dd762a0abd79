// SPDX-License-Identifier: Apache-2.0
#include "agent/core/flow_text.h"
#include "tests/prog/packet.h"
#include "tests/unit/guarded_copy.h"

#include <spillway/flow_key.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace spillway {
namespace {

using namespace packet;
using test::GuardedCopy;

struct Parsed {
    spillway_reason reason{};
    spillway_flow_key key{};
    spillway_layout layout{};
};

Parsed parse(const std::uint8_t *begin, const std::uint8_t *end, int tags) {
    Parsed parsed;
    const spillway_tunnels tunnels{.vxlan_ports = {SPILLWAY_VXLAN_PORT, 8472, 0, 0}};
    parsed.reason = spillway_parse_frame(begin, end, tags, &tunnels, &parsed.key, &parsed.layout);
    return parsed;
}

spillway_flow_key key_of(const std::string &text) {
    const std::array<std::string, 1> words{text};
    const auto key = parse_flow(words);
    if (!key)
        throw std::invalid_argument(key.error().text());
    return *key;
}

bool same(const spillway_flow_key &a, const spillway_flow_key &b) {
    return std::memcmp(&a, &b, sizeof(a)) == 0;
}

/// A frame and what the parser is to make of it: a flow, or a reason.
struct Sample {
    const char *what;
    Packet packet;
    const char *flow; ///< null: `reason` instead
    spillway_reason reason = SPILLWAY_OK;
    std::uint32_t network = 14; ///< of a flow
    std::uint32_t end = 0;      ///< of a flow
    int tags = 0;               ///< in metadata
};

const char *const udp4 = "udp 10.0.0.1:5000 10.0.0.2:6000";
const char *const tcp4 = "tcp 10.0.0.1:5000 10.0.0.2:6000";
const char *const udp6 = "udp [fd00::1]:5000 [fd00::2]:6000";
const char *const tcp6 = "tcp [fd00::1]:5000 [fd00::2]:6000";

constexpr std::uint8_t hop_by_hop = 0;
constexpr std::uint8_t routing = 43;
constexpr std::uint8_t destination = 60;

Packet chain(int extensions) {
    Packet packet = Ethernet{} / IPv6{};
    for (int i = 0; i < extensions; i++)
        packet = packet / Extension{.kind = i == 0 ? hop_by_hop : destination};
    return packet / Udp{} / zeros(8);
}

/// Up to the inner Ethernet header.
Packet in_tunnel(const Vxlan &vxlan = {}, std::uint16_t port = 4789) {
    return Ethernet{} / IPv4{.src = "10.9.0.1", .dst = "10.9.0.2"} / Udp{.sport = 40000, .dport = port} /
           vxlan / Ethernet{};
}

std::vector<Sample> samples() {
    return {
        // IPv4
        {"UDP", Ethernet{} / IPv4{} / Udp{} / zeros(20), udp4, SPILLWAY_OK, 14, 42},
        {"TCP", Ethernet{} / IPv4{} / Tcp{} / zeros(20), tcp4, SPILLWAY_OK, 14, 54},
        {"TCP with options", Ethernet{} / IPv4{} / Tcp{.options = Bytes(12, 1)}, tcp4, SPILLWAY_OK, 14, 66},
        {"TCP with the longest header", Ethernet{} / IPv4{} / Tcp{.options = Bytes(40, 1)}, tcp4, SPILLWAY_OK,
         14, 94},
        {"ports at their limits", Ethernet{} / IPv4{} / Udp{.sport = 0, .dport = 65535},
         "udp 10.0.0.1:0 10.0.0.2:65535", SPILLWAY_OK, 14, 42},
        {"IP options", Ethernet{} / IPv4{.options = Bytes(8, 1)} / Udp{} / zeros(4), udp4, SPILLWAY_OK, 14,
         50},
        {"longest IP header", Ethernet{} / IPv4{.options = Bytes(40, 1)} / Tcp{}, tcp4, SPILLWAY_OK, 14, 94},
        {"don't fragment, TOS", Ethernet{} / IPv4{.tos = 0xb8, .dont_fragment = true} / Udp{}, udp4,
         SPILLWAY_OK, 14, 42},
        {"ICMP", Ethernet{} / IPv4{} / Icmp{} / zeros(20), "icmp 10.0.0.1 10.0.0.2", SPILLWAY_OK, 14, 34},
        {"ESP", Ethernet{} / IPv4{} / Raw{.content = Bytes(30, 9), .name_ = {.protocol = 50}},
         "esp 10.0.0.1 10.0.0.2", SPILLWAY_OK, 14, 34},
        {"SCTP has no ports here", Ethernet{} / IPv4{.protocol = 132} / zeros(30), "132 10.0.0.1 10.0.0.2",
         SPILLWAY_OK, 14, 34},
        {"first fragment", Ethernet{} / IPv4{.more_fragments = true} / Udp{} / zeros(24),
         "udp 10.0.0.1 10.0.0.2", SPILLWAY_OK, 14, 34},
        {"later fragment", Ethernet{} / IPv4{.protocol = 17, .fragment_offset = 185} / zeros(24),
         "udp 10.0.0.1 10.0.0.2", SPILLWAY_OK, 14, 34},
        {"middle fragment with the largest offset",
         Ethernet{} / IPv4{.protocol = 6, .more_fragments = true, .fragment_offset = 0x1fff} / zeros(4),
         "tcp 10.0.0.1 10.0.0.2", SPILLWAY_OK, 14, 34},
        {"IHL 4", Ethernet{} / IPv4{.header_words = 4} / Udp{}, nullptr, SPILLWAY_BAD_HEADER},
        {"IHL 0", Ethernet{} / IPv4{.header_words = 0} / Udp{}, nullptr, SPILLWAY_BAD_HEADER},
        {"TCP data offset 4", Ethernet{} / IPv4{} / Tcp{.header_words = 4}, nullptr, SPILLWAY_BAD_HEADER},
        {"version 5", Ethernet{} / IPv4{.version = 5} / Udp{}, nullptr, SPILLWAY_BAD_VERSION},
        {"IPv6 behind IPv4's EtherType", Ethernet{.type = 0x0800} / IPv6{} / Udp{}, nullptr,
         SPILLWAY_BAD_VERSION},
        // IPv6
        {"UDP over IPv6", Ethernet{} / IPv6{} / Udp{} / zeros(20), udp6, SPILLWAY_OK, 14, 62},
        {"TCP over IPv6", Ethernet{} / IPv6{.traffic_class = 0xff, .flow_label = 0xfffff} / Tcp{}, tcp6,
         SPILLWAY_OK, 14, 74},
        {"ICMPv6", Ethernet{} / IPv6{} / Icmp{.v6 = true}, "icmpv6 fd00::1 fd00::2", SPILLWAY_OK, 14, 54},
        {"no next header", Ethernet{} / IPv6{.next_header = 59} / zeros(8), "59 fd00::1 fd00::2", SPILLWAY_OK,
         14, 54},
        {"hop-by-hop", Ethernet{} / IPv6{} / Extension{.kind = hop_by_hop} / Udp{}, udp6, SPILLWAY_OK, 14,
         70},
        {"routing of 40 bytes", Ethernet{} / IPv6{} / Extension{.kind = routing, .extra = 4} / Tcp{}, tcp6,
         SPILLWAY_OK, 14, 114},
        {"AH counts 4-byte units", Ethernet{} / IPv6{} / Authentication{.words = 3} / Udp{} / zeros(4), udp6,
         SPILLWAY_OK, 14, 86},
        {"AH of another length", Ethernet{} / IPv6{} / Authentication{.words = 5} / Tcp{}, tcp6, SPILLWAY_OK,
         14, 106},
        {"atomic fragment", Ethernet{} / IPv6{} / Fragment{} / Udp{}, udp6, SPILLWAY_OK, 14, 70},
        {"reserved byte of a fragment header is no length",
         Ethernet{} / IPv6{} / Fragment{.reserved = 255} / Udp{}, udp6, SPILLWAY_OK, 14, 70},
        {"first fragment of IPv6", Ethernet{} / IPv6{} / Fragment{.more = true} / Udp{} / zeros(8),
         "udp fd00::1 fd00::2", SPILLWAY_OK, 14, 62},
        {"later fragment of IPv6",
         Ethernet{} / IPv6{} / Fragment{.offset = 1} / Raw{.content = Bytes(9, 7), .name_ = {.protocol = 6}},
         "tcp fd00::1 fd00::2", SPILLWAY_OK, 14, 62},
        {"fragment behind hop-by-hop",
         Ethernet{} / IPv6{} / Extension{.kind = hop_by_hop} / Fragment{.more = true} / Udp{},
         "udp fd00::1 fd00::2", SPILLWAY_OK, 14, 70},
        {"every kind of extension",
         Ethernet{} / IPv6{} / Extension{.kind = hop_by_hop} / Extension{.kind = destination} /
             Extension{.kind = routing, .extra = 2} / Fragment{} / Authentication{} /
             Extension{.kind = destination} / Tcp{.options = Bytes(4, 1)},
         tcp6, SPILLWAY_OK, 14, 14 + 40 + 8 + 8 + 24 + 8 + 24 + 8 + 24},
        {"as many extensions as allowed", chain(SPILLWAY_EXTENSIONS_MAX), udp6, SPILLWAY_OK, 14, 110},
        {"one more", chain(SPILLWAY_EXTENSIONS_MAX + 1), nullptr, SPILLWAY_TOO_MANY_EXTENSIONS},
        {"extensions longer than headers may be",
         Ethernet{} / IPv6{} / Extension{.kind = destination, .extra = 255} / Udp{}, nullptr,
         SPILLWAY_TOO_MANY_EXTENSIONS},
        {"IPv4 behind IPv6's EtherType", Ethernet{.type = 0x86dd} / IPv4{} / Tcp{} / zeros(20), nullptr,
         SPILLWAY_BAD_VERSION},
        // Tags
        {"one tag", Ethernet{} / Vlan{.id = 5, .pcp = 3} / IPv4{} / Udp{}, udp4, SPILLWAY_OK, 18, 46},
        {"QinQ", Ethernet{} / Vlan{.proto = 0x88a8} / Vlan{} / IPv6{} / Tcp{}, tcp6, SPILLWAY_OK, 22, 82},
        {"three tags", Ethernet{} / Vlan{.proto = 0x88a8} / Vlan{} / Vlan{} / IPv4{} / Udp{}, nullptr,
         SPILLWAY_TOO_MANY_TAGS},
        {"a tag in metadata and one here", Ethernet{} / Vlan{} / IPv4{} / Udp{}, udp4, SPILLWAY_OK, 18, 46,
         1},
        {"a tag in metadata and two here", Ethernet{} / Vlan{} / Vlan{} / IPv4{} / Udp{}, nullptr,
         SPILLWAY_TOO_MANY_TAGS, 0, 0, 1},
        {"tagged ARP", Ethernet{} / Vlan{.type = 0x0806} / zeros(28), nullptr, SPILLWAY_NOT_IP},
        // VXLAN
        {"VXLAN", in_tunnel() / IPv4{} / Udp{} / zeros(8), "udp 10.0.0.1:5000 10.0.0.2:6000 vni 7",
         SPILLWAY_OK, 14, 14 + 20 + 8 + 8 + 14 + 20 + 8},
        {"on another port of the configuration", in_tunnel({}, 8472) / IPv4{} / Udp{},
         "udp 10.0.0.1:5000 10.0.0.2:6000 vni 7", SPILLWAY_OK, 14, 92},
        {"on a port that is none", in_tunnel({}, 4790) / IPv4{} / Udp{}, "udp 10.9.0.1:40000 10.9.0.2:4790",
         SPILLWAY_OK, 14, 42},
        {"VNI 0", in_tunnel({.vni = 0}) / IPv4{} / Tcp{}, "tcp 10.0.0.1:5000 10.0.0.2:6000 vni 0",
         SPILLWAY_OK, 14, 104},
        {"largest VNI, tagged inside and outside",
         Ethernet{} / Vlan{} / IPv6{} / Udp{.dport = 4789} / Vxlan{.vni = 0xffffff} / Ethernet{} / Vlan{} /
             Vlan{} / IPv6{} / Extension{} / Tcp{.options = Bytes(12, 1)},
         "tcp [fd00::1]:5000 [fd00::2]:6000 vni 16777215", SPILLWAY_OK, 18,
         18 + 40 + 8 + 8 + 14 + 8 + 40 + 8 + 32},
        {"ICMP inside", in_tunnel() / IPv4{} / Icmp{} / zeros(8), "icmp 10.0.0.1 10.0.0.2 vni 7", SPILLWAY_OK,
         14, 84},
        {"a fragment inside", in_tunnel() / IPv4{.more_fragments = true} / Udp{} / zeros(8),
         "udp 10.0.0.1 10.0.0.2 vni 7", SPILLWAY_OK, 14, 84},
        {"a fragment outside",
         Ethernet{} / IPv4{.more_fragments = true} / Udp{.dport = 4789} / Vxlan{} / Ethernet{} / IPv4{} /
             Udp{},
         "udp 10.0.0.1 10.0.0.2", SPILLWAY_OK, 14, 34},
        {"without the flag", in_tunnel({.flags = 0}) / IPv4{} / Udp{}, "udp 10.9.0.1:40000 10.9.0.2:4789",
         SPILLWAY_OK, 14, 50},
        {"with more flags (group policy)", in_tunnel({.flags = 0x88}) / IPv4{} / Udp{},
         "udp 10.9.0.1:40000 10.9.0.2:4789", SPILLWAY_OK, 14, 50},
        {"with reserved bits", in_tunnel({.reserved = 1}) / IPv4{} / Udp{},
         "udp 10.9.0.1:40000 10.9.0.2:4789", SPILLWAY_OK, 14, 50},
        {"with the last reserved byte", in_tunnel({.reserved_2 = 1}) / IPv4{} / Udp{},
         "udp 10.9.0.1:40000 10.9.0.2:4789", SPILLWAY_OK, 14, 50},
        {"a datagram too short for VXLAN", Ethernet{} / IPv4{} / Udp{.dport = 4789} / zeros(7),
         "udp 10.0.0.1:5000 10.0.0.2:4789", SPILLWAY_OK, 14, 42},
        {"VXLAN in VXLAN", in_tunnel() / IPv4{} / Udp{.dport = 4789} / Vxlan{} / Ethernet{} / IPv4{} / Udp{},
         nullptr, SPILLWAY_NESTED_TUNNEL},
        {"ARP inside", in_tunnel() / Raw{.content = Bytes(28), .name_ = {.ethertype = 0x0806}}, nullptr,
         SPILLWAY_NOT_IP},
        {"three tags inside", in_tunnel() / Vlan{} / Vlan{} / Vlan{} / IPv4{} / Udp{}, nullptr,
         SPILLWAY_TOO_MANY_TAGS},
        {"IHL 4 inside", in_tunnel() / IPv4{.header_words = 4} / Udp{}, nullptr, SPILLWAY_BAD_HEADER},
        // RoCEv2 is a flow like others (R11)
        {"RoCEv2", Ethernet{} / IPv4{} / Udp{.sport = 49152, .dport = 4791} / zeros(16),
         "udp 10.0.0.1:49152 10.0.0.2:4791", SPILLWAY_OK, 14, 42},
        // Other
        {"ARP", Ethernet{.type = 0x0806} / zeros(46), nullptr, SPILLWAY_NOT_IP},
        {"length field (LLC)", Ethernet{.type = 46} / zeros(46), nullptr, SPILLWAY_NOT_IP},
        {"CIP", Ethernet{.type = 0x8809} / IPv4{} / Udp{} / zeros(18), nullptr, SPILLWAY_NOT_IP},
    };
}

TEST(FlowKey, FramesGiveTheirFlowOrTheReasonWhyNot) {
    for (const Sample &sample : samples()) {
        SCOPED_TRACE(sample.what);
        const Bytes bytes = sample.packet.bytes();
        const Parsed parsed = parse(bytes.data(), bytes.data() + bytes.size(), sample.tags);
        EXPECT_EQ(parsed.reason, sample.reason);
        if (sample.flow == nullptr || parsed.reason != SPILLWAY_OK)
            continue;
        EXPECT_TRUE(same(parsed.key, key_of(sample.flow))) << flow_text(parsed.key);
        EXPECT_EQ(parsed.layout.network, sample.network);
        EXPECT_EQ(parsed.layout.end, sample.end);
    }
}

/// Cut at every length, nothing behind the cut is read, and the answer is 'too short' until the headers are
/// complete, and from there on that of the whole frame.
TEST(FlowKey, CutFramesAreTooShortOrTheSame) {
    for (const Sample &sample : samples()) {
        SCOPED_TRACE(sample.what);
        const Bytes bytes = sample.packet.bytes();
        const Parsed whole = parse(bytes.data(), bytes.data() + bytes.size(), sample.tags);
        bool complete = false;
        for (std::size_t length = 0; length <= bytes.size(); length++) {
            const GuardedCopy cut{std::span(bytes).first(length)};
            const Parsed parsed = parse(cut.begin(), cut.end(), sample.tags);
            if (!complete && parsed.reason == SPILLWAY_TOO_SHORT) {
                ASSERT_TRUE(whole.reason != SPILLWAY_OK || length < whole.layout.end) << length;
                continue;
            }
            complete = true;
            ASSERT_EQ(parsed.reason, whole.reason) << length;
            if (whole.reason == SPILLWAY_OK) {
                ASSERT_TRUE(same(parsed.key, whole.key)) << length;
                ASSERT_EQ(parsed.layout.end, whole.layout.end) << length;
            }
        }
        EXPECT_TRUE(complete);
    }
}

/// Transport headers are complete or the packet is too short: ports are never taken from half of one.
TEST(FlowKey, PortsNeedTheirWholeHeader) {
    for (const auto &[packet, end] :
         {std::pair<Packet, std::size_t>{Ethernet{} / IPv4{} / Udp{}, 42},
          {Ethernet{} / IPv4{.options = Bytes(40, 1)} / Udp{}, 82},
          {Ethernet{} / IPv4{} / Tcp{}, 54},
          {Ethernet{} / IPv6{} / Tcp{}, 74},
          {Ethernet{} / Vlan{} / IPv6{} / Authentication{} / Udp{}, 18 + 40 + 24 + 8}}) {
        const Bytes bytes = packet.bytes();
        ASSERT_EQ(bytes.size(), end);
        const GuardedCopy cut{std::span(bytes).first(end - 1)};
        EXPECT_EQ(parse(cut.begin(), cut.end(), 0).reason, SPILLWAY_TOO_SHORT);
    }
}

TEST(FlowKey, AnyBytesAreReadWithinTheirBounds) {
    std::mt19937 random(1);
    for (const Sample &sample : samples())
        for (int round = 0; round < 200; round++) {
            Bytes bytes = sample.packet.bytes();
            for (unsigned change = random() % 8; change > 0; change--)
                bytes[random() % bytes.size()] = static_cast<std::uint8_t>(random());
            bytes.resize(random() % (bytes.size() + 1));
            const GuardedCopy copy(bytes);
            const Parsed parsed = parse(copy.begin(), copy.end(), static_cast<int>(random() % 3));
            if (parsed.reason != SPILLWAY_OK)
                continue;
            EXPECT_TRUE(parsed.key.family == 4 || parsed.key.family == 6);
            EXPECT_EQ(parsed.key.port, 0U);
            EXPECT_TRUE(parsed.key.vni == 0 || (parsed.key.flags & SPILLWAY_KEY_VNI) != 0);
            EXPECT_LE(parsed.key.vni, SPILLWAY_VNI_MAX);
            EXPECT_LE(parsed.layout.network, 22U);
            EXPECT_GE(parsed.layout.end, parsed.layout.network + 20);
            EXPECT_EQ(parsed.key.flags, parsed.key.flags & (SPILLWAY_KEY_PORTS | SPILLWAY_KEY_VNI));
        }
}

TEST(FlowKey, FragmentsOfADatagramShareOneKey) {
    const Bytes first = (Ethernet{} / IPv4{.more_fragments = true} / Udp{} / zeros(16)).bytes();
    const Bytes later = (Ethernet{} / IPv4{.protocol = 17, .fragment_offset = 3} / zeros(16)).bytes();
    const Bytes whole = (Ethernet{} / IPv4{} / Udp{} / zeros(16)).bytes();
    const auto key = [](const Bytes &bytes) {
        return parse(bytes.data(), bytes.data() + bytes.size(), 0).key;
    };
    EXPECT_TRUE(same(key(first), key(later)));
    EXPECT_FALSE(same(key(first), key(whole)));
}

/// Tenants may use the same addresses.
TEST(FlowKey, TwoTenantsWithTheSameFiveTupleAreTwoFlows) {
    const auto key = [](std::uint32_t vni) {
        const Bytes bytes = (in_tunnel({.vni = vni}) / IPv4{} / Udp{}).bytes();
        return parse(bytes.data(), bytes.data() + bytes.size(), 0).key;
    };
    EXPECT_TRUE(same(key(7), key(7)));
    EXPECT_FALSE(same(key(7), key(8)));
}

/// Keys that differ in one field, counted up as addresses and ports are in practice.
std::vector<spillway_flow_key> row(const std::function<void(spillway_flow_key &, std::uint32_t)> &change) {
    std::vector<spillway_flow_key> keys;
    for (std::uint32_t i = 0; i < 4096; i++) {
        keys.push_back(key_of(udp4));
        change(keys.back(), i);
    }
    return keys;
}

TEST(FlowKey, HashSpreadsKeysThatCountUp) {
    const std::map<std::string, std::vector<spillway_flow_key>> rows{
        {"sport", row([](auto &key, auto i) { key.sport = static_cast<__u16>(i); })},
        {"dport", row([](auto &key, auto i) { key.dport = static_cast<__u16>(i); })},
        {"sport in steps", row([](auto &key, auto i) { key.sport = static_cast<__u16>(i * 16); })},
        {"src", row([](auto &key, auto i) {
             key.src[3] = static_cast<__u8>(i);
             key.src[2] = static_cast<__u8>(i >> 8U);
         })},
        {"dst of IPv6", row([](auto &key, auto i) {
             key.family = 6;
             key.dst[15] = static_cast<__u8>(i);
             key.dst[14] = static_cast<__u8>(i >> 8U);
         })},
        {"both ports", row([](auto &key, auto i) {
             key.sport = static_cast<__u16>(i);
             key.dport = static_cast<__u16>(i);
         })},
        {"port", row([](auto &key, auto i) { key.port = i; })},
    };
    // The bits that are used: two slots of 16 bits, a tag, and a choice among a few classes.
    const std::map<std::string, std::function<std::uint64_t(std::uint64_t)>> uses{
        {"first slot", [](std::uint64_t hash) { return hash & 0xffU; }},
        {"high bits of it", [](std::uint64_t hash) { return hash >> 8U & 0xffU; }},
        {"second slot", [](std::uint64_t hash) { return hash >> 16U & 0xffU; }},
        {"high bits of that", [](std::uint64_t hash) { return hash >> 24U & 0xffU; }},
    };
    for (const auto &[field, keys] : rows) {
        std::set<std::uint64_t> tags;
        std::map<std::uint64_t, int> classes;
        for (const spillway_flow_key &key : keys) {
            tags.insert(spillway_hash(&key) >> 32U);
            classes[static_cast<std::uint32_t>(spillway_hash(&key) >> 8U) % 3]++;
        }
        EXPECT_GE(tags.size(), keys.size() - 1) << field;
        for (const auto &[which, count] : classes)
            EXPECT_NEAR(count, 1365, 200) << field << " class " << which;
        for (const auto &[use, bits] : uses) {
            std::map<std::uint64_t, int> buckets;
            for (const spillway_flow_key &key : keys)
                buckets[bits(spillway_hash(&key))]++;
            EXPECT_GT(buckets.size(), 250U) << field << ", " << use; // of 256
            for (const auto &[bucket, count] : buckets)
                EXPECT_LT(count, 48) << field << ", " << use << ", bucket " << bucket; // 16 expected
        }
    }
}

TEST(FlowKey, FilterSlotsAreSpreadOverFlowsThatCountUp) {
    const auto slots = [](const std::vector<spillway_flow_key> &keys) {
        std::set<std::uint32_t> used;
        for (const spillway_flow_key &key : keys) {
            const std::uint32_t slot = spillway_filter_slot(&key);
            EXPECT_LT(slot, std::uint32_t{SPILLWAY_FILTER_SLOTS});
            used.insert(slot);
        }
        return used.size();
    };
    // 4096 flows at random would use 3970 of 65536 slots.
    EXPECT_GT(slots(row([](auto &key, auto i) { key.sport = static_cast<__u16>(i); })), 3800U);
    EXPECT_GT(slots(row([](auto &key, auto i) { key.dport = static_cast<__u16>(i); })), 3800U);
    for (const std::uint8_t family : {std::uint8_t{4}, std::uint8_t{6}}) {
        const std::size_t last = family == 6 ? 15 : 3;
        EXPECT_GT(slots(row([=](auto &key, auto i) {
                      key.family = family;
                      key.src[last] = static_cast<__u8>(i);
                      key.dst[last] = static_cast<__u8>(i >> 8U);
                  })),
                  3800U);
    }
}

TEST(FlowKey, HashDependsOnEveryBit) {
    const spillway_flow_key base = key_of(udp4);
    std::set<std::uint64_t> hashes{spillway_hash(&base)};
    for (std::size_t bit = 0; bit < sizeof(base) * 8; bit++) {
        std::array<std::uint8_t, sizeof(base)> bytes{};
        std::memcpy(bytes.data(), &base, sizeof(base));
        bytes[bit / 8] = static_cast<std::uint8_t>(bytes[bit / 8] ^ (1U << (bit % 8)));
        spillway_flow_key changed{};
        std::memcpy(&changed, bytes.data(), sizeof(changed));
        hashes.insert(spillway_hash(&changed));
    }
    EXPECT_EQ(hashes.size(), sizeof(base) * 8 + 1);
}

} // namespace
} // namespace spillway
