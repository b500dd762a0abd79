/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* From an skb to a flow key. */
#ifndef SPILLWAY_PACKET_H
#define SPILLWAY_PACKET_H

#include <linux/bpf.h>
#include <stdbool.h>

#include <bpf/bpf_helpers.h>

#include "spillway/flow_key.h"
#include "tunnels.h"

/* Pulled when headers lie in fragments: two tags, a VXLAN tunnel over IPv6, IPv6 with a few extension
 * headers, TCP. */
#define PULL_BYTES 288

static __always_inline enum spillway_reason parse_linear(struct __sk_buff *skb, struct spillway_flow_key *key,
                                                         struct spillway_layout *layout) {
    __builtin_memset(key, 0, sizeof(*key));
    return spillway_parse_frame((const __u8 *)(long)skb->data, (const __u8 *)(long)skb->data_end,
                                skb->vlan_present ? 1 : 0, &tunnels, key, layout);
}

/* Headers may lie outside the linear part (GRO, sendfile). */
static __noinline int parse_pulled(struct __sk_buff *skb, struct spillway_flow_key *key,
                                   struct spillway_layout *layout) {
    bpf_skb_pull_data(skb, skb->len < PULL_BYTES ? skb->len : PULL_BYTES);
    return parse_linear(skb, key, layout);
}

/* Fills in everything but the key's port. Nearly all packets are parsed in place: a call costs twice as much
 * as the parser. */
static __always_inline enum spillway_reason parse_skb(struct __sk_buff *skb, struct spillway_flow_key *key,
                                                      struct spillway_layout *layout) {
    const enum spillway_reason reason = parse_linear(skb, key, layout);
    return reason == SPILLWAY_TOO_SHORT ? (enum spillway_reason)parse_pulled(skb, key, layout) : reason;
}

#endif
