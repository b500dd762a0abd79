/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Changes that user space asks for, run through BPF_PROG_TEST_RUN: a write of a whole value from user space
 * would undo what a packet wrote in between. The command lies in the packet; the return value answers. */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "lib/leaf.h"
#include "lib/maps.h"
#include "lib/mark.h"

/* Marks by hand or by a CIP: adds the reason to an entry, or makes one. */
static __always_inline int edit_mark(struct spillway_settings *set, const struct spillway_edit *edit,
                                     bool manual) {
    const __u64 now = bpf_ktime_get_ns();
    struct spillway_port *port = find_port(edit->key.port);
    if (!port || !port->ifindex) /* 0 would find a free slot */
        return SPILLWAY_EDIT_BAD;
    struct spillway_flow fresh = {
        .mark = SPILLWAY_MARK_CONGESTED,
        .state = SPILLWAY_STATE_ISOLATED,
        .origin = manual ? SPILLWAY_ORIGIN_MANUAL : SPILLWAY_ORIGIN_CIP,
        .manual = manual,
        .marked_ns = now,
        .last_seen_ns = now,
        .cip_until_ns = manual ? 0 : now + set->life_ns,
        .queue = port->first_queue,
    };
    const int result = insert_mark(set, port, &edit->key, &fresh);
    if (result == SPILLWAY_EDIT_EXISTS || result == SPILLWAY_EDIT_QUOTA) {
        struct spillway_flow *flow = bpf_map_lookup_elem(&flows, &edit->key);
        if (flow) {
            if (manual)
                flow->manual = 1;
            else
                flow->cip_until_ns = fresh.cip_until_ns;
            return SPILLWAY_EDIT_EXISTS;
        }
    }
    return result;
}

static __always_inline int edit_unmark(const struct spillway_flow_key *key) {
    const __u64 now = bpf_ktime_get_ns();
    struct spillway_flow *flow = bpf_map_lookup_elem(&flows, key);
    if (!flow)
        return SPILLWAY_EDIT_NO_ENTRY;
    flow->manual = 0;
    flow->local_until_ns = 0;
    flow->cip_until_ns = 0;
    flow->state = SPILLWAY_STATE_DRAINING;
    flow->ended_ns = now;
    flow->last_seen_ns = now; /* exact to a jiffy so far; from here on the release depends on it */
    return SPILLWAY_EDIT_DONE;
}

/* Steps a flow of which no packet may come. Only the agent's readings tell here whether it has drained. */
static __always_inline int edit_step(struct spillway_settings *set, const struct spillway_flow_key *key) {
    const __u64 now = bpf_ktime_get_ns();
    struct spillway_flow *flow = bpf_map_lookup_elem(&flows, key);
    if (!flow)
        return SPILLWAY_EDIT_NO_ENTRY;
    const __u32 isolation = flow->isolation & (SPILLWAY_ISOLATION_MAX - 1);
    const __u32 index = flow->queue;
    if (!find_port(key->port)) { /* a mark ends with its port, one made by hand too */
        release_mark(key, index, flow->packets, now);
        return SPILLWAY_EDIT_RELEASED;
    }
    if (set->panic &&
        flow->state == SPILLWAY_STATE_ISOLATED) { /* no packet is looked at: that is no silence */
        flow->last_seen_ns = now;
        return SPILLWAY_EDIT_DONE;
    }
    struct spillway_queue *queue = get_queue(index);
    if (queue && queue->ifindex != key->port)
        queue = 0; /* the port or its queues are gone, and what waited there with them */
    enum spillway_drained drained = SPILLWAY_DRAINED_YES;
    if (queue && queue->isolation_count && flow->classid) {
        const struct spillway_leaf *leaf = &queue->isolation[isolation];
        drained = SPILLWAY_DRAINED_UNKNOWN;
        if (leaf->drained_before_ns)
            drained = spillway_drained_by_time(flow, leaf->drained_before_ns) ? SPILLWAY_DRAINED_YES
                                                                              : SPILLWAY_DRAINED_NO;
    }
    struct spillway_mark_times times;
    mark_times(set, queue, isolation, &times);
    if (!spillway_mark_step(flow, &times, drained, now))
        return SPILLWAY_EDIT_DONE;
    release_mark(key, index, flow->packets, now);
    return SPILLWAY_EDIT_RELEASED;
}

SEC("tc")
int spillway_edit(struct __sk_buff *skb) {
    struct spillway_settings *set = get_settings();
    struct spillway_edit edit;
    if (!set || bpf_skb_load_bytes(skb, 0, &edit, sizeof(edit)) || edit.abi != SPILLWAY_ABI)
        return SPILLWAY_EDIT_BAD;
    struct spillway_flow_key any_port = edit.key;
    any_port.port = 0;
    switch (edit.op) {
    case SPILLWAY_EDIT_MARK_MANUAL:
        return edit_mark(set, &edit, true);
    case SPILLWAY_EDIT_MARK_CIP:
        return edit_mark(set, &edit, false);
    case SPILLWAY_EDIT_UNMARK:
        return edit_unmark(&edit.key);
    case SPILLWAY_EDIT_STEP:
        return edit_step(set, &edit.key);
    case SPILLWAY_EDIT_LEARN:
        return want_upstream(set, &edit.key, bpf_ktime_get_ns());
    case SPILLWAY_EDIT_CIP_SENT: {
        struct spillway_upstream *node = bpf_map_lookup_elem(&upstream, &any_port);
        if (!node)
            return SPILLWAY_EDIT_NO_ENTRY;
        node->sent++;
        node->next_due_ns = edit.value;
        return SPILLWAY_EDIT_DONE;
    }
    case SPILLWAY_EDIT_COUNT:
        count(edit.key.port, edit.counter, edit.value);
        return SPILLWAY_EDIT_DONE;
    case SPILLWAY_EDIT_FORGET:
        return bpf_map_delete_elem(&upstream, &any_port) ? SPILLWAY_EDIT_NO_ENTRY : SPILLWAY_EDIT_DONE;
    }
    return SPILLWAY_EDIT_BAD;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
