/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Congestion isolation packet (spec R2), without its Ethernet header, so that another link type needs only
 * another carrier (R11). All fields are big-endian; the carrier pads with zeros to its minimum.
 *
 * Headers form (the patent's figure 3): the flow packet's own IP header and transport header in their
 * standard format; of a VXLAN packet all headers from the outer IP header to the inner transport header.
 * Lengths inside are those of the packet they were copied from, and are not compared with the frame.
 *
 * Descriptor form (our figure 4): 52 bytes, or 68 with an authentication tag, which this version does not
 * read.
 *
 *    0 u8  0xC1: magic and version        8 u32 VNI                 32 u8[16] destination
 *    1 u8  type: 1 isolate, 2 restore    12 u16 source port         48 u32 sequence, of its sender
 *    2 u8  family: 4, 6                  14 u16 destination port    52 u8[16] authentication tag, if any
 *    3 u8  IP protocol                   16 u8[16] source address
 *    4 u16 flags: 1 ports, 2 VNI, 4 tag     (IPv4 in the first four bytes)
 *    6 u16 lifetime in ms; 0: the receiver's own
 *
 * A receiver takes what begins with 0x4x (IPv4), 0x6x (IPv6) or 0xC1; anything else of the same EtherType
 * belongs to somebody else (slow protocols share 0x8809) and passes untouched. */
#ifndef SPILLWAY_CIP_H
#define SPILLWAY_CIP_H

#include "flow_key.h"

/* Standard EtherType of spec R2a: 'slow protocols', shared with LACP, marker and OAM. */
#define SPILLWAY_CIP_ETHERTYPE 0x8809
#define SPILLWAY_CIP_DESCRIPTOR 0xc1

/* Longest payload: two IPv6 headers with extensions and TCP with options. */
#define SPILLWAY_CIP_PAYLOAD_MAX 255
/* Smallest payload of an Ethernet frame (60 bytes without FCS). */
#define SPILLWAY_CIP_PAYLOAD_MIN 46

#define SPILLWAY_DESCRIPTOR_BYTES 52
#define SPILLWAY_DESCRIPTOR_TAG_BYTES 16

/* Bits of a descriptor's flags; the first two are those of the key. */
#define SPILLWAY_DESCRIPTOR_TAG 4

enum spillway_cip_type {
    SPILLWAY_CIP_ISOLATE = 1, /* lower the flow's priority */
    SPILLWAY_CIP_RESTORE = 2, /* an earlier one holds no longer; descriptor form only */
};

/* What a CIP says. */
struct spillway_cip {
    struct spillway_flow_key key; /* its port is 0 */
    enum spillway_cip_type type;
    __u32 lifetime_ms; /* 0..65535; 0: the receiver's own max_flow_life_ms */
    __u32 sequence;    /* 0 in headers form */
};

/* Is a payload that begins with `first` ours, well-formed or not? */
SPILLWAY_INLINE int spillway_cip_is_ours(__u8 first) {
    return first >> 4 == 4 || first >> 4 == 6 || first == SPILLWAY_CIP_DESCRIPTOR;
}

SPILLWAY_INLINE __u32 spillway_be32(const __u8 *p) {
    return (__u32)spillway_be16(p) << 16 | spillway_be16(p + 2);
}

/* Reads a descriptor; `cip` is zero. A field that its flag, family or type leaves without a meaning is zero,
 * or the descriptor is refused: two descriptions of one flow would be two flows. */
SPILLWAY_INLINE enum spillway_reason spillway_descriptor_read(const __u8 *p, const __u8 *end,
                                                              struct spillway_cip *cip) {
    if (p + SPILLWAY_DESCRIPTOR_BYTES > end)
        return SPILLWAY_TOO_SHORT;
    struct spillway_flow_key *key = &cip->key;
    const __u16 flags = spillway_be16(p + 4);
    const int ports = flags & SPILLWAY_KEY_PORTS;
    const int vni = flags & SPILLWAY_KEY_VNI;
    if ((flags & SPILLWAY_DESCRIPTOR_TAG) &&
        p + SPILLWAY_DESCRIPTOR_BYTES + SPILLWAY_DESCRIPTOR_TAG_BYTES > end)
        return SPILLWAY_TOO_SHORT;
    if (p[1] != SPILLWAY_CIP_ISOLATE && p[1] != SPILLWAY_CIP_RESTORE)
        return SPILLWAY_BAD_TYPE;
    if (p[2] != 4 && p[2] != 6)
        return SPILLWAY_BAD_FAMILY;
    if (flags & ~(SPILLWAY_KEY_PORTS | SPILLWAY_KEY_VNI | SPILLWAY_DESCRIPTOR_TAG))
        return SPILLWAY_BAD_FLAGS;
    if (ports && p[3] != SPILLWAY_PROTO_TCP && p[3] != SPILLWAY_PROTO_UDP)
        return SPILLWAY_BAD_FLAGS;
    cip->type = p[1] == SPILLWAY_CIP_RESTORE ? SPILLWAY_CIP_RESTORE : SPILLWAY_CIP_ISOLATE;
    cip->lifetime_ms = spillway_be16(p + 6);
    cip->sequence = spillway_be32(p + 48);
    key->family = p[2];
    key->proto = p[3];
    key->flags = (__u16)(flags & (SPILLWAY_KEY_PORTS | SPILLWAY_KEY_VNI));
    key->vni = spillway_be32(p + 8);
    key->sport = spillway_be16(p + 12);
    key->dport = spillway_be16(p + 14);
    if ((!ports && (key->sport | key->dport)) || (!vni && key->vni))
        return SPILLWAY_BAD_FLAGS;
    if (key->vni > SPILLWAY_VNI_MAX)
        return SPILLWAY_BAD_HEADER;
    if (p[2] == 6) {
        spillway_copy(key->src, p + 16, 16);
        spillway_copy(key->dst, p + 32, 16);
        return SPILLWAY_OK;
    }
    spillway_copy(key->src, p + 16, 4);
    spillway_copy(key->dst, p + 32, 4);
    __u8 rest = 0;
    for (int i = 4; i < 16; i++)
        rest |= p[16 + i] | p[32 + i];
    return rest ? SPILLWAY_BAD_HEADER : SPILLWAY_OK;
}

/* Reads what a payload of either form says; `cip` is zero. */
SPILLWAY_INLINE enum spillway_reason spillway_cip_read(const __u8 *payload, const __u8 *end,
                                                       const volatile struct spillway_tunnels *tunnels,
                                                       struct spillway_cip *cip) {
    struct spillway_layout layout;
    if (payload + 1 > end)
        return SPILLWAY_TOO_SHORT;
    if (payload[0] == SPILLWAY_CIP_DESCRIPTOR)
        return spillway_descriptor_read(payload, end, cip);
    cip->type = SPILLWAY_CIP_ISOLATE;
    return spillway_parse_ip(payload, end, tunnels, &cip->key, &layout);
}

SPILLWAY_INLINE void spillway_put16(__u8 *to, __u32 value) {
    to[0] = (__u8)(value >> 8);
    to[1] = (__u8)value;
}

SPILLWAY_INLINE void spillway_put32(__u8 *to, __u32 value) {
    spillway_put16(to, value >> 16);
    spillway_put16(to + 2, value);
}

/* Writes the descriptor form. Returns its length; `payload` has SPILLWAY_CIP_PAYLOAD_MAX bytes. */
SPILLWAY_INLINE __u32 spillway_descriptor_write(const struct spillway_cip *cip, __u8 *payload) {
    const struct spillway_flow_key *key = &cip->key;
    __builtin_memset(payload, 0, SPILLWAY_CIP_PAYLOAD_MAX);
    payload[0] = SPILLWAY_CIP_DESCRIPTOR;
    payload[1] = (__u8)cip->type;
    payload[2] = key->family;
    payload[3] = key->proto;
    spillway_put16(payload + 4, key->flags);
    spillway_put16(payload + 6, cip->lifetime_ms);
    spillway_put32(payload + 8, key->vni);
    spillway_put16(payload + 12, key->sport);
    spillway_put16(payload + 14, key->dport);
    __builtin_memcpy(payload + 16, key->src, 16);
    __builtin_memcpy(payload + 32, key->dst, 16);
    spillway_put32(payload + 48, cip->sequence);
    return SPILLWAY_DESCRIPTOR_BYTES;
}

/* Writes an IP header and its transport header at `to`, with room for `payload` bytes behind them. Returns
 * their length. Without ports TCP and UDP get the fragment bits that make them a 3-tuple. */
SPILLWAY_INLINE __u32 spillway_headers_put(__u8 *to, const struct spillway_flow_key *key, __u32 payload) {
    const int ports = key->flags & SPILLWAY_KEY_PORTS;
    const int fragment = !ports && (key->proto == SPILLWAY_PROTO_TCP || key->proto == SPILLWAY_PROTO_UDP);
    const __u32 transport = !ports ? 0 : key->proto == SPILLWAY_PROTO_TCP ? 20 : 8;
    __u32 at = 0;
    if (key->family == 4) {
        at = 20;
        to[0] = 0x45;
        spillway_put16(to + 2, at + transport + payload);
        to[6] = fragment ? 0x20 : 0; /* more fragments */
        to[8] = 64;
        to[9] = key->proto;
        __builtin_memcpy(to + 12, key->src, 4);
        __builtin_memcpy(to + 16, key->dst, 4);
        __u32 sum = 0;
        for (int i = 0; i < 20; i += 2)
            sum += spillway_be16(to + i);
        sum = (sum & 0xffff) + (sum >> 16);
        spillway_put16(to + 10, ~(sum + (sum >> 16)) & 0xffff);
    } else {
        at = 40;
        to[0] = 0x60;
        spillway_put16(to + 4, transport + payload + (fragment ? 8 : 0));
        to[6] = fragment ? SPILLWAY_PROTO_FRAGMENT : key->proto;
        to[7] = 64;
        __builtin_memcpy(to + 8, key->src, 16);
        __builtin_memcpy(to + 24, key->dst, 16);
        if (fragment) {
            to[40] = key->proto;
            to[43] = 1; /* more fragments */
            at = 48;
        }
    }
    if (ports) {
        spillway_put16(to + at, key->sport);
        spillway_put16(to + at + 2, key->dport);
        if (key->proto == SPILLWAY_PROTO_TCP)
            to[at + 12] = 5 << 4;
        else
            spillway_put16(to + at + 4, 8 + payload);
    }
    return at + transport;
}

/* Writes the headers form for `key` where the flow packet's own bytes are not at hand (repeats): the smallest
 * standard headers from which a receiver reads the key. Those of a tunnel around a VXLAN flow are made up,
 * with the flow's own addresses. `vxlan_port` is the tunnel's UDP port. Returns the length, not padded;
 * `payload` has SPILLWAY_CIP_PAYLOAD_MAX bytes. */
SPILLWAY_INLINE __u32 spillway_headers_write(const struct spillway_flow_key *key, __u16 vxlan_port,
                                             __u8 *payload) {
    __builtin_memset(payload, 0, SPILLWAY_CIP_PAYLOAD_MAX);
    if (!(key->flags & SPILLWAY_KEY_VNI))
        return spillway_headers_put(payload, key, 0);
    struct spillway_flow_key tunnel = *key;
    tunnel.proto = SPILLWAY_PROTO_UDP;
    tunnel.flags = SPILLWAY_KEY_PORTS;
    tunnel.dport = vxlan_port;
    const __u32 vxlan = key->family == 4 ? 28 : 48;
    const __u32 inner = vxlan + 8 + 14;
    const __u32 length = spillway_headers_put(payload + inner, key, 0);
    spillway_headers_put(payload, &tunnel, 8 + 14 + length);
    payload[vxlan] = 0x08;
    spillway_put32(payload + vxlan + 4, key->vni << 8);
    spillway_put16(payload + inner - 2, key->family == 4 ? SPILLWAY_ETH_P_IP : SPILLWAY_ETH_P_IPV6);
    return inner + length;
}

#endif
