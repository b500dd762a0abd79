/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What waits in a leaf qdisc: read from the kernel's own structures, or as the agent published it. */
#ifndef SPILLWAY_LEAF_H
#define SPILLWAY_LEAF_H

#include <linux/bpf.h>
#include <stdbool.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "kernel_types.h"
#include "spillway/abi.h"

/* Set to 1 before loading when the kernel offers the two functions below (a probe, not a version). */
const volatile __u8 kernel_read __weak = 0;

extern void *bpf_cast_to_kern_ctx(void *) __ksym __weak;
extern void *bpf_rdonly_cast(const void *, __u32)
__ksym __weak;

struct reading {
    __u64 backlog_bytes;
    __u64 backlog_packets;
    __u64 sent_bytes;
};

/* The device's qdisc with the leaf's handle. Qdiscs are found in a small hash by handle; a default leaf has
 * handle 0 and is told by its parent; the root is not in the hash. */
static __always_inline struct Qdisc *find_qdisc(struct __sk_buff *skb, const struct spillway_leaf *leaf) {
    struct sk_buff *kernel_skb = bpf_cast_to_kern_ctx(skb);
    struct net_device *dev = kernel_skb->dev;
    if (leaf->classid == SPILLWAY_CLASS_ROOT)
        return dev->qdisc;
    const __u64 head_at = (__u64)dev + bpf_core_field_offset(struct net_device, qdisc_hash) +
                          (leaf->bucket & 15) * sizeof(struct hlist_head);
    struct hlist_head *head = bpf_rdonly_cast((void *)head_at, bpf_core_type_id_kernel(struct hlist_head));
    struct hlist_node *node = head->first;
    for (int i = 0; i < SPILLWAY_QDISC_WALK_MAX && node; i++) {
        const __u64 at = (__u64)node - bpf_core_field_offset(struct Qdisc, hash);
        struct Qdisc *qdisc = bpf_rdonly_cast((void *)at, bpf_core_type_id_kernel(struct Qdisc));
        if (qdisc->handle == leaf->handle && (leaf->handle || qdisc->parent == leaf->parent))
            return qdisc;
        node = qdisc->hash.next;
    }
    return 0;
}

/* How much would wait in the queue with this packet, in the unit of its waterline: all that an idle packet
 * asks for, since each read of kernel memory costs about a nanosecond. False when there is nothing to read.
 */
static __always_inline bool read_amount(struct __sk_buff *skb, const struct spillway_queue *queue,
                                        __u64 *amount) {
    const struct spillway_leaf *leaf = &queue->normal;
    const struct spillway_waterline *line = &queue->waterline;
    if (!leaf->generation)
        return false;
    if (!kernel_read) {
        *amount = spillway_amount(line, leaf->backlog_bytes, leaf->backlog_packets, skb->wire_len);
        return leaf->read_ns != 0;
    }
    struct Qdisc *qdisc = find_qdisc(skb, leaf);
    if (!qdisc)
        return false;
    if (line->unit == SPILLWAY_UNIT_PACKETS) {
        *amount = spillway_amount(line, 0, qdisc->q.qlen, 0);
        barrier(); /* else clang makes one read of a variable offset, which the verifier refuses */
    } else {
        *amount = spillway_amount(line, qdisc->qstats.backlog, 0, skb->wire_len);
    }
    return true;
}

/* Reads the leaf; false when there is nothing to read. Backlog before sent bytes: a packet that leaves in
 * between makes the drain position too high, never too low. */
static __always_inline bool read_leaf(struct __sk_buff *skb, const struct spillway_leaf *leaf,
                                      struct reading *reading) {
    if (!leaf->generation)
        return false;
    if (kernel_read) {
        struct Qdisc *qdisc = find_qdisc(skb, leaf);
        if (!qdisc)
            return false;
        reading->backlog_bytes = qdisc->qstats.backlog;
        reading->backlog_packets = qdisc->q.qlen;
        barrier();
        reading->sent_bytes = *(const __u64 *)&qdisc->bstats;
        return true;
    }
    if (!leaf->read_ns)
        return false;
    reading->backlog_bytes = leaf->backlog_bytes;
    reading->backlog_packets = leaf->backlog_packets;
    reading->sent_bytes = leaf->sent_bytes;
    return true;
}

/* When the leaf was last above the low waterline, by packets or by readings. */
static __always_inline __u64 leaf_busy(const struct spillway_leaf *leaf) {
    return spillway_later(leaf->busy_ns, leaf->polled_busy_ns);
}

#endif
