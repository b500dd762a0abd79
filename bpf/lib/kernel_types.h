/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The few kernel structures the programs look into, with just the members they use. CO-RE relocates the
 * offsets at load, so the build needs no BTF of a running kernel. */
#ifndef SPILLWAY_KERNEL_TYPES_H
#define SPILLWAY_KERNEL_TYPES_H

#include <linux/types.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct hlist_node {
    struct hlist_node *next;
};

struct hlist_head {
    struct hlist_node *first;
};

struct qdisc_skb_head {
    __u32 qlen;
};

/* Its first eight bytes are the bytes sent, whatever type the kernel gives them; so it is read as such. */
struct gnet_stats_basic_sync {
    __u64 whole;
};

struct gnet_stats_queue {
    __u32 backlog;
};

struct Qdisc {
    struct hlist_node hash;
    __u32 handle;
    __u32 parent;
    struct qdisc_skb_head q;
    struct gnet_stats_basic_sync bstats;
    struct gnet_stats_queue qstats;
};

struct net_device {
    struct Qdisc *qdisc;
    struct hlist_head qdisc_hash[16];
};

struct sk_buff {
    struct net_device *dev;
};

#pragma clang attribute pop

#endif
