/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The maps of include/spillway/abi.h. Every program is linked into one object, so each map exists once. */
#ifndef SPILLWAY_MAPS_H
#define SPILLWAY_MAPS_H

#include <linux/bpf.h>
#include <stdbool.h>

#include <bpf/bpf_helpers.h>

#include "spillway/abi.h"

/* Preallocated, never LRU: a mark must not vanish because others come. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 65536);
    __type(key, struct spillway_flow_key);
    __type(value, struct spillway_flow);
} flows SEC(".maps") __weak;

/* Spares unmarked flows the lookup in `flows`, which costs as much as all the rest. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, SPILLWAY_FILTER_SLOTS);
    __type(key, __u32);
    __type(value, __u32);
} filter SEC(".maps") __weak;

/* Monitored queues, mapped by the agent. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, SPILLWAY_QUEUES_MAX);
    __type(key, __u32);
    __type(value, struct spillway_queue);
} queues SEC(".maps") __weak;

/* Ports by ifindex, then absent ports; mapped by the agent. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, SPILLWAY_PORTS_MAX + SPILLWAY_ABSENT_MAX);
    __type(key, __u32);
    __type(value, struct spillway_port);
} ports SEC(".maps") __weak;

/* Guard sums. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, SPILLWAY_SUSPECTS);
    __type(key, __u32);
    __type(value, struct spillway_suspect);
} suspects SEC(".maps") __weak;

/* Upstream nodes of flows. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 65536);
    __type(key, struct spillway_flow_key);
    __type(value, struct spillway_upstream);
} upstream SEC(".maps") __weak;

/* Counts by port. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, (SPILLWAY_PORTS_MAX + 1) * 32);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct spillway_counter_key);
    __type(value, __u64);
} counters SEC(".maps") __weak;

/* One entry, mapped by the agent. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct spillway_settings);
} settings SEC(".maps") __weak;

/* What happened, for the agent. */
struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, SPILLWAY_EVENTS_BYTES);
} events SEC(".maps") __weak;

static __always_inline struct spillway_settings *get_settings(void) {
    const __u32 zero = 0;
    return bpf_map_lookup_elem(&settings, &zero);
}

/* The port, found within SPILLWAY_PORT_PROBES slots after its ifindex. */
static __always_inline struct spillway_port *find_port(__u32 ifindex) {
    for (__u32 i = 0; i < SPILLWAY_PORT_PROBES; i++) {
        const __u32 slot = (ifindex + i) & (SPILLWAY_PORTS_MAX - 1);
        struct spillway_port *port = bpf_map_lookup_elem(&ports, &slot);
        if (port && port->ifindex == ifindex)
            return port;
    }
    return 0;
}

static __always_inline struct spillway_queue *get_queue(__u32 index) {
    return bpf_map_lookup_elem(&queues, &index);
}

static __always_inline __u32 *get_filter(const struct spillway_flow_key *key) {
    const __u32 slot = spillway_filter_slot(key);
    return bpf_map_lookup_elem(&filter, &slot);
}

/* Every flow has an entry, not only marked ones (R5). Set before loading. */
const volatile __u8 table_full __weak = 0;

/* The flow's entry if it has one. The filter knows marked flows only. */
static __always_inline struct spillway_flow *find_flow(const struct spillway_flow_key *key) {
    if (table_full)
        return bpf_map_lookup_elem(&flows, key);
    const __u32 *marks = get_filter(key);
    return marks && *marks ? bpf_map_lookup_elem(&flows, key) : 0;
}

/* Rare events only: this is a hash lookup. */
static __always_inline void count(__u32 port, enum spillway_counter counter, __u64 by) {
    struct spillway_counter_key key = {.port = port, .counter = counter};
    __u64 *value = bpf_map_lookup_elem(&counters, &key);
    if (!value) {
        const __u64 zero = 0;
        bpf_map_update_elem(&counters, &key, &zero, BPF_NOEXIST);
        value = bpf_map_lookup_elem(&counters, &key);
    }
    if (value)
        __sync_fetch_and_add(value, by);
}

/* An event to fill in and submit, or 0 (counted) when the ring is full. `bytes` is not cleared. */
static __always_inline struct spillway_event *new_event(enum spillway_event_type type, __u64 now) {
    struct spillway_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
    if (!event) {
        count(0, SPILLWAY_LOST_EVENTS, 1);
        return 0;
    }
    event->time_ns = now;
    event->type = type;
    event->length = 0;
    event->amount = 0;
    event->queue = 0;
    __builtin_memset(event->mac, 0, sizeof(event->mac));
    event->lifetime_ms = 0;
    event->cip_type = 0;
    event->reason = 0;
    event->reserved = 0;
    return event;
}

#endif
