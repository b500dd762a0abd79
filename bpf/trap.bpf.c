/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* XDP: takes CIPs for this node off the wire. Every other frame costs one comparison. */
#include <linux/bpf.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lib/trap.h"
#include "spillway/flow_key.h"

SEC("xdp")
int spillway_trap(struct xdp_md *ctx) {
    const __u8 *frame = (const __u8 *)(long)ctx->data;
    const __u8 *end = (const __u8 *)(long)ctx->data_end;
    if (frame + 18 > end)
        return XDP_PASS;
    __u16 type = *(const __u16 *)(frame + 12);
    const __u8 *payload = frame + 14;
    if (type == bpf_htons(SPILLWAY_ETH_P_8021Q) || type == bpf_htons(SPILLWAY_ETH_P_8021AD)) {
        type = *(const __u16 *)(frame + 16);
        payload = frame + 18;
    }
    if (type != bpf_htons(cip_ethertype))
        return XDP_PASS;
    return trap_cip(frame, payload, end, ctx->ingress_ifindex) ? XDP_DROP : XDP_PASS;
}
