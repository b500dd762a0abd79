/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Counts, for each arrival port and priority of a switch, the bytes that wait in it: the input of
 * priority-based flow control. A packet is stamped where it comes in and taken off where it leaves the
 * switch, or where it is dropped; its priority is read from its own DSCP. The stamp is skb->mark, which does
 * not outlive the namespace. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <stdbool.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "occupancy_abi.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Stamp: 0xA in the top four bits, port (8 bits), priority (4 bits), length (16 bits). */
#define STAMP_MAGIC 0xA0000000U
#define STAMP_MAGIC_MASK 0xF0000000U

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct sk_buff {
    __u32 mark;
};
#pragma clang attribute pop

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, LAB_PORTS *LAB_PRIORITIES);
    __uint(map_flags, BPF_F_MMAPABLE);
    __type(key, __u32);
    __type(value, struct lab_occupancy);
} occupancy SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 1 << 16);
} crossings SEC(".maps");

static __always_inline void report(__u32 index, __u64 bytes, __u32 pause) {
    struct lab_crossing *crossing = bpf_ringbuf_reserve(&crossings, sizeof *crossing, 0);
    if (!crossing)
        return; /* the process compares `pausing` with what it asked for */
    crossing->time_ns = bpf_ktime_get_ns();
    crossing->bytes = bytes;
    crossing->index = index;
    crossing->pause = pause;
    bpf_ringbuf_submit(crossing, BPF_RB_FORCE_WAKEUP);
}

SEC("tc")
int lab_arrive(struct __sk_buff *skb) {
    struct {
        struct ethhdr ethernet;
        __u8 version;
        __u8 dsfield;
    } start;
    if (skb->protocol != bpf_htons(ETH_P_IP) || bpf_skb_load_bytes(skb, 0, &start, sizeof start))
        return TC_ACT_UNSPEC;
    const __u32 port = start.ethernet.h_dest[5];
    const __u32 priority = start.dsfield >> 2 == LAB_LOW_DSCP;
    const __u32 index = port * LAB_PRIORITIES + priority;
    struct lab_occupancy *slot = bpf_map_lookup_elem(&occupancy, &index);
    if (!slot || !slot->xoff)
        return TC_ACT_UNSPEC;
    const __u32 length = skb->len;
    skb->mark = STAMP_MAGIC | port << 20 | priority << 16 | (length & 0xFFFF);
    __sync_fetch_and_add(&slot->packets, 1);
    const __u64 bytes = (__u64)__sync_fetch_and_add(&slot->bytes, length) + length;
    if (bytes > slot->peak)
        slot->peak = bytes;
    if (bytes > slot->xoff && __sync_val_compare_and_swap(&slot->pausing, 0, 1) == 0)
        report(index, bytes, 1);
    return TC_ACT_UNSPEC;
}

static __always_inline void leave(const struct sk_buff *skb, bool dropped) {
    const __u32 stamp = skb->mark;
    if ((stamp & STAMP_MAGIC_MASK) != STAMP_MAGIC)
        return;
    const __u32 index = (stamp >> 20 & 0xFF) * LAB_PRIORITIES + (stamp >> 16 & 0xF);
    struct lab_occupancy *slot = bpf_map_lookup_elem(&occupancy, &index);
    if (!slot)
        return;
    const __s64 length = stamp & 0xFFFF;
    const __s64 bytes = __sync_fetch_and_add(&slot->bytes, -length) - length;
    if (dropped)
        __sync_fetch_and_add(&slot->dropped_packets, 1);
    if (bytes < (__s64)slot->xon && slot->pausing && __sync_val_compare_and_swap(&slot->pausing, 1, 0) == 1)
        report(index, bytes > 0 ? bytes : 0, 0);
}

SEC("tp_btf/net_dev_start_xmit")
int lab_leave(__u64 *arguments) {
    leave((const struct sk_buff *)arguments[0], false);
    return 0;
}

SEC("tp_btf/kfree_skb")
int lab_drop(__u64 *arguments) {
    leave((const struct sk_buff *)arguments[0], true);
    return 0;
}
