/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The life of a mark (spec R7, B1-B3, B6, B9): a pure state machine, stepped by the TC program when a packet
 * of the flow comes and by the edit program when the agent sweeps.
 *
 *   normal ──mark──▶ isolated ──no reason holds──▶ draining ──drained──▶ released (entry deleted)
 *                       ▲                              │
 *                       └────────── a new reason ──────┘
 *
 * A mark holds while any of its reasons holds:
 *   local   our own queue was congested by the flow, and that queue or its isolation queue has been above
 *           the low waterline within the last life_ns; ends in any case life_ns after the agent's heartbeat
 *           went stale, since the level is then unknown
 *   cip     a CIP came within its lifetime, or our own isolation queue has been above the low waterline
 *           within the last life_ns
 *   manual  set by hand, until taken back by hand
 * Local and cip end too when the flow has been silent for idle_ns. While draining, packets stay isolated:
 * giving the priority back before the last of them has left would reorder the flow. */
#ifndef SPILLWAY_MARK_H
#define SPILLWAY_MARK_H

#include "base.h"
#include "guard.h"

enum spillway_mark {
    SPILLWAY_MARK_NONE = 0,
    SPILLWAY_MARK_CONGESTED = 1, /* the patent's first mark */
    SPILLWAY_MARK_NORMAL = 2,    /* the patent's second mark */
};

enum spillway_state {
    SPILLWAY_STATE_NORMAL = 0,
    SPILLWAY_STATE_ISOLATED = 1,
    SPILLWAY_STATE_DRAINING = 2,
};

/* The first reason that holds, in the order manual, local, cip; while draining the last that held. */
enum spillway_origin {
    SPILLWAY_ORIGIN_NONE = 0,
    SPILLWAY_ORIGIN_LOCAL = 1,
    SPILLWAY_ORIGIN_CIP = 2,
    SPILLWAY_ORIGIN_MANUAL = 3,
};

/* last_seen_ns is refreshed at most once a jiffy (10 ms at HZ=100): a flow is silent only when it has been
 * so for this much longer than its idle time. */
#define SPILLWAY_LAST_SEEN_SLACK_NS 10000000ULL

/* A packet may have passed our program and not yet be in the queue when the agent reads the queue. */
#define SPILLWAY_ENQUEUE_SLACK_NS 100000ULL

/* Value of `flows`. One entry is one marked flow on one port. */
struct spillway_flow {
    enum spillway_mark mark;
    enum spillway_state state;
    enum spillway_origin origin;
    __u32 manual;       /* 1: marked by hand */
    __u64 marked_ns;    /* when the mark was made */
    __u64 last_seen_ns; /* when the flow's last packet came, or the mark was made: at most a jiffy before it
                         * while isolated, not before it while draining */
    __u64 last_seen_jiffies; /* the same, to tell cheaply whether a jiffy has passed */
    __u64 local_until_ns;    /* reason local, before the queues are asked; 0: not a reason */
    __u64 cip_until_ns;      /* reason cip, likewise */
    __u64 ended_ns;          /* when the last reason ended; 0 while isolated */
    __u64 drain_position;   /* draining: bytes the leaf will have sent when the flow's last packet has left */
    __u64 drain_base;       /* bytes it had sent when that packet came */
    __u64 packets;          /* isolated packets */
    __u64 bytes;            /* isolated bytes, qdisc lengths */
    __u32 drain_generation; /* generation of the leaf drain_position belongs to; 0: not known */
    __u32 classid;          /* isolation class of the last packet; 0: none yet */
    __u32 queue;            /* index into `queues`, of the last packet */
    __u32 isolation;        /* index of the isolation leaf in that queue */
    __u32 ingress;          /* ifindex the last packet came in by; 0: made on this host, or none came yet */
    __u32 window;           /* guard window in which window_bytes were added up, see guard.h */
    __u32 window_bytes;     /* isolated bytes of that window; saturates */
    __u32 light_windows;    /* windows in a row in which the flow was light (B10) */
};
SPILLWAY_ASSERT(sizeof(struct spillway_flow) == 128);
SPILLWAY_ASSERT(SPILLWAY_OFFSET(spillway_flow, last_seen_ns) == 24);

/* What the step needs to know of the node. All in nanoseconds. */
struct spillway_mark_times {
    __u64 idle_ns;
    __u64 life_ns;
    __u64 clear_ns;
    __u64 stale_agent_ns;
    __u64 heartbeat_ns;      /* last heartbeat of the agent */
    __u64 queue_busy_ns;     /* when the queue was last above low; 0: never, or no waterline */
    __u64 isolation_busy_ns; /* the same of the isolation queue */
};

/* Whether the flow's last packet has left the isolation queue. */
enum spillway_drained {
    SPILLWAY_DRAINED_UNKNOWN = 0,
    SPILLWAY_DRAINED_NO = 1,
    SPILLWAY_DRAINED_YES = 2,
};

/* Judges by position (FIFO leaves): backlog and sent are read now, backlog first. When the leaf was replaced
 * or its counter went back, only an empty leaf proves anything. `margin` covers packets that passed the
 * program and were not yet counted in the backlog from which the position was taken. */
SPILLWAY_INLINE int spillway_drained_by_position(const struct spillway_flow *flow, __u64 backlog, __u64 sent,
                                                 __u32 generation, __u64 margin) {
    if (backlog == 0)
        return 1;
    return flow->drain_generation == generation && sent >= flow->drain_base &&
           sent >= flow->drain_position + margin;
}

/* Judges by the agent's readings: all that was enqueued before `drained_before_ns` has left. Before the flow
 * drains, its last packet may have come up to a jiffy after last_seen_ns. */
SPILLWAY_INLINE int spillway_drained_by_time(const struct spillway_flow *flow, __u64 drained_before_ns) {
    const __u64 slack = flow->state == SPILLWAY_STATE_DRAINING ? 0 : SPILLWAY_LAST_SEEN_SLACK_NS;
    return spillway_since(drained_before_ns, flow->last_seen_ns) > (__s64)(slack + SPILLWAY_ENQUEUE_SLACK_NS);
}

SPILLWAY_INLINE __u64 spillway_later(__u64 a, __u64 b) {
    return spillway_since(a, b) > 0 ? a : b;
}

SPILLWAY_INLINE int spillway_idle(const struct spillway_flow *flow, const struct spillway_mark_times *times,
                                  __u64 now_ns) {
    return spillway_since(now_ns, flow->last_seen_ns) >=
           (__s64)(times->idle_ns + SPILLWAY_LAST_SEEN_SLACK_NS);
}

/* When reason local ends if nothing changes; 0: it is not a reason. */
SPILLWAY_INLINE __u64 spillway_local_until(const struct spillway_flow *flow,
                                           const struct spillway_mark_times *times) {
    if (!flow->local_until_ns)
        return 0;
    const __u64 busy = spillway_later(times->queue_busy_ns, times->isolation_busy_ns);
    const __u64 until = spillway_later(flow->local_until_ns, busy ? busy + times->life_ns : 0);
    const __u64 limit = times->heartbeat_ns + times->stale_agent_ns + times->life_ns;
    return spillway_since(until, limit) > 0 ? limit : until;
}

/* When reason cip ends if nothing changes; 0: it is not a reason. */
SPILLWAY_INLINE __u64 spillway_cip_until(const struct spillway_flow *flow,
                                         const struct spillway_mark_times *times) {
    if (!flow->cip_until_ns)
        return 0;
    const __u64 busy = times->isolation_busy_ns;
    return spillway_later(flow->cip_until_ns, busy ? busy + times->life_ns : 0);
}

/* The first reason that holds now. */
SPILLWAY_INLINE enum spillway_origin spillway_holds(const struct spillway_flow *flow,
                                                    const struct spillway_mark_times *times, __u64 now_ns) {
    if (flow->manual)
        return SPILLWAY_ORIGIN_MANUAL;
    if (spillway_idle(flow, times, now_ns))
        return SPILLWAY_ORIGIN_NONE;
    const __u64 local = spillway_local_until(flow, times);
    if (local && spillway_since(local, now_ns) > 0)
        return SPILLWAY_ORIGIN_LOCAL;
    const __u64 cip = spillway_cip_until(flow, times);
    if (cip && spillway_since(cip, now_ns) > 0)
        return SPILLWAY_ORIGIN_CIP;
    return SPILLWAY_ORIGIN_NONE;
}

/* One step of a marked flow. Returns 1 when the flow is to be released (the caller deletes the entry), else
 * 0. A reason that ended is forgotten, so that only a new one revives the mark. When it cannot be known
 * whether the flow has drained, it is released clear_ns after its last reason ended. */
SPILLWAY_INLINE int spillway_mark_step(struct spillway_flow *flow, const struct spillway_mark_times *times,
                                       enum spillway_drained drained, __u64 now_ns) {
    const enum spillway_origin origin = spillway_holds(flow, times, now_ns);
    if (origin != SPILLWAY_ORIGIN_NONE) {
        flow->origin = origin;
        flow->state = SPILLWAY_STATE_ISOLATED;
        flow->ended_ns = 0;
        return 0;
    }
    if (flow->state != SPILLWAY_STATE_DRAINING) {
        flow->state = SPILLWAY_STATE_DRAINING;
        flow->ended_ns = now_ns;
        flow->last_seen_ns += SPILLWAY_LAST_SEEN_SLACK_NS; /* the release depends on it from here on */
        flow->local_until_ns = 0;
        flow->cip_until_ns = 0;
    }
    if (drained == SPILLWAY_DRAINED_YES)
        return 1;
    return drained == SPILLWAY_DRAINED_UNKNOWN &&
           spillway_since(now_ns, flow->ended_ns) >= (__s64)times->clear_ns;
}

/* May a packet of a draining flow be dropped, so that none of the flow waits any longer? Only of a flow that
 * was light (B10): while the congestion lasts, what waits in its isolation queue takes longer to leave than
 * its next packet to come, and it would drain for as long as it goes on. It gets two windows to drain by
 * itself; then its packets are let go for three at most, once, and none is reordered (B3). */
SPILLWAY_INLINE int spillway_hands_over(struct spillway_flow *flow, __u64 window_ns, __u64 now_ns) {
    if (flow->state != SPILLWAY_STATE_DRAINING || flow->light_windows < SPILLWAY_LIGHT_WINDOWS)
        return 0;
    const __s64 draining = spillway_since(now_ns, flow->ended_ns);
    if (draining < (__s64)(2 * window_ns))
        return 0;
    if (draining < (__s64)(5 * window_ns))
        return 1;
    flow->light_windows = 0; /* the isolation queue does not move */
    return 0;
}

#endif
