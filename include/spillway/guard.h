/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The guard against false isolation (spec B5): only a flow that has itself enqueued much may be marked.
 *
 * Time is cut into windows of `window_ns`, the same for all flows of a queue. Bytes are added up only while
 * the queue is above its low waterline. A flow may be marked once, in the current window, it has enqueued
 *
 *   max(min_bytes, min_ratio * what the heaviest flow enqueued in this window or the last one)
 *
 * so n equal flows are all heavy, whatever n is, and a flow far lighter than the culprit never is. */
#ifndef SPILLWAY_GUARD_H
#define SPILLWAY_GUARD_H

#include "base.h"

/* A ratio of one. */
#define SPILLWAY_RATIO_ONE 65536U

/* One tagged slot of the `suspects` map: what one flow enqueued in one window. */
struct spillway_suspect {
    __u32 tag;    /* upper half of the flow's hash; tells whose slot this is */
    __u32 window; /* number of the window in which `bytes` were added up */
    __u32 bytes;  /* saturates at 2^32-1 */
    __u32 queue;  /* index into `queues` */
};
SPILLWAY_ASSERT(sizeof(struct spillway_suspect) == 16);

SPILLWAY_INLINE __u32 spillway_window(__u64 now_ns, __u64 window_ns) {
    return (__u32)(now_ns / (window_ns ? window_ns : 1));
}

/* The heaviest flow of one window packed into one word, so that it is read and written whole:
 * window number in the upper half, bytes in the lower. */
SPILLWAY_INLINE __u64 spillway_heaviest_word(__u32 window, __u32 bytes) {
    return (__u64)window << 32 | bytes;
}

/* Bytes that `word` holds for `window`; 0 when it is of another window. */
SPILLWAY_INLINE __u32 spillway_heaviest_bytes(__u64 word, __u32 window) {
    return (__u32)(word >> 32) == window ? (__u32)word : 0;
}

/* The heavier of the current and the last window; `heaviest` is indexed by the window's lowest bit. */
SPILLWAY_INLINE __u32 spillway_heaviest(const __u64 heaviest[2], __u32 window) {
    const __u32 current = spillway_heaviest_bytes(heaviest[window & 1], window);
    const __u32 last = spillway_heaviest_bytes(heaviest[(window - 1) & 1], window - 1);
    return current > last ? current : last;
}

/* Bytes a flow must have enqueued in this window to be marked. `min_ratio` is 0..SPILLWAY_RATIO_ONE. */
SPILLWAY_INLINE __u64 spillway_guard_asks(__u32 min_bytes, __u32 min_ratio, __u32 heaviest) {
    const __u64 share = (__u64)heaviest * min_ratio / SPILLWAY_RATIO_ONE;
    return share > min_bytes ? share : min_bytes;
}

/* B10: a marked flow that was light for so many windows in a row gets its priority back: longer than a TCP
 * elephant that has lost packets waits for its first timeout, and well within a second. */
#define SPILLWAY_LIGHT_WINDOWS 4

/* Did a flow enqueue less than the guard's share of the heaviest one? What the guard asks at least plays no
 * part: an elephant that is starved is the heaviest all the same. */
SPILLWAY_INLINE int spillway_is_light(__u32 bytes, __u32 min_ratio, __u32 heaviest) {
    return bytes < (__u64)heaviest * min_ratio / SPILLWAY_RATIO_ONE;
}

SPILLWAY_INLINE __u32 spillway_saturated(__u32 sum, __u32 length) {
    return sum + length < sum ? 0xffffffffU : sum + length;
}

/* Adds `length` bytes of the flow `tag` to `slot` and returns the flow's sum in this window. A slot of an
 * older window or a drained one is taken over; a packet of another flow lowers it (so heavy flows keep
 * their slots) and counts nothing for itself: 0 is returned. */
SPILLWAY_INLINE __u32 spillway_suspect_add(struct spillway_suspect *slot, __u32 tag, __u32 queue,
                                           __u32 window, __u32 length) {
    const int mine = slot->tag == tag && slot->queue == queue;
    if (slot->window != window || (!mine && slot->bytes <= length)) {
        slot->tag = tag;
        slot->queue = queue;
        slot->bytes = length;
        slot->window = window;
        return length;
    }
    if (!mine) {
        slot->bytes -= length;
        return 0;
    }
    slot->bytes = spillway_saturated(slot->bytes, length);
    return slot->bytes;
}

#endif
