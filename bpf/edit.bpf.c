/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Changes that user space asks for, run through BPF_PROG_TEST_RUN: a write of a whole value from user space
 * would undo what a packet wrote in between. The command lies in the packet; the return value answers. */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "lib/leaf.h"
#include "lib/maps.h"
#include "lib/mark.h"
#include "lib/upstream.h"

/* Marks for a reason: adds it to an entry, or makes one. */
static __always_inline int edit_mark(struct spillway_settings *set, const struct spillway_edit *edit,
                                     enum spillway_origin reason) {
    const __u64 now = bpf_ktime_get_ns();
    struct spillway_port *port = find_port(edit->key.port);
    if (!port || !port->ifindex) /* 0 would find a free slot */
        return SPILLWAY_EDIT_BAD;
    const __u64 until = now + (reason == SPILLWAY_ORIGIN_CIP && edit->value ? edit->value : set->life_ns);
    struct spillway_flow fresh = {
        .mark = SPILLWAY_MARK_CONGESTED,
        .state = SPILLWAY_STATE_ISOLATED,
        .origin = reason,
        .manual = reason == SPILLWAY_ORIGIN_MANUAL,
        .marked_ns = now,
        .last_seen_ns = now,
        .local_until_ns = reason == SPILLWAY_ORIGIN_LOCAL ? until : 0,
        .cip_until_ns = reason == SPILLWAY_ORIGIN_CIP ? until : 0,
        .queue = port->first_queue,
    };
    const int result = insert_mark(set, port, &edit->key, &fresh);
    if (result == SPILLWAY_EDIT_EXISTS || result == SPILLWAY_EDIT_QUOTA) {
        struct spillway_flow *flow = bpf_map_lookup_elem(&flows, &edit->key);
        if (flow) {
            if (reason == SPILLWAY_ORIGIN_MANUAL)
                flow->manual = 1;
            else if (reason == SPILLWAY_ORIGIN_CIP)
                flow->cip_until_ns = until;
            else
                flow->local_until_ns = until;
            return SPILLWAY_EDIT_EXISTS;
        }
    }
    return result;
}

static __always_inline int edit_unmark(const struct spillway_flow_key *key) {
    const __u64 now = bpf_ktime_get_ns();
    struct spillway_flow *flow = bpf_map_lookup_elem(&flows, key);
    if (!flow || flow->mark != SPILLWAY_MARK_CONGESTED)
        return SPILLWAY_EDIT_NO_ENTRY;
    flow->manual = 0;
    flow->local_until_ns = 0;
    flow->cip_until_ns = 0;
    flow->state = SPILLWAY_STATE_DRAINING;
    flow->ended_ns = now;
    flow->last_seen_ns = now; /* exact to a jiffy so far; from here on the release depends on it */
    return SPILLWAY_EDIT_DONE;
}

/* A neighbour says that its CIPs for the flow hold no longer. The mark ends with its last reason. */
static __always_inline int edit_end_cip(const struct spillway_flow_key *key) {
    struct spillway_flow *flow = bpf_map_lookup_elem(&flows, key);
    if (!flow || flow->mark != SPILLWAY_MARK_CONGESTED)
        return SPILLWAY_EDIT_NO_ENTRY;
    flow->cip_until_ns = 0;
    return SPILLWAY_EDIT_DONE;
}

/* Deletes an unmarked entry that has been silent for clear_ns, or whose port is gone. */
static __always_inline int edit_clear(const struct spillway_settings *set,
                                      const struct spillway_flow_key *key, const struct spillway_flow *flow,
                                      __u64 now) {
    struct spillway_port *port = find_port(key->port);
    if (port && spillway_since(now, flow->last_seen_ns) < (__s64)set->clear_ns)
        return SPILLWAY_EDIT_DONE;
    return delete_unmarked(port, key) ? SPILLWAY_EDIT_RELEASED : SPILLWAY_EDIT_DONE;
}

/* Steps a flow of which no packet may come. Only the agent's readings tell here whether it has drained. */
static __always_inline int edit_step(struct spillway_settings *set, const struct spillway_flow_key *key) {
    const __u64 now = bpf_ktime_get_ns();
    struct spillway_flow *flow = bpf_map_lookup_elem(&flows, key);
    if (!flow)
        return SPILLWAY_EDIT_NO_ENTRY;
    if (flow->mark != SPILLWAY_MARK_CONGESTED)
        return edit_clear(set, key, flow, now);
    const __u32 isolation = flow->isolation & (SPILLWAY_ISOLATION_MAX - 1);
    if (!find_port(key->port)) { /* a mark ends with its port, one made by hand too */
        release_mark(set, key, flow, now);
        return SPILLWAY_EDIT_RELEASED;
    }
    if (set->panic &&
        flow->state == SPILLWAY_STATE_ISOLATED) { /* no packet is looked at: that is no silence */
        flow->last_seen_ns = now;
        return SPILLWAY_EDIT_DONE;
    }
    struct spillway_queue *queue = get_queue(flow->queue);
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
    if (!step_mark(key, flow, &times, drained, now))
        return SPILLWAY_EDIT_DONE;
    release_mark(set, key, flow, now);
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
        return edit_mark(set, &edit, SPILLWAY_ORIGIN_MANUAL);
    case SPILLWAY_EDIT_MARK_CIP:
        return edit_mark(set, &edit, SPILLWAY_ORIGIN_CIP);
    case SPILLWAY_EDIT_MARK_LOCAL:
        return edit_mark(set, &edit, SPILLWAY_ORIGIN_LOCAL);
    case SPILLWAY_EDIT_END_CIP:
        return edit_end_cip(&edit.key);
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
