// SPDX-License-Identifier: Apache-2.0
#include "agent/core/flow_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace spillway {
namespace {

using testing::HasSubstr;

Result<spillway_flow_key> parse(std::vector<std::string> words) {
    return parse_flow(words);
}

TEST(FlowText, FiveTupleOfIpv4) {
    const auto key = parse({"udp", "10.0.0.1:5000", "10.0.0.2:6000"});
    ASSERT_TRUE(key) << key.error().text();
    spillway_flow_key wanted{};
    const std::uint8_t src[] = {10, 0, 0, 1};
    const std::uint8_t dst[] = {10, 0, 0, 2};
    std::memcpy(wanted.src, src, sizeof(src));
    std::memcpy(wanted.dst, dst, sizeof(dst));
    wanted.sport = 5000;
    wanted.dport = 6000;
    wanted.family = 4;
    wanted.proto = 17;
    wanted.flags = SPILLWAY_KEY_PORTS;
    EXPECT_EQ(std::memcmp(&*key, &wanted, sizeof(wanted)), 0);
}

TEST(FlowText, FiveTupleOfIpv6) {
    const auto key = parse({"tcp", "[fd00::1]:5000", "[fd00::2]:80"});
    ASSERT_TRUE(key) << key.error().text();
    spillway_flow_key wanted{};
    wanted.src[0] = wanted.dst[0] = 0xfd;
    wanted.src[15] = 1;
    wanted.dst[15] = 2;
    wanted.sport = 5000;
    wanted.dport = 80;
    wanted.family = 6;
    wanted.proto = 6;
    wanted.flags = SPILLWAY_KEY_PORTS;
    EXPECT_EQ(std::memcmp(&*key, &wanted, sizeof(wanted)), 0);
}

// fd00::1:5000 may be an address, or fd00::1 with a port.
TEST(FlowText, Ipv6ThatMayHaveAPortWantsBrackets) {
    const auto key = parse({"udp", "fd00::1:5000", "fd00::2:80"});
    ASSERT_FALSE(key);
    EXPECT_THAT(key.error().hint, HasSubstr("write [fd00::1]:5000, or [fd00::1:5000] for the address"));
    for (const std::vector<std::string> &clear :
         {std::vector<std::string>{"udp", "[fd00::1:5000]", "[fd00::2:80]"},
          {"udp", "fd00::1", "fd00::2"},
          {"icmpv6", "fd00::1:5000", "fd00::2:80"},
          {"tcp", "fd00::1:a", "1:2:3:4:5:6:7:8"}}) {
        const auto parsed = parse(clear);
        ASSERT_TRUE(parsed) << parsed.error().text();
        EXPECT_EQ(parsed->flags, 0);
    }
}

TEST(FlowText, ThreeTupleHasNoPortsFlag) {
    for (const char *proto : {"icmp", "udp", "tcp", "esp", "253"}) {
        const auto key = parse({proto, "10.0.0.1", "10.0.0.2"});
        ASSERT_TRUE(key) << key.error().text();
        EXPECT_EQ(key->flags, 0);
        EXPECT_EQ(key->sport, 0);
    }
}

TEST(FlowText, PortZeroIsAPort) {
    const auto key = parse({"udp", "10.0.0.1:0", "10.0.0.2:65535"});
    ASSERT_TRUE(key) << key.error().text();
    EXPECT_EQ(key->flags, SPILLWAY_KEY_PORTS);
    EXPECT_EQ(flow_text(*key), "udp 10.0.0.1:0 10.0.0.2:65535");
}

TEST(FlowText, OneQuotedArgumentIsTheSame) {
    const auto apart = parse({"udp", "10.0.0.1:5000", "10.0.0.2:6000"});
    const auto quoted = parse({" udp  10.0.0.1:5000\t10.0.0.2:6000 "});
    ASSERT_TRUE(apart && quoted);
    EXPECT_EQ(std::memcmp(&*apart, &*quoted, sizeof(*apart)), 0);
}

TEST(FlowText, RoundTrip) {
    for (const char *text : {
             "udp 10.0.0.1:5000 10.0.0.2:6000",
             "tcp [fd00::1]:5000 [2001:db8:1:2:3:4:5:6]:80",
             "tcp [::]:1 [::ffff:1.2.3.4]:2",
             "icmp 10.0.0.1 10.0.0.2",
             "icmpv6 fe80::1 ff02::1",
             "udp fd00::1 fd00::2",
             "253 255.255.255.255 0.0.0.0",
             "udp 10.0.0.1:5000 10.0.0.2:6000 vni 0",
             "icmpv6 fd00::1 fd00::2 vni 16777215",
         }) {
        const auto key = parse({text});
        ASSERT_TRUE(key) << text << ": " << key.error().text();
        EXPECT_EQ(flow_text(*key), text);
    }
}

TEST(FlowText, OtherSpellingsOfTheSame) {
    EXPECT_EQ(flow_text(*parse({"17", "[FD00:0:0::1]:5", "[fd00::0002]:6"})), "udp [fd00::1]:5 [fd00::2]:6");
    EXPECT_EQ(flow_text(*parse({"58", "[fd00::1]", "fd00::2"})), "icmpv6 fd00::1 fd00::2");
}

struct Refusal {
    std::vector<std::string> words;
    std::string says;
};

class FlowTextRefuses : public testing::TestWithParam<Refusal> {};

TEST_P(FlowTextRefuses, WithASentenceAndAHint) {
    const auto key = parse_flow(GetParam().words);
    ASSERT_FALSE(key);
    EXPECT_THAT(key.error().message(), HasSubstr(GetParam().says));
    EXPECT_EQ(key.error().kind, ErrorKind::usage);
    EXPECT_FALSE(key.error().hint.empty());
}

INSTANTIATE_TEST_SUITE_P(
    FlowText, FlowTextRefuses,
    testing::Values(Refusal{{}, "'' is not three words"}, Refusal{{"", " "}, "'' is not three words"},
                    Refusal{{"udp"}, "'udp' is not three words"},
                    Refusal{{"udp", "10.0.0.1:1"}, "'udp 10.0.0.1:1' is not three words"},
                    Refusal{{"udp", "10.0.0.1:1", "10.0.0.2:2", "more"}, "more' is not three words"},
                    Refusal{{"udp", "10.0.0.1:1", "10.0.0.2:2", "vni"}, "vni' is not three words"},
                    Refusal{{"udp", "10.0.0.1:1", "10.0.0.2:2", "vni", "7", "8"}, "8' is not three words"},
                    Refusal{{"udp", "10.0.0.1:1", "10.0.0.2:2", "vno", "7"}, "7' is not three words"},
                    Refusal{{"udp", "10.0.0.1:1", "10.0.0.2:2", "vni", "16777216"},
                            "'16777216' is not a VNI"},
                    Refusal{{"udp", "10.0.0.1:1", "10.0.0.2:2", "vni", "-1"}, "'-1' is not a VNI"},
                    Refusal{{"udp", "10.0.0.1:1", "10.0.0.2:2", "vni", "7x"}, "'7x' is not a VNI"},
                    Refusal{{"UDP", "10.0.0.1:1", "10.0.0.2:2"}, "'UDP' is not a protocol"},
                    Refusal{{"256", "10.0.0.1", "10.0.0.2"}, "'256' is not a protocol"},
                    Refusal{{"-1", "10.0.0.1", "10.0.0.2"}, "'-1' is not a protocol"},
                    Refusal{{"+6", "10.0.0.1", "10.0.0.2"}, "'+6' is not a protocol"},
                    Refusal{{"6x", "10.0.0.1", "10.0.0.2"}, "'6x' is not a protocol"},
                    Refusal{{"udp", "10.0.0:1", "10.0.0.2:2"}, "'10.0.0' is not an IPv4 address"},
                    Refusal{{"udp", "10.0.0.256:1", "10.0.0.2:2"}, "'10.0.0.256' is not an IPv4 address"},
                    Refusal{{"udp", "host:1", "10.0.0.2:2"}, "'host' is not an IPv4 address"},
                    Refusal{{"udp", ":1", "10.0.0.2:2"}, "'' is not an IPv4 address"},
                    Refusal{{"udp", "10.0.0.1:", "10.0.0.2:2"}, "'' is not a port"},
                    Refusal{{"udp", "10.0.0.1:65536", "10.0.0.2:2"}, "'65536' is not a port"},
                    Refusal{{"udp", "10.0.0.1:-1", "10.0.0.2:2"}, "'-1' is not a port"},
                    Refusal{{"udp", "10.0.0.1:1", "10.0.0.2:2x"}, "'2x' is not a port"},
                    Refusal{{"udp", "10.0.0.1:1", "10.0.0.2"}, "'10.0.0.2' has no port"},
                    Refusal{{"udp", "10.0.0.1", "10.0.0.2:1"}, "'10.0.0.1' has no port"},
                    Refusal{{"icmp", "10.0.0.1:1", "10.0.0.2:2"}, "icmp flows have no ports"},
                    Refusal{{"udp", "[fd00::1:1", "[fd00::2]:2"}, "no closing bracket"},
                    Refusal{{"udp", "[fd00::1]1", "[fd00::2]:2"}, "has '1' after its bracket"},
                    Refusal{{"udp", "[]:1", "[fd00::2]:2"}, "'' is not an IPv6 address"},
                    Refusal{{"udp", "[10.0.0.1]:1", "10.0.0.2:2"}, "'10.0.0.1' is not an IPv6 address"},
                    Refusal{{"udp", "fe80::1%eth0", "fe80::2"}, "'fe80::1%eth0' is not an IPv6 address"},
                    Refusal{{"udp", "[fd00::1]:1", "10.0.0.2:2"}, "not of one family"}));

} // namespace
} // namespace spillway
