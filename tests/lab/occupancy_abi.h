/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the laboratory's BPF programs and its process share: how much of each arrival port and priority waits
 * in a switch, and when that crosses XOFF and XON. */
#ifndef SPILLWAY_LAB_OCCUPANCY_ABI_H
#define SPILLWAY_LAB_OCCUPANCY_ABI_H

#include <linux/types.h>

#define LAB_PORTS 256    /* number of a port: the last byte of its MAC 02:00:00:00:00:NN; 0 is none */
#define LAB_PRIORITIES 2 /* 0 normal, 1 low */
#define LAB_LOW_DSCP 1   /* lower effort (RFC 8622): travels with the low priority */

/* Of the packets that came in by one port with one priority; index port * LAB_PRIORITIES + priority. */
struct lab_occupancy {
    __u64 xoff;            /* process: bytes; above, the neighbour is to pause; 0: nobody counts here */
    __u64 xon;             /* process: bytes; below, it is to resume */
    __s64 bytes;           /* BPF: waiting now */
    __u64 peak;            /* BPF: bytes; most that waited since the process set it to 0 */
    __u64 packets;         /* BPF: arrived */
    __u64 dropped_packets; /* BPF: of them, lost inside the switch */
    __u32 pausing;         /* BPF: 1 from crossing XOFF until falling below XON */
    __u32 reserved;
};

/* A crossing. */
struct lab_crossing {
    __u64 time_ns; /* CLOCK_MONOTONIC */
    __u64 bytes;   /* waiting then */
    __u32 index;   /* as above */
    __u32 pause;   /* 1: above XOFF, 0: below XON */
};

#endif
