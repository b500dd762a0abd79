/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What is done with a frame of the CIPs' EtherType, at XDP or at TC ingress (design: who takes it). */
#ifndef SPILLWAY_TRAP_H
#define SPILLWAY_TRAP_H

#include "maps.h"
#include "spillway/cip.h"

/* Host order; 0x8809 unless configured. Set before loading. */
const volatile __u16 cip_ethertype __weak = SPILLWAY_CIP_ETHERTYPE;

/* Counts a CIP against the port's share of this second (2^30 ns). */
static __always_inline bool within_rate(struct spillway_port *port, __u64 now) {
    const __u64 second = now >> 30;
    if (port->cip_second != second) {
        port->cip_second = second;
        port->cip_count = 0;
    }
    if (port->cip_count >= port->cip_per_second)
        return false;
    __sync_fetch_and_add(&port->cip_count, 1);
    return true;
}

static __always_inline void reject(__u32 port, enum spillway_reason reason) {
    count(port, SPILLWAY_REJECTED(reason), 1);
}

/* `frame` is the Ethernet header, `payload` what follows the EtherType. True: ours, to be dropped. */
static __always_inline bool trap_cip(const __u8 *frame, const __u8 *payload, const __u8 *end, __u32 ifindex) {
    struct spillway_port *port = find_port(ifindex);
    const struct spillway_settings *set = get_settings();
    if (!port || !set || set->panic || frame + 14 > end || payload + 1 > end)
        return false;
    if (frame[0] & 1) /* group addresses: LACP, marker, OAM, LLDP */
        return false;
    if (!(port->flags & SPILLWAY_PORT_ANY_UNICAST)) {
        __u8 differs = 0;
        for (int i = 0; i < 6; i++)
            differs |= frame[i] ^ port->mac[i];
        if (differs)
            return false;
    }
    if (!spillway_cip_is_ours(payload[0]))
        return false;

    count(ifindex, SPILLWAY_CIP_RECEIVED, 1);
    struct spillway_flow_key key = {};
    const enum spillway_reason reason = spillway_cip_read(payload, end, &key);
    if (reason != SPILLWAY_OK) {
        reject(ifindex, reason);
        return true;
    }
    if (!(port->flags & SPILLWAY_PORT_ACCEPT_CIP)) {
        reject(ifindex, SPILLWAY_NOT_ACCEPTED);
        return true;
    }
    const __u64 now = bpf_ktime_get_ns();
    if (!within_rate(port, now)) {
        reject(ifindex, SPILLWAY_RATE_LIMITED);
        return true;
    }
    struct spillway_event *event = new_event(SPILLWAY_EVENT_CIP_RECEIVED, now);
    if (event) {
        key.port = ifindex;
        event->key = key;
        __builtin_memcpy(event->mac, frame + 6, 6);
        bpf_ringbuf_submit(event, 0);
    }
    return true;
}

#endif
