/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Congestion isolation packet (spec R2), without its Ethernet header, so that another link type needs only
 * another carrier (R11).
 *
 * Headers form (the patent's figure 3): the flow packet's own IP header and transport header in their
 * standard format. Lengths inside are those of the packet they were copied from, and are not compared with
 * the frame. The carrier pads with zeros to its minimum.
 *
 * A receiver takes what begins with 0x4x (IPv4), 0x6x (IPv6) or 0xC1 (the descriptor form, which this version
 * does not read and counts as bad_version); anything else of the same EtherType belongs to somebody else
 * (slow protocols share 0x8809) and passes untouched. */
#ifndef SPILLWAY_CIP_H
#define SPILLWAY_CIP_H

#include "flow_key.h"

/* Standard EtherType of spec R2a: 'slow protocols', shared with LACP, marker and OAM. */
#define SPILLWAY_CIP_ETHERTYPE 0x8809
#define SPILLWAY_CIP_DESCRIPTOR 0xc1

/* Longest payload: IPv6 with extension headers and TCP with options. */
#define SPILLWAY_CIP_PAYLOAD_MAX 255
/* Smallest payload of an Ethernet frame (60 bytes without FCS). */
#define SPILLWAY_CIP_PAYLOAD_MIN 46

/* Is a payload that begins with `first` ours, well-formed or not? */
SPILLWAY_INLINE int spillway_cip_is_ours(__u8 first) {
    return first >> 4 == 4 || first >> 4 == 6 || first == SPILLWAY_CIP_DESCRIPTOR;
}

/* Reads the flow a payload describes into a zeroed key (port left 0). */
SPILLWAY_INLINE enum spillway_reason spillway_cip_read(const __u8 *payload, const __u8 *end,
                                                       struct spillway_flow_key *key) {
    struct spillway_layout layout;
    return spillway_parse_ip(payload, end, key, &layout);
}

/* Writes the headers form for `key` where the flow packet's own bytes are not at hand (repeats): smallest
 * standard headers with the key's addresses, protocol, ports and, for a 3-tuple of TCP or UDP, the fragment
 * bits that make it one. Returns the length, not padded; `payload` has SPILLWAY_CIP_PAYLOAD_MAX bytes. */
SPILLWAY_INLINE __u32 spillway_cip_write(const struct spillway_flow_key *key, __u8 *payload) {
    const int ports = key->flags & SPILLWAY_KEY_PORTS;
    const int fragment = !ports && (key->proto == SPILLWAY_PROTO_TCP || key->proto == SPILLWAY_PROTO_UDP);
    const __u32 transport = !ports ? 0 : key->proto == SPILLWAY_PROTO_TCP ? 20 : 8;
    __u32 at = 0;
    __builtin_memset(payload, 0, SPILLWAY_CIP_PAYLOAD_MAX);
    if (key->family == 4) {
        at = 20;
        payload[0] = 0x45;
        payload[3] = (__u8)(at + transport);
        payload[6] = fragment ? 0x20 : 0; /* more fragments */
        payload[8] = 64;
        payload[9] = key->proto;
        __builtin_memcpy(payload + 12, key->src, 4);
        __builtin_memcpy(payload + 16, key->dst, 4);
        __u32 sum = 0;
        for (int i = 0; i < 20; i += 2)
            sum += spillway_be16(payload + i);
        sum = (sum & 0xffff) + (sum >> 16);
        sum = ~(sum + (sum >> 16)) & 0xffff;
        payload[10] = (__u8)(sum >> 8);
        payload[11] = (__u8)(sum & 0xff);
    } else {
        at = 40;
        payload[0] = 0x60;
        payload[5] = (__u8)(transport + (fragment ? 8 : 0));
        payload[6] = fragment ? SPILLWAY_PROTO_FRAGMENT : key->proto;
        payload[7] = 64;
        __builtin_memcpy(payload + 8, key->src, 16);
        __builtin_memcpy(payload + 24, key->dst, 16);
        if (fragment) {
            payload[40] = key->proto;
            payload[43] = 1; /* more fragments */
            at = 48;
        }
    }
    if (ports) {
        payload[at] = (__u8)(key->sport >> 8);
        payload[at + 1] = (__u8)(key->sport & 0xff);
        payload[at + 2] = (__u8)(key->dport >> 8);
        payload[at + 3] = (__u8)(key->dport & 0xff);
        if (key->proto == SPILLWAY_PROTO_TCP)
            payload[at + 12] = 5 << 4;
        else
            payload[at + 5] = 8;
    }
    return at + transport;
}

#endif
