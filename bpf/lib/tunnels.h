/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The UDP ports in whose packets a VXLAN header is looked for. */
#ifndef SPILLWAY_BPF_TUNNELS_H
#define SPILLWAY_BPF_TUNNELS_H

#include <bpf/bpf_helpers.h>

#include "spillway/flow_key.h"

/* Set before loading. */
const volatile struct spillway_tunnels tunnels __weak = {.vxlan_ports = {SPILLWAY_VXLAN_PORT}};

#endif
