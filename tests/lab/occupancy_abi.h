/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the laboratory's BPF program and its process share: how much of each arrival port and priority waits
 * in a switch, and when that crosses XOFF and XON. */
#ifndef SPILLWAY_LAB_OCCUPANCY_ABI_H
#define SPILLWAY_LAB_OCCUPANCY_ABI_H

#include <linux/types.h>

#define LAB_PORTS 256    /* number of a port: the last byte of its MAC 02:00:00:00:00:NN; 0 is none */
#define LAB_PRIORITIES 2 /* 0 normal, 1 low */
#define LAB_LOW_DSCP 1   /* lower effort (RFC 8622): travels with the low priority */

/* Of the packets that came in by one port with one priority; index port * LAB_PRIORITIES + priority. */
struct lab_occupancy {
    __u64 xoff;  /* process: bytes; above, the neighbour is to pause; 0: a host's port, nothing is counted */
    __u64 xon;   /* process: bytes; below, it is to resume */
    __s64 bytes; /* waiting in the switch now; a packet that the switch drops stays counted */
    __u64 peak;  /* most that waited since the process set it to 0 */
    __u64 pausing; /* 1 from crossing XOFF until falling below XON */
};

/* A crossing. */
struct lab_crossing {
    __u64 time_ns; /* CLOCK_MONOTONIC */
    __u32 index;   /* as above */
    __u32 pause;   /* 1: above XOFF, 0: below XON */
};

#endif
