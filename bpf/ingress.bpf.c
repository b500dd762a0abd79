/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* TC ingress: traps CIPs where XDP does not (or did not see them), and learns the upstream node of flows from
 * their own packets. XDP cannot learn: it does not see a tag that the hardware took off. */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lib/packet.h"
#include "lib/trap.h"
#include "lib/upstream.h"

static __always_inline bool trap(struct __sk_buff *skb) {
    /* The longest header chain a CIP may hold; a shorter frame is pulled whole. */
    bpf_skb_pull_data(skb, skb->len < PULL_BYTES ? skb->len : PULL_BYTES);
    const __u8 *frame = (const __u8 *)(long)skb->data;
    return trap_cip(frame, frame + 14, (const __u8 *)(long)skb->data_end, skb->ifindex);
}

/* Notes who sends a flow whose upstream node is wanted. */
static __always_inline void learn(struct __sk_buff *skb, struct spillway_settings *set) {
    const __u64 now = bpf_ktime_get_ns();
    if (spillway_since(set->learn_until_ns, now) <= 0) {
        set->learn_until_ns = 0;
        return;
    }
    struct spillway_flow_key key;
    struct spillway_layout layout;
    if (parse_skb(skb, &key, &layout) != SPILLWAY_OK)
        return;
    const __u32 in_tunnel = key.flags & SPILLWAY_KEY_VNI;
    struct spillway_flow_key known = key;
    upstream_key(&known, find_port(skb->ifindex));
    struct spillway_upstream *node = bpf_map_lookup_elem(&upstream, &known);
    if (!node && !in_tunnel) { /* it leaves by a port of no tunnel */
        known = key;
        node = bpf_map_lookup_elem(&upstream, &known);
    }
    if (!node || !node->wanted_until_ns || spillway_since(node->wanted_until_ns, now) <= 0)
        return;
    const __u8 *frame = (const __u8 *)(long)skb->data;
    if (frame + 14 > (const __u8 *)(long)skb->data_end)
        return;
    __u8 differs = node->port != skb->ifindex;
    for (int i = 0; i < 6; i++)
        differs |= node->mac[i] ^ frame[6 + i];
    if (differs)
        node->sent = 0; /* another upstream node: it gets its own first CIPs */
    node->wanted_until_ns = 0;
    node->port = skb->ifindex;
    __builtin_memcpy(node->mac, frame + 6, 6);
    node->vlan_tci = skb->vlan_present ? skb->vlan_tci : 0;
    node->vlan_proto = skb->vlan_present ? bpf_ntohs(skb->vlan_proto) : 0;
    node->tunnelled = in_tunnel ? 1 : 0;
    node->learned_ns = now;
    struct spillway_event *event = new_event(SPILLWAY_EVENT_LEARNED, now);
    if (event) {
        event->key = known;
        __builtin_memcpy(event->mac, node->mac, 6);
        bpf_ringbuf_submit(event, 0);
    }
}

SEC("tc")
int spillway_ingress(struct __sk_buff *skb) {
    if (skb->protocol == bpf_htons(cip_ethertype))
        return trap(skb) ? TC_ACT_SHOT : TC_ACT_UNSPEC;
    struct spillway_settings *set = get_settings();
    if (set && set->learn_until_ns && !set->panic)
        learn(skb, set);
    return TC_ACT_UNSPEC;
}
