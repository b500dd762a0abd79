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

/* Enters a flow with the second mark, if its port may have one more such entry. */
static __always_inline void insert_unmarked(struct spillway_settings *set, struct spillway_port *port,
                                            const struct spillway_flow_key *key,
                                            const struct spillway_flow *flow) {
    const int error = port->unmarked < set->unmarked_quota
                          ? (int)bpf_map_update_elem(&flows, key, flow, BPF_NOEXIST)
                          : -7 /* E2BIG */;
    if (!error) {
        __sync_fetch_and_add(&port->entries, 1);
        __sync_fetch_and_add(&port->unmarked, 1);
    } else if (error != -17 /* EEXIST */) {
        count(port->ifindex, SPILLWAY_LOST_ENTRIES, 1);
    }
}

/* Deletes the flow's entry if it bears the second mark. Of several CPUs one succeeds. */
static __always_inline bool delete_unmarked(struct spillway_port *port, const struct spillway_flow_key *key) {
    const struct spillway_flow *flow = bpf_map_lookup_elem(&flows, key);
    if (!flow || flow->mark != SPILLWAY_MARK_NORMAL || bpf_map_delete_elem(&flows, key))
        return false;
    if (port) {
        __sync_fetch_and_add(&port->entries, -1);
        __sync_fetch_and_add(&port->unmarked, -1);
    }
    return true;
}

/* Inserts a new mark. 0: inserted; SPILLWAY_EDIT_EXISTS: somebody else won; else why there was no room. */
static __always_inline int insert_mark(struct spillway_settings *set, struct spillway_port *port,
                                       const struct spillway_flow_key *key,
                                       const struct spillway_flow *flow) {
    if (port->unmarked)
        delete_unmarked(port, key);
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

/* Deletes a released flow's entry, or gives it the second mark, and says so once: of several CPUs one
 * succeeds. A mark without isolated packets was never counted in a queue. */
static __always_inline void release_mark(struct spillway_settings *set, const struct spillway_flow_key *key,
                                         const struct spillway_flow *flow, __u64 now) {
    /* Read before: the memory of a deleted entry is another one's. */
    const __u32 queue_index = flow->queue;
    const __u64 packets = flow->packets;
    const __u32 origin = flow->origin;
    const __u64 last_seen = flow->last_seen_ns;
    if (bpf_map_delete_elem(&flows, key))
        return;
    __u32 *marks = get_filter(key);
    if (marks)
        __sync_fetch_and_add(marks, -1);
    struct spillway_port *port = find_port(key->port);
    if (port)
        __sync_fetch_and_add(&port->entries, -1);
    if (table_full && port) {
        struct spillway_flow unmarked = {
            .mark = SPILLWAY_MARK_NORMAL, .marked_ns = now, .last_seen_ns = last_seen, .queue = queue_index};
        insert_unmarked(set, port, key, &unmarked);
    }
    struct spillway_queue *queue = get_queue(queue_index);
    if (packets && queue && queue->ifindex == key->port)
        __sync_fetch_and_add(&queue->restored_total, 1);
    struct spillway_event *event = new_event(SPILLWAY_EVENT_RELEASED, now);
    if (event) {
        event->key = *key;
        event->queue = queue_index;
        event->reason = origin;
        event->amount = spillway_since(now, last_seen) > 0 ? now - last_seen : 0;
        bpf_ringbuf_submit(event, 0);
    }
}

/* Steps a mark, and says so when its last reason ends. True: the flow is to be released. */
static __always_inline bool step_mark(const struct spillway_flow_key *key, struct spillway_flow *flow,
                                      const struct spillway_mark_times *times, enum spillway_drained drained,
                                      __u64 now) {
    const enum spillway_state before = flow->state;
    const bool release = spillway_mark_step(flow, times, drained, now);
    if (before != SPILLWAY_STATE_DRAINING && flow->state == SPILLWAY_STATE_DRAINING) {
        struct spillway_event *event = new_event(SPILLWAY_EVENT_DRAINING, now);
        if (event) {
            event->key = *key;
            event->queue = flow->queue;
            event->reason = flow->origin;
            bpf_ringbuf_submit(event, 0);
        }
    }
    return release;
}

#endif
