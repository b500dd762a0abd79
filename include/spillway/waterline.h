/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Waterlines (spec R1): the one rule by which kernel and agent judge an amount waiting in a queue.
 *
 *   amount          = what waits once the packet has been added
 *   amount > high   = above:   congested
 *   amount > low    = between: congested with probability preset * (amount - low) / (high - low)
 *   otherwise       = below:   not congested
 *
 * With low = high there is one waterline and nothing is ever between. Integers only.
 *
 *   low 50000, high 200000, preset 0.1, backlog 123500, packet 1500: amount 125000, between, p = 0.05 */
#ifndef SPILLWAY_WATERLINE_H
#define SPILLWAY_WATERLINE_H

#include "base.h"

enum spillway_unit {
    SPILLWAY_UNIT_BYTES = 0,
    SPILLWAY_UNIT_PACKETS = 1,
};

/* Unknown: there is no waterline, no reading, or only a stale one. Unknown never marks a flow (B6). */
enum spillway_level {
    SPILLWAY_LEVEL_UNKNOWN = 0,
    SPILLWAY_LEVEL_BELOW = 1,
    SPILLWAY_LEVEL_BETWEEN = 2,
    SPILLWAY_LEVEL_ABOVE = 3,
};

/* A probability of one; zero is 0. */
#define SPILLWAY_PROBABILITY_ONE (1ULL << 32)

struct spillway_waterline {
    __u64 probability;       /* preset at `high`, 0..SPILLWAY_PROBABILITY_ONE */
    __u32 low;               /* in `unit`, <= high */
    __u32 high;              /* in `unit` */
    enum spillway_unit unit; /* bytes as the qdisc counts them, or packets */
    __u32 set;               /* 0: the queue has no waterline and its level is unknown */
};
SPILLWAY_ASSERT(sizeof(struct spillway_waterline) == 24);

/* What waits after a packet of `length` bytes (its qdisc length) was added to the backlog. */
SPILLWAY_INLINE __u64 spillway_amount(const struct spillway_waterline *waterline, __u64 backlog_bytes,
                                      __u64 backlog_packets, __u32 length) {
    return waterline->unit == SPILLWAY_UNIT_PACKETS ? backlog_packets + 1 : backlog_bytes + length;
}

SPILLWAY_INLINE enum spillway_level spillway_level_of(const struct spillway_waterline *waterline,
                                                      __u64 amount) {
    if (!waterline->set)
        return SPILLWAY_LEVEL_UNKNOWN;
    if (amount > waterline->high)
        return SPILLWAY_LEVEL_ABOVE;
    return amount > waterline->low ? SPILLWAY_LEVEL_BETWEEN : SPILLWAY_LEVEL_BELOW;
}

/* The probability of R1a/R1b for this amount, 0..SPILLWAY_PROBABILITY_ONE. The product cannot overflow:
 * the preset is at most 2^32, and between the lines amount - low is below 2^32. */
SPILLWAY_INLINE __u64 spillway_probability(const struct spillway_waterline *waterline, __u64 amount) {
    switch (spillway_level_of(waterline, amount)) {
    case SPILLWAY_LEVEL_ABOVE:
        return SPILLWAY_PROBABILITY_ONE;
    case SPILLWAY_LEVEL_BETWEEN:
        return waterline->probability * (amount - waterline->low) / (waterline->high - waterline->low);
    default:
        return 0;
    }
}

/* R1: is the queue congested by a packet that makes it hold `amount`? `random` is uniform in 0..2^32-1. */
SPILLWAY_INLINE int spillway_congested(const struct spillway_waterline *waterline, __u64 amount,
                                       __u32 random) {
    return random < spillway_probability(waterline, amount);
}

#endif
