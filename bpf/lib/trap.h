/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What is done with a frame of the CIPs' EtherType, at XDP or at TC ingress (design: who takes it). */
#ifndef SPILLWAY_TRAP_H
#define SPILLWAY_TRAP_H

#include "maps.h"
#include "spillway/cip.h"
#include "tunnels.h"

/* Host order; 0x8809 unless configured. Set before loading. */
const volatile __u16 cip_ethertype __weak = SPILLWAY_CIP_ETHERTYPE;

/* Counts in one of the port's counts of this second (2^30 ns), up to `most`. */
static __always_inline bool within_rate(struct spillway_port *port, __u32 *counted, __u32 most, __u64 now) {
    const __u64 second = now >> 30;
    if (port->cip_second != second) {
        port->cip_second = second;
        port->cip_count = 0;
        port->told_count = 0;
    }
    if (*counted >= most)
        return false;
    __sync_fetch_and_add(counted, 1);
    return true;
}

/* Counts a CIP that is not obeyed, and tells of the first ones in a second: a flood of them must neither fill
 * the event ring nor use up what good ones may take. */
static __always_inline void reject(struct spillway_port *port, const __u8 *sender,
                                   struct spillway_flow_key *key, enum spillway_reason reason) {
    const __u64 now = bpf_ktime_get_ns();
    count(port->ifindex, SPILLWAY_REJECTED(reason), 1);
    if (!within_rate(port, &port->told_count, SPILLWAY_TOLD_MAX, now))
        return;
    struct spillway_event *event = new_event(SPILLWAY_EVENT_CIP_REJECTED, now);
    if (event) {
        key->port = port->ifindex;
        event->key = *key;
        event->reason = reason;
        __builtin_memcpy(event->mac, sender, 6);
        bpf_ringbuf_submit(event, 0);
    }
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
    struct spillway_cip cip = {};
    const enum spillway_reason reason = spillway_cip_read(payload, end, &tunnels, &cip);
    if (reason != SPILLWAY_OK) {
        reject(port, frame + 6, &cip.key, reason);
        return true;
    }
    if (!(port->flags & SPILLWAY_PORT_ACCEPT_CIP)) {
        reject(port, frame + 6, &cip.key, SPILLWAY_NOT_ACCEPTED);
        return true;
    }
    const __u64 now = bpf_ktime_get_ns();
    if (!within_rate(port, &port->cip_count, port->cip_per_second, now)) {
        reject(port, frame + 6, &cip.key, SPILLWAY_RATE_LIMITED);
        return true;
    }
    struct spillway_event *event = new_event(SPILLWAY_EVENT_CIP_RECEIVED, now);
    if (event) {
        cip.key.port = ifindex;
        event->key = cip.key;
        event->cip_type = cip.type;
        event->lifetime_ms = (__u16)cip.lifetime_ms;
        __builtin_memcpy(event->mac, frame + 6, 6);
        bpf_ringbuf_submit(event, 0);
    }
    return true;
}

#endif
