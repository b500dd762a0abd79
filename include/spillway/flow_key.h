/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The description information of a flow (spec R2d) as a key, and the packet parser that makes it.
 *
 * The parser takes plain pointers and bounds, so that the same lines run in TC, in XDP, on the payload of a
 * congestion isolation packet and in the tests. It reads only what it has compared with `end`. */
#ifndef SPILLWAY_FLOW_KEY_H
#define SPILLWAY_FLOW_KEY_H

#include "base.h"

/* The key's ports are those of the packet; without it the key is a 3-tuple. */
#define SPILLWAY_KEY_PORTS 1
/* The key's vni is that of a VXLAN header; without it the packet was not in a tunnel. */
#define SPILLWAY_KEY_VNI 2

/* One flow on one port. Unused parts are zero, so that keys compare as bytes. */
struct spillway_flow_key {
    __u8 src[16]; /* IPv4 in the first four bytes */
    __u8 dst[16];
    __u32 vni;
    __u32 port;  /* ifindex the flow leaves through (B7); 0 where the port does not matter */
    __u16 sport; /* host order */
    __u16 dport; /* host order */
    __u8 family; /* 4 or 6 */
    __u8 proto;  /* IP protocol number */
    __u16 flags; /* SPILLWAY_KEY_* */
} __attribute__((aligned(8)));
SPILLWAY_ASSERT(sizeof(struct spillway_flow_key) == 48);
SPILLWAY_ASSERT(SPILLWAY_OFFSET(spillway_flow_key, vni) == 32);
SPILLWAY_ASSERT(SPILLWAY_OFFSET(spillway_flow_key, sport) == 40);
SPILLWAY_ASSERT(SPILLWAY_OFFSET(spillway_flow_key, flags) == 46);

/* Why a packet or a CIP was not taken. The first ones come from the parser. Names as in `status --json`. */
enum spillway_reason {
    SPILLWAY_OK = 0,
    SPILLWAY_TOO_SHORT = 1,           /* ends inside a header */
    SPILLWAY_BAD_VERSION = 2,         /* first nibble neither 4 nor 6, nor a form this version knows */
    SPILLWAY_BAD_HEADER = 3,          /* a header length no packet can have */
    SPILLWAY_TOO_MANY_EXTENSIONS = 4, /* more than SPILLWAY_EXTENSIONS_MAX IPv6 extension headers */
    SPILLWAY_NOT_IP = 5,              /* another EtherType: never isolated */
    SPILLWAY_TOO_MANY_TAGS = 6,       /* more than two VLAN tags */
    SPILLWAY_NOT_ACCEPTED = 7,        /* the port has accept_cip: false */
    SPILLWAY_RATE_LIMITED = 8,        /* more CIPs in a second than the port takes */
    SPILLWAY_TABLE_FULL = 9,
    SPILLWAY_QUOTA = 10,         /* the port has as many entries as it may have */
    SPILLWAY_BAD_TYPE = 11,      /* descriptor: neither isolate nor restore */
    SPILLWAY_BAD_FAMILY = 12,    /* descriptor: neither IPv4 nor IPv6 */
    SPILLWAY_BAD_FLAGS = 13,     /* descriptor: a flag nobody knows, or a field that contradicts its flag */
    SPILLWAY_NESTED_TUNNEL = 14, /* a VXLAN header inside a VXLAN tunnel */
};

/* Headers lie within this many bytes (2^n - 1); longer extension chains count as too many. */
#define SPILLWAY_HEADERS_MASK 2047

/* UDP ports whose packets carry VXLAN (RFC 7348), host order; unused ones are 0. */
#define SPILLWAY_VXLAN_PORTS_MAX 4
#define SPILLWAY_VXLAN_PORT 4789
#define SPILLWAY_VNI_MAX 0xffffffU

struct spillway_tunnels {
    __u16 vxlan_ports[SPILLWAY_VXLAN_PORTS_MAX];
};

#define SPILLWAY_TAGS_MAX 2
#define SPILLWAY_EXTENSIONS_MAX 6

#define SPILLWAY_ETH_P_IP 0x0800
#define SPILLWAY_ETH_P_IPV6 0x86dd
#define SPILLWAY_ETH_P_8021Q 0x8100
#define SPILLWAY_ETH_P_8021AD 0x88a8

#define SPILLWAY_PROTO_HOPOPTS 0
#define SPILLWAY_PROTO_TCP 6
#define SPILLWAY_PROTO_UDP 17
#define SPILLWAY_PROTO_ROUTING 43
#define SPILLWAY_PROTO_FRAGMENT 44
#define SPILLWAY_PROTO_AH 51
#define SPILLWAY_PROTO_DSTOPTS 60

/* Where the headers lie, in bytes from the start given to the parser. */
struct spillway_layout {
    __u32 network; /* first byte of the IP header, in a tunnel the outer one */
    __u32 end;     /* first byte after the transport header, or after the IP header of a 3-tuple; in a tunnel
                    * the inner one */
};

/* Bytes of a packet, at any address. BPF has loads for that, but its compiler would not use them. */
#ifdef __bpf__
SPILLWAY_INLINE __u16 spillway_be16(const __u8 *p) {
    const __u16 value = *(const __u16 *)p;
    return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? __builtin_bswap16(value) : value;
}

SPILLWAY_INLINE void spillway_copy(__u8 *to, const __u8 *from, int bytes) {
    for (int i = 0; i < bytes; i += 4)
        *(__u32 *)(to + i) = *(const __u32 *)(from + i);
}
#else
SPILLWAY_INLINE __u16 spillway_be16(const __u8 *p) {
    return (__u16)((p[0] << 8) | p[1]);
}

SPILLWAY_INLINE void spillway_copy(__u8 *to, const __u8 *from, int bytes) {
    __builtin_memcpy(to, from, (__SIZE_TYPE__)bytes);
}
#endif

/* Transport header at `at`: ports into the key. TCP's data offset is honoured, so that `end` is right for a
 * copy of the header with its options. */
SPILLWAY_INLINE enum spillway_reason spillway_parse_transport(const __u8 *start, const __u8 *end, __u32 at,
                                                              struct spillway_flow_key *key,
                                                              struct spillway_layout *layout) {
    const __u8 *p = start + at;
    layout->end = at;
    if (key->proto == SPILLWAY_PROTO_UDP) {
        if (p + 8 > end)
            return SPILLWAY_TOO_SHORT;
        layout->end = at + 8;
    } else if (key->proto == SPILLWAY_PROTO_TCP) {
        if (p + 20 > end)
            return SPILLWAY_TOO_SHORT;
        const __u32 length = (__u32)(p[12] >> 4) * 4;
        if (length < 20)
            return SPILLWAY_BAD_HEADER;
        layout->end = at + length;
    } else {
        return SPILLWAY_OK;
    }
    key->sport = spillway_be16(p);
    key->dport = spillway_be16(p + 2);
    key->flags |= SPILLWAY_KEY_PORTS;
    return SPILLWAY_OK;
}

SPILLWAY_INLINE enum spillway_reason spillway_parse_ipv4(const __u8 *start, const __u8 *end, __u32 at,
                                                         struct spillway_flow_key *key,
                                                         struct spillway_layout *layout) {
    const __u8 *p = start + at;
    if (p + 20 > end)
        return SPILLWAY_TOO_SHORT;
    if (p[0] >> 4 != 4)
        return SPILLWAY_BAD_VERSION;
    const __u32 length = (__u32)(p[0] & 0xf) * 4;
    if (length < 20)
        return SPILLWAY_BAD_HEADER;
    key->family = 4;
    key->proto = p[9];
    spillway_copy(key->src, p + 12, 4);
    spillway_copy(key->dst, p + 16, 4);
    layout->network = at;
    layout->end = at + length;
    /* More fragments, or an offset: the ports are in one fragment only, so none of them shows any. */
    if (spillway_be16(p + 6) & 0x3fff)
        return SPILLWAY_OK;
    return spillway_parse_transport(start, end, at + length, key, layout);
}

SPILLWAY_INLINE enum spillway_reason spillway_parse_ipv6(const __u8 *start, const __u8 *end, __u32 at,
                                                         struct spillway_flow_key *key,
                                                         struct spillway_layout *layout) {
    const __u8 *p = start + at;
    if (p + 40 > end)
        return SPILLWAY_TOO_SHORT;
    if (p[0] >> 4 != 6)
        return SPILLWAY_BAD_VERSION;
    key->family = 6;
    spillway_copy(key->src, p + 8, 16);
    spillway_copy(key->dst, p + 24, 16);
    layout->network = at;
    __u8 next = p[6];
    at += 40;
    SPILLWAY_UNROLLED
    for (int i = 0; i <= SPILLWAY_EXTENSIONS_MAX; i++) {
        const int fragment = next == SPILLWAY_PROTO_FRAGMENT;
        const int authentication = next == SPILLWAY_PROTO_AH;
        if (!fragment && !authentication && next != SPILLWAY_PROTO_HOPOPTS &&
            next != SPILLWAY_PROTO_ROUTING && next != SPILLWAY_PROTO_DSTOPTS) {
            key->proto = next;
            return spillway_parse_transport(start, end, at, key, layout);
        }
        p = start + at;
        if (p + 8 > end)
            return SPILLWAY_TOO_SHORT;
        next = p[0];
        at += 8;
        if (fragment && (spillway_be16(p + 2) & 0xfff9)) {
            key->proto = next;
            layout->end = at;
            return SPILLWAY_OK;
        }
        if (authentication) /* counts 4-byte units less two (RFC 4302) */
            at += (__u32)p[1] * 4;
        else if (!fragment) /* counts 8-byte units less one (RFC 8200); byte 1 of a fragment is reserved */
            at += (__u32)p[1] * 8;
        if (at > SPILLWAY_HEADERS_MASK)
            return SPILLWAY_TOO_MANY_EXTENSIONS;
        at = spillway_bounded(at, SPILLWAY_HEADERS_MASK);
    }
    return SPILLWAY_TOO_MANY_EXTENSIONS;
}

/* The IP header at `at`, by the EtherType before it. */
SPILLWAY_INLINE enum spillway_reason spillway_parse_network(const __u8 *start, const __u8 *end, __u32 at,
                                                            __u16 type, struct spillway_flow_key *key,
                                                            struct spillway_layout *layout) {
    if (type == SPILLWAY_ETH_P_IP)
        return spillway_parse_ipv4(start, end, at, key, layout);
    if (type == SPILLWAY_ETH_P_IPV6)
        return spillway_parse_ipv6(start, end, at, key, layout);
    return SPILLWAY_NOT_IP;
}

/* Ethernet header at `at`, with `tags` VLAN tags already counted. */
SPILLWAY_INLINE enum spillway_reason spillway_parse_ethernet(const __u8 *start, const __u8 *end, __u32 at,
                                                             int tags, struct spillway_flow_key *key,
                                                             struct spillway_layout *layout) {
    const __u8 *p = start + at;
    if (p + 14 > end)
        return SPILLWAY_TOO_SHORT;
    __u16 type = spillway_be16(p + 12);
    at += 14;
    SPILLWAY_UNROLLED
    for (int i = 0; i <= SPILLWAY_TAGS_MAX; i++) {
        if (type != SPILLWAY_ETH_P_8021Q && type != SPILLWAY_ETH_P_8021AD)
            break;
        if (++tags > SPILLWAY_TAGS_MAX)
            return SPILLWAY_TOO_MANY_TAGS;
        p = start + at;
        if (p + 4 > end)
            return SPILLWAY_TOO_SHORT;
        type = spillway_be16(p + 2);
        at += 4;
    }
    return spillway_parse_network(start, end, spillway_bounded(at, SPILLWAY_HEADERS_MASK), type, key, layout);
}

/* What a VXLAN header is followed by, as a function of its own: it is the second of two parsers. */
SPILLWAY_NOINLINE enum spillway_reason spillway_parse_inner(const __u8 *start, const __u8 *end, __u32 at,
                                                            struct spillway_flow_key *key,
                                                            struct spillway_layout *layout) {
    return spillway_parse_ethernet(start, end, spillway_bounded(at, SPILLWAY_HEADERS_MASK), 0, key, layout);
}

/* Is what follows the parsed headers a VXLAN header? The UDP port alone does not tell: the flags have to be
 * those of RFC 7348, and what it reserves zero (VXLAN-GPE and group policy are other protocols). A packet
 * whose UDP header leaves no room for it has none. 0 no, 1 yes, -1 it is cut off. Bytes that were looked at
 * in vain count as headers, so that who reads a copy comes to the same answer. */
SPILLWAY_INLINE int spillway_has_vxlan(const __u8 *start, const __u8 *end,
                                       const volatile struct spillway_tunnels *tunnels,
                                       const struct spillway_flow_key *key, struct spillway_layout *layout) {
    if (key->proto != SPILLWAY_PROTO_UDP || !(key->flags & SPILLWAY_KEY_PORTS))
        return 0;
    int tunnel = 0;
    SPILLWAY_UNROLLED
    for (int i = 0; i < SPILLWAY_VXLAN_PORTS_MAX; i++)
        tunnel |= tunnels->vxlan_ports[i] && key->dport == tunnels->vxlan_ports[i];
    if (!tunnel)
        return 0;
    const __u32 at = spillway_bounded(layout->end, SPILLWAY_HEADERS_MASK);
    const __u8 *p = start + at;
    if (p + 8 > end) {
        const __u8 *udp = start + spillway_bounded(at - 8, SPILLWAY_HEADERS_MASK);
        return udp + 8 <= end && spillway_be16(udp + 4) >= 16 ? -1 : 0;
    }
    if (p[0] == 0x08 && !(p[1] | p[2] | p[3] | p[7]))
        return 1;
    layout->end = at + 8;
    return 0;
}

/* Goes on into a VXLAN tunnel: addresses, protocol and ports of the inner packet, and the VNI. */
SPILLWAY_INLINE enum spillway_reason spillway_parse_tunnel(const __u8 *start, const __u8 *end,
                                                           const volatile struct spillway_tunnels *tunnels,
                                                           struct spillway_flow_key *key,
                                                           struct spillway_layout *layout) {
    const int outer = spillway_has_vxlan(start, end, tunnels, key, layout);
    if (outer <= 0)
        return outer ? SPILLWAY_TOO_SHORT : SPILLWAY_OK;
    const __u32 network = layout->network;
    const __u32 at = spillway_bounded(layout->end, SPILLWAY_HEADERS_MASK);
    const __u8 *p = start + at;
    if (p + 8 > end) /* seen already, but not by the verifier */
        return SPILLWAY_TOO_SHORT;
    const __u32 vni = (__u32)p[4] << 16 | (__u32)p[5] << 8 | p[6];
    __builtin_memset(key, 0, sizeof(*key));
    const enum spillway_reason reason = spillway_parse_inner(start, end, at + 8, key, layout);
    layout->network = network;
    key->vni = vni;
    key->flags |= SPILLWAY_KEY_VNI;
    if (reason != SPILLWAY_OK)
        return reason;
    const int inner = spillway_has_vxlan(start, end, tunnels, key, layout);
    return inner ? inner > 0 ? SPILLWAY_NESTED_TUNNEL : SPILLWAY_TOO_SHORT : SPILLWAY_OK;
}

/* IP packet at `start`: how the payload of a CIP in headers form begins. The key must be zero. */
SPILLWAY_INLINE enum spillway_reason spillway_parse_ip(const __u8 *start, const __u8 *end,
                                                       const volatile struct spillway_tunnels *tunnels,
                                                       struct spillway_flow_key *key,
                                                       struct spillway_layout *layout) {
    if (start + 1 > end)
        return SPILLWAY_TOO_SHORT;
    const enum spillway_reason reason = start[0] >> 4 == 4 ? spillway_parse_ipv4(start, end, 0, key, layout)
                                                           : spillway_parse_ipv6(start, end, 0, key, layout);
    return reason == SPILLWAY_OK ? spillway_parse_tunnel(start, end, tunnels, key, layout) : reason;
}

/* Ethernet frame at `start`. `tags` is how many VLAN tags the metadata of the packet holds; they count
 * towards the limit of two. The key must be zero; its port is left so. */
SPILLWAY_INLINE enum spillway_reason spillway_parse_frame(const __u8 *start, const __u8 *end, int tags,
                                                          const volatile struct spillway_tunnels *tunnels,
                                                          struct spillway_flow_key *key,
                                                          struct spillway_layout *layout) {
    const enum spillway_reason reason = spillway_parse_ethernet(start, end, 0, tags, key, layout);
    return reason == SPILLWAY_OK ? spillway_parse_tunnel(start, end, tunnels, key, layout) : reason;
}

#define SPILLWAY_FILTER_SLOTS 65536

/* Slot of the `filter` map, from what tells most flows apart. */
SPILLWAY_INLINE __u32 spillway_filter_slot(const struct spillway_flow_key *key) {
    const int last = key->family == 6 ? 12 : 0; /* the last four bytes of an address */
    __u32 src, dst;
    __builtin_memcpy(&src, key->src + last, 4);
    __builtin_memcpy(&dst, key->dst + last, 4);
    __u64 hash = ((__u64)src << 32 | dst) * 0x9e3779b97f4a7c15ULL + ((__u32)key->sport << 16 | key->dport);
    hash ^= hash >> 32;
    return (__u32)(hash * 0xd6e8feb86659fd93ULL >> 48);
}

/* 64 bits spread evenly over all keys; not secret, so only for tables that survive collisions. */
SPILLWAY_INLINE __u64 spillway_hash(const struct spillway_flow_key *key) {
    __u64 word[6];
    __builtin_memcpy(word, key, sizeof(word));
    __u64 hash = 0x9e3779b97f4a7c15ULL;
    for (int i = 0; i < 6; i++) {
        hash ^= word[i];
        hash *= 0xd6e8feb86659fd93ULL;
        hash ^= hash >> 32;
    }
    return hash;
}

#endif
