// SPDX-License-Identifier: Apache-2.0
#include "agent/core/flow_text.h"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <charconv>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <optional>
#include <ranges>
#include <sstream>
#include <string_view>
#include <vector>

namespace spillway {
namespace {

struct Protocol {
    std::uint8_t number;
    std::string_view name;
};

constexpr auto protocols = std::to_array<Protocol>({{1, "icmp"},
                                                    {2, "igmp"},
                                                    {6, "tcp"},
                                                    {17, "udp"},
                                                    {33, "dccp"},
                                                    {47, "gre"},
                                                    {50, "esp"},
                                                    {51, "ah"},
                                                    {58, "icmpv6"},
                                                    {89, "ospf"},
                                                    {103, "pim"},
                                                    {112, "vrrp"},
                                                    {132, "sctp"}});

constexpr std::string_view syntax =
    "write PROTO SRC[:PORT] DST[:PORT] [vni N], for example: udp 10.0.0.1:5000 10.0.0.2:6000, "
    "tcp [fd00::1]:5000 [fd00::2]:80 or icmp 10.0.0.1 10.0.0.2 vni 7";

std::unexpected<Error> not_a_flow(std::string detail, std::string hint = std::string(syntax)) {
    return fail({.operation = "flow",
                 .detail = std::move(detail),
                 .hint = std::move(hint),
                 .kind = ErrorKind::usage});
}

/// A whole decimal number of 0..max.
template <class T = std::uint16_t>
std::optional<T> parse_number(std::string_view text, T max) {
    T number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (text.empty() || error != std::errc() || end != text.data() + text.size() || number > max)
        return std::nullopt;
    return number;
}

std::optional<std::uint8_t> parse_protocol(std::string_view text) {
    const auto found = std::ranges::find(protocols, text, &Protocol::name);
    if (found != protocols.end())
        return found->number;
    const auto number = parse_number(text, std::uint16_t{255});
    return number ? std::optional(static_cast<std::uint8_t>(*number)) : std::nullopt;
}

bool is_address(int family, const std::string &text) {
    std::array<std::uint8_t, 16> bytes{};
    return ::inet_pton(family, text.c_str(), bytes.data()) == 1;
}

struct Endpoint {
    std::array<std::uint8_t, 16> address{};
    std::uint8_t family = 0;
    std::optional<std::uint16_t> port;
};

/// `10.0.0.1`, `10.0.0.1:80`, `fd00::1`, `[fd00::1]` or `[fd00::1]:80`.
Result<Endpoint> parse_endpoint(const std::string &word) {
    Endpoint endpoint;
    std::string address = word;
    std::optional<std::string> port;
    if (word.starts_with('[')) {
        const auto close = word.find(']');
        if (close == std::string::npos)
            return not_a_flow(fmt::format("'{}' has no closing bracket", word));
        address = word.substr(1, close - 1);
        const std::string rest = word.substr(close + 1);
        if (!rest.empty() && rest[0] != ':')
            return not_a_flow(fmt::format("'{}' has '{}' after its bracket", word, rest));
        if (!rest.empty())
            port = rest.substr(1);
        endpoint.family = 6;
    } else if (const auto colon = word.find(':'); colon == std::string::npos) {
        endpoint.family = 4;
    } else if (word.find(':', colon + 1) == std::string::npos) {
        endpoint.family = 4;
        address = word.substr(0, colon);
        port = word.substr(colon + 1);
    } else {
        endpoint.family = 6;
    }

    const int family = endpoint.family == 4 ? AF_INET : AF_INET6;
    if (::inet_pton(family, address.c_str(), endpoint.address.data()) != 1)
        return not_a_flow(
            fmt::format("'{}' is not an {} address", address, family == AF_INET ? "IPv4" : "IPv6"));
    if (port) {
        endpoint.port = parse_number(*port, std::uint16_t{65535});
        if (!endpoint.port)
            return not_a_flow(fmt::format("'{}' is not a port", *port), "a port is a number from 0 to 65535");
    }
    return endpoint;
}

/// An IPv6 address without brackets whose last group may be meant as a port.
bool looks_like_a_port(const std::string &word) {
    const auto colon = word.rfind(':');
    return !word.starts_with('[') && colon != std::string::npos &&
           parse_number(std::string_view(word).substr(colon + 1), std::uint16_t{65535}) &&
           is_address(AF_INET6, word.substr(0, colon));
}

std::vector<std::string> split_words(std::span<const std::string> arguments) {
    std::vector<std::string> words;
    for (const auto &argument : arguments) {
        std::istringstream stream(argument);
        for (std::string word; stream >> word;)
            words.push_back(word);
    }
    return words;
}

std::string endpoint_text(const spillway_flow_key &key, const std::uint8_t (&address)[16],
                          std::uint16_t port) {
    std::string text = address_text(key.family, address);
    if (!(key.flags & SPILLWAY_KEY_PORTS))
        return text;
    return key.family == 6 ? fmt::format("[{}]:{}", text, port) : fmt::format("{}:{}", text, port);
}

} // namespace

Result<spillway_flow_key> parse_flow(std::span<const std::string> arguments) {
    const auto words = split_words(arguments);
    const bool tunnelled = words.size() > 3 && words[3] == "vni";
    if (words.size() != (tunnelled ? 5 : 3))
        return not_a_flow(
            fmt::format("'{}' is not three words: protocol, source, destination; or five with 'vni' "
                        "and its number",
                        fmt::join(words, " ")));
    std::optional<std::uint32_t> vni;
    if (tunnelled) {
        vni = parse_number<std::uint32_t>(words[4], SPILLWAY_VNI_MAX);
        if (!vni)
            return not_a_flow(fmt::format("'{}' is not a VNI", words[4]),
                              fmt::format("a VNI is a number from 0 to {}", SPILLWAY_VNI_MAX));
    }
    const auto proto = parse_protocol(words[0]);
    if (!proto)
        return not_a_flow(fmt::format("'{}' is not a protocol", words[0]),
                          fmt::format("a number from 0 to 255, or one of {}",
                                      fmt::join(protocols | std::views::transform(&Protocol::name), ", ")));
    const auto src = parse_endpoint(words[1]);
    if (!src)
        return fail(src.error());
    const auto dst = parse_endpoint(words[2]);
    if (!dst)
        return fail(dst.error());
    if (src->family != dst->family)
        return not_a_flow(fmt::format("'{}' and '{}' are not of one family", words[1], words[2]));
    if (src->port.has_value() != dst->port.has_value())
        return not_a_flow(fmt::format("'{}' has no port", src->port ? words[2] : words[1]),
                          "give both ports, or none to name the fragments between the two");
    const bool with_ports = *proto == SPILLWAY_PROTO_TCP || *proto == SPILLWAY_PROTO_UDP;
    for (const std::string &word : {words[1], words[2]})
        if (with_ports && looks_like_a_port(word))
            return not_a_flow(fmt::format("'{}' is an address, or an address with a port", word),
                              fmt::format("write [{}]:{}, or [{}] for the address",
                                          word.substr(0, word.rfind(':')), word.substr(word.rfind(':') + 1),
                                          word));
    if (src->port && *proto != SPILLWAY_PROTO_TCP && *proto != SPILLWAY_PROTO_UDP)
        return not_a_flow(fmt::format("{} flows have no ports here", words[0]), "leave both ports out");

    spillway_flow_key key{};
    std::ranges::copy(src->address, key.src);
    std::ranges::copy(dst->address, key.dst);
    key.family = src->family;
    key.proto = *proto;
    if (src->port) {
        key.sport = *src->port;
        key.dport = *dst->port;
        key.flags = SPILLWAY_KEY_PORTS;
    }
    if (vni) {
        key.vni = *vni;
        key.flags |= SPILLWAY_KEY_VNI;
    }
    return key;
}

std::string flow_text(const spillway_flow_key &key) {
    return fmt::format("{} {} {}{}", proto_text(key.proto), endpoint_text(key, key.src, key.sport),
                       endpoint_text(key, key.dst, key.dport),
                       (key.flags & SPILLWAY_KEY_VNI) != 0 ? fmt::format(" vni {}", key.vni) : "");
}

std::string proto_text(std::uint8_t proto) {
    const auto found = std::ranges::find(protocols, proto, &Protocol::number);
    return found != protocols.end() ? std::string(found->name) : fmt::format("{}", proto);
}

std::string address_text(std::uint8_t family, const std::uint8_t (&address)[16]) {
    std::array<char, INET6_ADDRSTRLEN> text{};
    ::inet_ntop(family == 4 ? AF_INET : AF_INET6, address, text.data(), text.size());
    return text.data();
}

} // namespace spillway
