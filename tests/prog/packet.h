// SPDX-License-Identifier: Apache-2.0
/// Packets for tests, built from layers joined with `/`. What one layer says about the next (EtherType, next
/// header, lengths, header checksums) is filled in unless it is written out, so that a test states only what
/// it is about, and can state what is wrong:
///
///     const Bytes good = (Ethernet{} / Vlan{.id = 5} / IPv4{.dst = "10.0.0.9"} / Udp{} /
///     zeros(100)).bytes(); const Bytes bad = (Ethernet{} / IPv4{.header_words = 3} / Udp{}).bytes();
///
/// Transport checksums are zero.
#pragma once

#include <arpa/inet.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <ranges>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace spillway::packet {

using Bytes = std::vector<std::uint8_t>;
using Mac = std::array<std::uint8_t, 6>;

/// How the layer before names a layer.
struct Name {
    std::uint16_t ethertype = 0;
    std::uint8_t protocol = 253; ///< "experimentation and testing"
};

namespace detail {

inline void add8(Bytes &out, unsigned value) {
    out.push_back(static_cast<std::uint8_t>(value));
}
inline void add16(Bytes &out, unsigned value) {
    add8(out, value >> 8U);
    add8(out, value & 0xffU);
}
inline void add32(Bytes &out, std::uint32_t value) {
    add16(out, value >> 16U);
    add16(out, value & 0xffffU);
}
template <class Range>
void add(Bytes &out, const Range &more) {
    out.insert(out.end(), more.begin(), more.end());
}

template <std::size_t Size>
std::array<std::uint8_t, Size> address(int family, const std::string &text) {
    std::array<std::uint8_t, Size> bytes{};
    if (inet_pton(family, text.c_str(), bytes.data()) != 1)
        throw std::invalid_argument("no address: " + text);
    return bytes;
}

} // namespace detail

// A layer has `Name name() const`, and `Bytes bytes(rest, next)`: itself followed by `rest`, which is a layer
// named `next`.

struct Ethernet {
    Mac dst{0x02, 0, 0, 0, 0, 0x02};
    Mac src{0x02, 0, 0, 0, 0, 0x01};
    std::optional<std::uint16_t> type{};

    [[nodiscard]] static Name name() { return {.ethertype = 0x6558}; } // transparent Ethernet bridging
    [[nodiscard]] Bytes bytes(const Bytes &rest, Name next) const {
        Bytes out;
        detail::add(out, dst);
        detail::add(out, src);
        detail::add16(out, type.value_or(next.ethertype));
        detail::add(out, rest);
        return out;
    }
};

/// An 802.1Q tag; `proto` 0x88a8 makes it an 802.1ad one.
struct Vlan {
    unsigned id = 1;
    unsigned pcp = 0;
    bool drop_eligible = false;
    std::uint16_t proto = 0x8100;
    std::optional<std::uint16_t> type{};

    [[nodiscard]] Name name() const { return {.ethertype = proto}; }
    [[nodiscard]] Bytes bytes(const Bytes &rest, Name next) const {
        Bytes out;
        detail::add16(out, pcp << 13U | (drop_eligible ? 0x1000U : 0U) | id);
        detail::add16(out, type.value_or(next.ethertype));
        detail::add(out, rest);
        return out;
    }
};

struct IPv4 {
    std::string src = "10.0.0.1";
    std::string dst = "10.0.0.2";
    std::optional<std::uint8_t> protocol{};
    unsigned tos = 0;
    unsigned id = 0;
    bool dont_fragment = false;
    bool more_fragments = false;
    unsigned fragment_offset = 0; ///< in units of 8 bytes
    Bytes options{};              ///< a multiple of 4 bytes, up to 40
    unsigned version = 4;
    std::optional<unsigned> header_words{}; ///< IHL

    [[nodiscard]] static Name name() { return {.ethertype = 0x0800, .protocol = 4}; }
    [[nodiscard]] Bytes bytes(const Bytes &rest, Name next) const {
        const std::size_t header = 20 + options.size();
        Bytes out;
        detail::add8(out, version << 4U | header_words.value_or(static_cast<unsigned>(header / 4)));
        detail::add8(out, tos);
        detail::add16(out, static_cast<unsigned>(header + rest.size()));
        detail::add16(out, id);
        detail::add16(out,
                      (dont_fragment ? 0x4000U : 0U) | (more_fragments ? 0x2000U : 0U) | fragment_offset);
        detail::add8(out, 64);
        detail::add8(out, protocol.value_or(next.protocol));
        detail::add16(out, 0);
        detail::add(out, detail::address<4>(AF_INET, src));
        detail::add(out, detail::address<4>(AF_INET, dst));
        detail::add(out, options);
        unsigned sum = 0;
        for (std::size_t i = 0; i < header; i += 2)
            sum += static_cast<unsigned>(out[i] << 8U | out[i + 1]);
        while (sum > 0xffff)
            sum = (sum & 0xffff) + (sum >> 16U);
        out[10] = static_cast<std::uint8_t>(~sum >> 8U);
        out[11] = static_cast<std::uint8_t>(~sum);
        detail::add(out, rest);
        return out;
    }
};

struct IPv6 {
    std::string src = "fd00::1";
    std::string dst = "fd00::2";
    std::optional<std::uint8_t> next_header{};
    unsigned traffic_class = 0;
    unsigned flow_label = 0;
    unsigned version = 6;

    [[nodiscard]] static Name name() { return {.ethertype = 0x86dd, .protocol = 41}; }
    [[nodiscard]] Bytes bytes(const Bytes &rest, Name next) const {
        Bytes out;
        detail::add32(out, version << 28U | traffic_class << 20U | flow_label);
        detail::add16(out, static_cast<unsigned>(rest.size()));
        detail::add8(out, next_header.value_or(next.protocol));
        detail::add8(out, 64);
        detail::add(out, detail::address<16>(AF_INET6, src));
        detail::add(out, detail::address<16>(AF_INET6, dst));
        detail::add(out, rest);
        return out;
    }
};

/// An IPv6 extension header of 8 (1 + extra) bytes: hop-by-hop 0, routing 43, destination options 60.
struct Extension {
    std::uint8_t kind = 60;
    unsigned extra = 0;
    std::optional<unsigned> length{}; ///< as written in its second byte

    [[nodiscard]] Name name() const { return {.protocol = kind}; }
    [[nodiscard]] Bytes bytes(const Bytes &rest, Name next) const {
        Bytes out(8UL + 8UL * extra);
        out[0] = next.protocol;
        out[1] = static_cast<std::uint8_t>(length.value_or(extra));
        if (kind != 43) { // padded by a PadN option
            out[2] = 1;
            out[3] = static_cast<std::uint8_t>(out.size() - 4);
        }
        detail::add(out, rest);
        return out;
    }
};

/// The IPv6 fragment header; neither offset nor more: an atomic fragment (RFC 6946).
struct Fragment {
    unsigned offset = 0; ///< in units of 8 bytes
    bool more = false;
    std::uint32_t id = 1;
    std::uint8_t reserved = 0; ///< its second byte

    [[nodiscard]] static Name name() { return {.protocol = 44}; }
    [[nodiscard]] Bytes bytes(const Bytes &rest, Name next) const {
        Bytes out;
        detail::add8(out, next.protocol);
        detail::add8(out, reserved);
        detail::add16(out, offset << 3U | (more ? 1U : 0U));
        detail::add32(out, id);
        detail::add(out, rest);
        return out;
    }
};

/// Authentication header with a check value of `words` 4-byte units.
struct Authentication {
    unsigned words = 3;

    [[nodiscard]] static Name name() { return {.protocol = 51}; }
    [[nodiscard]] Bytes bytes(const Bytes &rest, Name next) const {
        Bytes out(12UL + 4UL * words);
        out[0] = next.protocol;
        out[1] = static_cast<std::uint8_t>(words + 1);
        detail::add(out, rest);
        return out;
    }
};

struct Udp {
    std::uint16_t sport = 5000;
    std::uint16_t dport = 6000;

    [[nodiscard]] static Name name() { return {.protocol = 17}; }
    [[nodiscard]] Bytes bytes(const Bytes &rest, Name /*next*/) const {
        Bytes out;
        detail::add16(out, sport);
        detail::add16(out, dport);
        detail::add16(out, static_cast<unsigned>(8 + rest.size()));
        detail::add16(out, 0);
        detail::add(out, rest);
        return out;
    }
};

struct Tcp {
    std::uint16_t sport = 5000;
    std::uint16_t dport = 6000;
    std::uint32_t sequence = 1;
    unsigned flags = 0x10; ///< ACK
    Bytes options{};       ///< a multiple of 4 bytes, up to 40
    std::optional<unsigned> header_words{};

    [[nodiscard]] static Name name() { return {.protocol = 6}; }
    [[nodiscard]] Bytes bytes(const Bytes &rest, Name /*next*/) const {
        Bytes out;
        detail::add16(out, sport);
        detail::add16(out, dport);
        detail::add32(out, sequence);
        detail::add32(out, 1);
        detail::add8(out, header_words.value_or(static_cast<unsigned>(5 + options.size() / 4)) << 4U);
        detail::add8(out, flags);
        detail::add16(out, 0xffff);
        detail::add32(out, 0);
        detail::add(out, options);
        detail::add(out, rest);
        return out;
    }
};

/// VXLAN (RFC 7348); an Ethernet header follows.
struct Vxlan {
    std::uint32_t vni = 7;
    std::uint8_t flags = 0x08;
    std::uint32_t reserved = 0;  ///< 24 bits behind the flags
    std::uint8_t reserved_2 = 0; ///< behind the VNI

    [[nodiscard]] static Name name() { return {}; }
    [[nodiscard]] Bytes bytes(const Bytes &rest, Name /*next*/) const {
        Bytes out;
        detail::add32(out, std::uint32_t{flags} << 24U | reserved);
        detail::add32(out, vni << 8U | reserved_2);
        detail::add(out, rest);
        return out;
    }
};

/// Echo request.
struct Icmp {
    bool v6 = false;

    [[nodiscard]] Name name() const { return {.protocol = static_cast<std::uint8_t>(v6 ? 58 : 1)}; }
    [[nodiscard]] Bytes bytes(const Bytes &rest, Name /*next*/) const {
        Bytes out{static_cast<std::uint8_t>(v6 ? 128 : 8), 0, 0, 0, 0, 1, 0, 1};
        detail::add(out, rest);
        return out;
    }
};

/// Any bytes. `name_` tells the layer before what they are.
struct Raw {
    Bytes content{};
    Name name_{};

    [[nodiscard]] Name name() const { return name_; }
    [[nodiscard]] Bytes bytes(const Bytes &rest, Name /*next*/) const {
        Bytes out = content;
        detail::add(out, rest);
        return out;
    }
};

[[nodiscard]] inline Raw zeros(std::size_t count) {
    return {.content = Bytes(count)};
}

template <class T>
concept Layer = requires(const T &layer, const Bytes &rest, Name next) {
    { layer.name() } -> std::same_as<Name>;
    { layer.bytes(rest, next) } -> std::same_as<Bytes>;
};

/// Layers, outermost first.
class Packet {
  public:
    template <Layer T> // NOLINTNEXTLINE(google-explicit-constructor): a layer is a packet
    Packet(const T &layer) {
        add(layer);
    }

    template <Layer T>
    void add(const T &layer) {
        layers_.push_back({.name = layer.name(), .write = [layer](const Bytes &rest, Name next) {
                               return layer.bytes(rest, next);
                           }});
    }

    [[nodiscard]] Bytes bytes() const {
        Bytes rest;
        Name next;
        for (const auto &layer : std::views::reverse(layers_)) {
            rest = layer.write(rest, next);
            next = layer.name;
        }
        return rest;
    }

  private:
    struct Written {
        Name name;
        std::function<Bytes(const Bytes &, Name)> write;
    };
    std::vector<Written> layers_;
};

template <Layer T>
[[nodiscard]] Packet operator/(Packet packet, const T &inner) {
    packet.add(inner);
    return packet;
}
template <Layer Outer, Layer Inner>
[[nodiscard]] Packet operator/(const Outer &outer, const Inner &inner) {
    return Packet(outer) / inner;
}

/// `bytes` and zeros up to the shortest Ethernet frame, 60 bytes.
[[nodiscard]] inline Bytes padded(Bytes bytes) {
    if (bytes.size() < 60)
        bytes.resize(60);
    return bytes;
}

} // namespace spillway::packet
