/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Entries of `upstream`: who a flow comes from. Asked for where the flow leaves, learned where it arrives. */
#ifndef SPILLWAY_BPF_UPSTREAM_H
#define SPILLWAY_BPF_UPSTREAM_H

#include "maps.h"

/* The key under which the upstream node of a flow is kept: without its port, and where the flow enters or
 * leaves a VXLAN tunnel here, with the tunnel's VNI on both sides (R9). `port` is the one on which the key
 * was seen. */
static __always_inline void upstream_key(struct spillway_flow_key *key, const struct spillway_port *port) {
    key->port = 0;
    if (port && (port->flags & SPILLWAY_PORT_VNI) && !(key->flags & SPILLWAY_KEY_VNI)) {
        key->vni = port->vni;
        key->flags |= SPILLWAY_KEY_VNI;
    }
}

/* Asks for the upstream node of a flow; `key` has the egress port. Packets of the flow are looked at on all
 * ports for one window. */
static __always_inline int want_upstream(struct spillway_settings *set, const struct spillway_flow_key *key,
                                         __u64 now) {
    struct spillway_flow_key any_port = *key;
    const __u64 until = now + set->window_ns;
    upstream_key(&any_port, find_port(key->port));
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
