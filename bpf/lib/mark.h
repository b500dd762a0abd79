/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Entries of `flows`: making, stepping, releasing. Used by the TC program and the edit program alike. */
#ifndef SPILLWAY_BPF_MARK_H
#define SPILLWAY_BPF_MARK_H

#include "leaf.h"
#include "maps.h"

/* What the mark's state machine needs to know; the queues only count when they have a waterline. */
static __always_inline void mark_times(const struct spillway_settings *set,
                                       const struct spillway_queue *queue, __u32 isolation,
                                       struct spillway_mark_times *times) {
    times->idle_ns = set->idle_ns;
    times->life_ns = set->life_ns;
    times->clear_ns = set->clear_ns;
    times->stale_agent_ns = set->stale_agent_ns;
    times->heartbeat_ns = set->heartbeat_ns;
    times->queue_busy_ns = 0;
    times->isolation_busy_ns = 0;
    if (!queue || !queue->waterline.set)
        return;
    times->queue_busy_ns = leaf_busy(&queue->normal);
    if (queue->isolation_count)
        times->isolation_busy_ns = leaf_busy(&queue->isolation[isolation & (SPILLWAY_ISOLATION_MAX - 1)]);
}

/* Inserts a new mark. 0: inserted; SPILLWAY_EDIT_EXISTS: somebody else won; else why there was no room. */
static __always_inline int insert_mark(struct spillway_settings *set, struct spillway_port *port,
                                       const struct spillway_flow_key *key,
                                       const struct spillway_flow *flow) {
    if (port->entries >= set->quota)
        return SPILLWAY_EDIT_QUOTA;
    __u32 *marks = get_filter(key);
    if (!marks)
        return SPILLWAY_EDIT_BAD;
    __sync_fetch_and_add(marks, 1);
    /* An int, whatever the helper is declared as: before 6.4 the upper half of the register is not set. */
    const int error = (int)bpf_map_update_elem(&flows, key, flow, BPF_NOEXIST);
    if (error)
        __sync_fetch_and_add(marks, -1);
    if (error == -17 /* EEXIST */)
        return SPILLWAY_EDIT_EXISTS;
    if (error)
        return SPILLWAY_EDIT_TABLE_FULL;
    /* After the insert: whoever sees gen = swept then knows that the sweep saw this entry. */
    __sync_fetch_and_add(&set->gen, 1);
    __sync_fetch_and_add(&port->entries, 1);
    return SPILLWAY_EDIT_DONE;
}

/* Deletes a released flow's entry and says so once: of several CPUs one succeeds. `packets` of the flow have
 * been isolated out of the queue; a mark without any was never counted there. */
static __always_inline void release_mark(const struct spillway_flow_key *key, __u32 queue_index,
                                         __u64 packets, __u64 now) {
    if (bpf_map_delete_elem(&flows, key))
        return;
    __u32 *marks = get_filter(key);
    if (marks)
        __sync_fetch_and_add(marks, -1);
    struct spillway_port *port = find_port(key->port);
    if (port)
        __sync_fetch_and_add(&port->entries, -1);
    struct spillway_queue *queue = get_queue(queue_index);
    if (packets && queue && queue->ifindex == key->port)
        __sync_fetch_and_add(&queue->restored_total, 1);
    struct spillway_event *event = new_event(SPILLWAY_EVENT_RELEASED, now);
    if (event) {
        event->key = *key;
        event->queue = queue_index;
        bpf_ringbuf_submit(event, 0);
    }
}

/* Asks for the upstream node of a flow; `key` has the egress port. Packets of the flow are looked at on all
 * ports for one window. */
static __always_inline int want_upstream(struct spillway_settings *set, const struct spillway_flow_key *key,
                                         __u64 now) {
    struct spillway_flow_key any_port = *key;
    const __u64 until = now + set->window_ns;
    any_port.port = 0;
    struct spillway_upstream *known = bpf_map_lookup_elem(&upstream, &any_port);
    if (known) {
        known->egress = key->port;
        known->wanted_until_ns = until;
    } else {
        struct spillway_upstream fresh = {.wanted_until_ns = until, .egress = key->port};
        if ((int)bpf_map_update_elem(&upstream, &any_port, &fresh, BPF_NOEXIST) == -7 /* E2BIG */) {
            count(0, SPILLWAY_LOST_NO_UPSTREAM, 1);
            return SPILLWAY_EDIT_TABLE_FULL;
        }
    }
    set->learn_until_ns = until;
    return SPILLWAY_EDIT_DONE;
}

#endif
