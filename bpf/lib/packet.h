/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* From an skb to a flow key. */
#ifndef SPILLWAY_PACKET_H
#define SPILLWAY_PACKET_H

#include <linux/bpf.h>
#include <stdbool.h>

#include <bpf/bpf_helpers.h>

#include "spillway/flow_key.h"

/* Ethernet, two tags, IPv6 with a few extension headers, TCP: what is pulled when headers lie in fragments. */
#define PULL_BYTES 192

/* Own functions: the parser is unrolled once, not at each call. */
static __noinline int parse_linear(struct __sk_buff *skb, struct spillway_flow_key *key,
                                   struct spillway_layout *layout) {
    __builtin_memset(key, 0, sizeof(*key));
    return spillway_parse_frame((const __u8 *)(long)skb->data, (const __u8 *)(long)skb->data_end,
                                skb->vlan_present ? 1 : 0, key, layout);
}

/* Fills in everything but the key's port. Headers may lie outside the linear part (GRO, sendfile). */
static __always_inline enum spillway_reason parse_skb(struct __sk_buff *skb, struct spillway_flow_key *key,
                                                      struct spillway_layout *layout) {
    int reason = parse_linear(skb, key, layout);
    if (reason == SPILLWAY_TOO_SHORT) {
        bpf_skb_pull_data(skb, skb->len < PULL_BYTES ? skb->len : PULL_BYTES);
        reason = parse_linear(skb, key, layout);
    }
    return reason;
}

#endif
