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

/* enum spillway_kernel_read, set before loading: by a probe, not a version. */
const volatile __u8 kernel_read __weak = SPILLWAY_READ_NO;

/* A member of a kernel structure. */
#define PEEK(from, member)                                                                                   \
    ({                                                                                                       \
        typeof((from)->member) value = 0;                                                                    \
        if (kernel_read == SPILLWAY_READ_BY_HELPER)                                                          \
            bpf_core_read(&value, sizeof(value), &(from)->member);                                           \
        else                                                                                                 \
            value = (from)->member;                                                                          \
        value;                                                                                               \
    })

extern void *bpf_cast_to_kern_ctx(void *) __ksym __weak;
extern void *bpf_rdonly_cast(const void *, __u32)
__ksym __weak;

struct reading {
    __u64 backlog_bytes;
    __u64 backlog_packets;
    __u64 sent_bytes;
};

static __always_inline void *typed(void *address, __u32 type) {
    return kernel_read == SPILLWAY_READ_BY_HELPER ? address : bpf_rdonly_cast(address, type);
}

/* The device's qdisc with the leaf's handle. Qdiscs are found in a small hash by handle; a default leaf has
 * handle 0 and is told by its parent; the root is not in the hash. */
static __always_inline struct Qdisc *find_qdisc(struct __sk_buff *skb, const struct spillway_leaf *leaf) {
    /* The helper takes the context for what it is in truth: the kernel's structure. */
    struct sk_buff *kernel_skb =
        kernel_read == SPILLWAY_READ_BY_HELPER ? (void *)skb : bpf_cast_to_kern_ctx(skb);
    struct net_device *dev = PEEK(kernel_skb, dev);
    if (leaf->classid == SPILLWAY_CLASS_ROOT)
        return PEEK(dev, qdisc);
    const __u64 head_at = (__u64)dev + bpf_core_field_offset(struct net_device, qdisc_hash) +
                          (leaf->bucket & 15) * sizeof(struct hlist_head);
    struct hlist_head *head = typed((void *)head_at, bpf_core_type_id_kernel(struct hlist_head));
    struct hlist_node *node = PEEK(head, first);
    for (int i = 0; i < SPILLWAY_QDISC_WALK_MAX && node; i++) {
        const __u64 at = (__u64)node - bpf_core_field_offset(struct Qdisc, hash);
        struct Qdisc *qdisc = typed((void *)at, bpf_core_type_id_kernel(struct Qdisc));
        if (PEEK(qdisc, handle) == leaf->handle && (leaf->handle || PEEK(qdisc, parent) == leaf->parent))
            return qdisc;
        node = PEEK(qdisc, hash.next);
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
        *amount = spillway_amount(line, 0, PEEK(qdisc, q.qlen), 0);
        barrier(); /* else clang makes one read of a variable offset, which the verifier refuses */
    } else {
        *amount = spillway_amount(line, PEEK(qdisc, qstats.backlog), 0, skb->wire_len);
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
        reading->backlog_bytes = PEEK(qdisc, qstats.backlog);
        reading->backlog_packets = PEEK(qdisc, q.qlen);
        barrier();
        const __u64 *sent = (const __u64 *)&qdisc->bstats;
        barrier_var(sent); /* else the load itself is relocated, as one of the structure */
        if (kernel_read == SPILLWAY_READ_BY_HELPER)
            bpf_probe_read_kernel(&reading->sent_bytes, sizeof(reading->sent_bytes), sent);
        else
            reading->sent_bytes = *sent;
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
