/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Counts, for each arrival port and priority of a switch, the bytes that wait in it: the input of
 * priority-based flow control. A packet is stamped where it comes in, by what its own DSCP says, and taken
 * off where it arrives at the next node: the one program, at TC ingress of every port, does both. The stamp
 * is skb->tc_index, which, unlike the mark, outlives the way from one namespace to the next. (A tracepoint
 * where packets leave would do, if its programs were not skipped when an interrupt finds them running.) */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "occupancy_abi.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define STAMPED 0x8000U /* the lower bits are the index */

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, LAB_PORTS *LAB_PRIORITIES);
    __uint(map_flags, BPF_F_MMAPABLE);
    __type(key, __u32);
    __type(value, struct lab_occupancy);
} occupancy SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 1 << 16); /* some two thousand crossings: seconds of them */
} crossings SEC(".maps");

static __always_inline void report(__u32 index, __u32 pause) {
    struct lab_crossing *crossing = bpf_ringbuf_reserve(&crossings, sizeof *crossing, 0);
    if (!crossing)
        return;
    crossing->time_ns = bpf_ktime_get_ns();
    crossing->index = index;
    crossing->pause = pause;
    bpf_ringbuf_submit(crossing, BPF_RB_FORCE_WAKEUP);
}

static __always_inline void leave(__u32 index, __s64 length) {
    struct lab_occupancy *slot = bpf_map_lookup_elem(&occupancy, &index);
    if (!slot)
        return;
    const __s64 bytes = __sync_fetch_and_add(&slot->bytes, -length) - length;
    if (bytes < (__s64)slot->xon && slot->pausing && __sync_val_compare_and_swap(&slot->pausing, 1, 0) == 1)
        report(index, 0);
}

/* Whether the packet is counted from now on. */
static __always_inline int enter(__u32 index, __s64 length) {
    struct lab_occupancy *slot = bpf_map_lookup_elem(&occupancy, &index);
    if (!slot || !slot->xoff)
        return 0;
    const __s64 bytes = __sync_fetch_and_add(&slot->bytes, length) + length;
    if (bytes > (__s64)slot->peak)
        slot->peak = bytes;
    if (bytes > (__s64)slot->xoff && __sync_val_compare_and_swap(&slot->pausing, 0, 1) == 0)
        report(index, 1);
    return 1;
}

SEC("tc")
int lab_arrive(struct __sk_buff *skb) {
    const __u32 stamp = skb->tc_index;
    if (stamp & STAMPED)
        leave(stamp & ~STAMPED, skb->len);
    struct {
        struct ethhdr ethernet;
        __u8 version;
        __u8 dsfield;
    } start;
    __u32 index = 0;
    if (skb->protocol == bpf_htons(ETH_P_IP) && !bpf_skb_load_bytes(skb, 0, &start, sizeof start))
        index = start.ethernet.h_dest[5] * LAB_PRIORITIES + (start.dsfield >> 2 == LAB_LOW_DSCP);
    skb->tc_index = enter(index, skb->len) ? STAMPED | index : 0;
    return TC_ACT_UNSPEC;
}
