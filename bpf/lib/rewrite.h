/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Lowers the priority that a packet carries in its own fields (R4a), so that the next node and its flow
 * control see the isolation (R4d). Pointers into the packet end here; offsets stay true. */
#ifndef SPILLWAY_REWRITE_H
#define SPILLWAY_REWRITE_H

#include <linux/bpf.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "spillway/abi.h"
#include "spillway/priority.h"

/* The outermost tag decides: the one in the metadata if there is one, else the one in the packet. */
static __always_inline void rewrite_pcp(struct __sk_buff *skb, const struct spillway_port *port,
                                        const struct spillway_layout *layout) {
    const __u32 pcp = port->rewrite_pcp & SPILLWAY_PCP_MAX;
    const __u32 rank = spillway_pcp_rank(pcp);
    if (skb->vlan_present) {
        const __u16 tci = (__u16)skb->vlan_tci;
        const __be16 proto = (__be16)skb->vlan_proto;
        /* An inner tag goes to the metadata with the pop and back into the packet with the push. */
        if (rank < spillway_pcp_rank(tci >> 13) && !bpf_skb_vlan_pop(skb))
            bpf_skb_vlan_push(skb, proto, spillway_tci_with_pcp(tci, pcp));
        return;
    }
    if (layout->network > 14) {
        __be16 tci;
        if (bpf_skb_load_bytes(skb, 14, &tci, sizeof(tci)) || rank >= spillway_pcp_rank(bpf_ntohs(tci) >> 13))
            return;
        tci = bpf_htons(spillway_tci_with_pcp(bpf_ntohs(tci), pcp));
        bpf_skb_store_bytes(skb, 14, &tci, sizeof(tci), BPF_F_RECOMPUTE_CSUM);
        return;
    }
    /* Without a tag a packet has the priority of PCP 0. */
    if (port->flags & SPILLWAY_PORT_TAG_UNTAGGED && rank < spillway_pcp_rank(0))
        bpf_skb_vlan_push(skb, bpf_htons(SPILLWAY_ETH_P_8021Q), spillway_tci_with_pcp(0, pcp));
}

/* DSCP and ECN. Of a tunnelled packet these are the outer header's, which the network on the way sees. */
static __always_inline void rewrite_tos(struct __sk_buff *skb, const struct spillway_port *port,
                                        const struct spillway_layout *layout) {
    const __u32 dscp = port->rewrite_dscp & SPILLWAY_DSCP_MAX;
    const __u32 at = layout->network;
    __be16 word; /* IPv4: version, header length, TOS; IPv6: version, traffic class, 4 bits of the label */
    if (bpf_skb_load_bytes(skb, at, &word, sizeof(word)))
        return;
    const __u16 old = bpf_ntohs(word);
    const bool ipv6 = old >> 12 == 6;
    const int shift = ipv6 ? 4 : 0;
    const __u8 tos = (__u8)(old >> shift);
    __u8 lowered = tos;
    if (port->flags & SPILLWAY_PORT_REWRITE_DSCP && spillway_dscp_rank(dscp) < spillway_dscp_rank(tos >> 2))
        lowered = spillway_tos_with_dscp(tos, dscp);
    if (port->flags & SPILLWAY_PORT_ECN)
        lowered = spillway_tos_with_ce(lowered);
    if (lowered == tos)
        return;
    const __be16 fresh = bpf_htons((old & (__u16) ~(0xff << shift)) | (__u16)(lowered << shift));
    /* The header's sum stays zero, and so does what it adds to a sum over the packet; IPv6 has none. */
    if (!ipv6)
        bpf_l3_csum_replace(skb, at + 10, word, fresh, sizeof(word));
    bpf_skb_store_bytes(skb, at, &fresh, sizeof(fresh), ipv6 ? BPF_F_RECOMPUTE_CSUM : 0);
}

static __always_inline void rewrite(struct __sk_buff *skb, const struct spillway_port *port,
                                    const struct spillway_layout *layout) {
    if (port->flags & (SPILLWAY_PORT_REWRITE_DSCP | SPILLWAY_PORT_ECN))
        rewrite_tos(skb, port, layout);
    if (port->flags & SPILLWAY_PORT_REWRITE_PCP)
        rewrite_pcp(skb, port, layout);
}

#endif
