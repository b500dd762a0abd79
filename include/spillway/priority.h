/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* How priority fields rank (R4a, R4e): a rewrite lowers what is scheduled, it never raises. */
#ifndef SPILLWAY_PRIORITY_H
#define SPILLWAY_PRIORITY_H

#include "base.h"

#define SPILLWAY_PCP_MAX 7
#define SPILLWAY_DSCP_MAX 63

/* Rank of a VLAN priority code point, 0..7: 802.1Q puts 1 (background) below 0 (best effort). */
SPILLWAY_INLINE __u32 spillway_pcp_rank(__u32 pcp) {
    return pcp < 2 ? 1 - pcp : pcp;
}

/* Rank of a DiffServ code point, 0..63: 1 (LE, RFC 8622) and 8 (CS1, its predecessor) below all others, which
 * rank by number. */
SPILLWAY_INLINE __u32 spillway_dscp_rank(__u32 dscp) {
    return dscp == 1 || dscp == 8 ? 0 : dscp + 1;
}

/* A tag's control information with another priority: VID and DEI stay. */
SPILLWAY_INLINE __u16 spillway_tci_with_pcp(__u16 tci, __u32 pcp) {
    return (__u16)((tci & 0x1fff) | (pcp << 13));
}

/* An IPv4 TOS byte or IPv6 traffic class with another code point: the two ECN bits stay. */
SPILLWAY_INLINE __u8 spillway_tos_with_dscp(__u8 tos, __u32 dscp) {
    return (__u8)((tos & 3) | (dscp << 2));
}

/* The same with CE (congestion experienced, RFC 3168) if the flow is ECN-capable: ECT(0), ECT(1), or CE
 * already. */
SPILLWAY_INLINE __u8 spillway_tos_with_ce(__u8 tos) {
    return tos & 3 ? tos | 3 : tos;
}

#endif
