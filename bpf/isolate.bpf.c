/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* TC egress: for every packet that leaves a monitored port, isolate it if its flow is marked, else judge
 * whether its flow is to be marked. Uncongested traffic on a node without marks leaves early. */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lib/leaf.h"
#include "lib/maps.h"
#include "lib/mark.h"
#include "lib/packet.h"
#include "lib/rewrite.h"
#include "lib/upstream.h"

#define MAJOR(classid) ((classid)&0xffff0000U)

/* One packet on its way through this program. */
struct packet {
    struct spillway_settings *set;
    struct spillway_port *port;
    struct spillway_queue *queue;
    __u64 amount; /* in the queue's unit, this packet included */
    __u32 queue_index;
    bool above_low;
    __u64 hash;
    struct spillway_flow_key key;
    struct spillway_layout layout;
};

/* clang merges a write to the context with other accesses into one the verifier refuses. */
static __always_inline void set_priority(struct __sk_buff *skb, __u32 priority) {
    asm volatile("*(u32 *)(%[skb] + %[offset]) = %[priority]" ::[skb] "r"(skb),
                 [offset] "i"(__builtin_offsetof(struct __sk_buff, priority)), [priority] "r"(priority)
                 : "memory");
}

/* PCP in the lowest byte, DSCP in the next, and NOT_IP_FIELDS when there is none. */
#define NOT_IP_FIELDS 0x10000U

static __noinline __u32 fields_of(struct __sk_buff *skb) {
    __u32 at = 12;
    __u32 pcp = 0;
    bool tagged = false;
    if (skb->vlan_present) {
        pcp = (skb->vlan_tci >> 13) & SPILLWAY_PCP_MAX;
        tagged = true;
    }
    __be16 word = 0;
    for (int i = 0; i <= SPILLWAY_TAGS_MAX; i++) {
        if (bpf_skb_load_bytes(skb, at, &word, sizeof(word)))
            return NOT_IP_FIELDS | pcp;
        if (word != bpf_htons(SPILLWAY_ETH_P_8021Q) && word != bpf_htons(SPILLWAY_ETH_P_8021AD))
            break;
        __be16 tci = 0;
        bpf_skb_load_bytes(skb, at + 2, &tci, sizeof(tci));
        if (!tagged)
            pcp = bpf_ntohs(tci) >> 13;
        tagged = true;
        at += 4;
    }
    const bool ipv4 = word == bpf_htons(SPILLWAY_ETH_P_IP);
    if (!ipv4 && word != bpf_htons(SPILLWAY_ETH_P_IPV6))
        return NOT_IP_FIELDS | pcp;
    if (bpf_skb_load_bytes(skb, at + 2, &word, sizeof(word)))
        return NOT_IP_FIELDS | pcp;
    const __u32 dscp = bpf_ntohs(word) >> (ipv4 ? 2 : 6) & SPILLWAY_DSCP_MAX;
    return dscp << 8 | pcp;
}

static __always_inline bool matches(const struct spillway_match *match, __u32 priority, __u32 fields) {
    if (!match->flags)
        return false;
    if (match->flags & SPILLWAY_MATCH_PCP && !(match->pcp >> (fields & SPILLWAY_PCP_MAX) & 1))
        return false;
    if (match->flags & SPILLWAY_MATCH_DSCP &&
        (fields & NOT_IP_FIELDS || !(match->dscp >> (fields >> 8 & SPILLWAY_DSCP_MAX) & 1)))
        return false;
    if (!(match->flags & SPILLWAY_MATCH_PRIORITY))
        return true;
    bool found = false;
    for (__u32 i = 0; i < SPILLWAY_PRIORITIES_MAX; i++)
        found |= i < match->priority_count && match->priorities[i] == priority;
    return found;
}

/* The first queue of the port whose match holds, counted from its first; -1: none. */
static __noinline int matching_queue(struct __sk_buff *skb, struct spillway_port *port) {
    if (!port)
        return -1;
    const __u32 priority = skb->priority;
    const __u32 fields = port->flags & SPILLWAY_PORT_MATCH_FIELDS ? fields_of(skb) : 0;
    for (__u32 i = 0; i < SPILLWAY_PORT_QUEUES_MAX && i < port->queue_count; i++) {
        const struct spillway_queue *queue = get_queue(port->first_queue + i);
        if (queue && matches(&queue->match, priority, fields))
            return (int)i;
    }
    return -1;
}

/* The queue a packet will wait in: the first one whose match holds, else a priority that names a class of the
 * tree decides (an unmonitored class is no queue of ours: isolated packets and CIPs are left alone), all else
 * goes to the first queue without a match. */
static __always_inline bool select_queue(struct __sk_buff *skb, struct packet *packet) {
    struct spillway_port *port = packet->port;
    const __u32 priority = skb->priority;
    const int matching = port->flags & SPILLWAY_PORT_MATCH ? matching_queue(skb, port) : -1;
    __u32 index = port->first_queue;
    if (matching >= 0) {
        index += (__u32)matching;
    } else if (MAJOR(priority) && MAJOR(priority) == port->root_major) {
        __u32 i = 0;
        for (; i < SPILLWAY_PORT_QUEUES_MAX && i < port->queue_count; i++) {
            struct spillway_queue *queue = get_queue(port->first_queue + i);
            if (queue && queue->normal.classid == priority)
                break;
        }
        if (i >= SPILLWAY_PORT_QUEUES_MAX || i >= port->queue_count)
            return false;
        index += i;
    } else if (port->flags & SPILLWAY_PORT_MATCH) {
        if (port->fallback >= port->queue_count)
            return false;
        index += port->fallback;
    }
    packet->queue_index = index;
    packet->queue = get_queue(index);
    return packet->queue && packet->queue->ifindex == port->ifindex;
}

/* Adds the packet to its flow's guard sum and keeps the queue's heaviest flow. Of the two slots a flow may
 * use it takes its own, else the lighter one, so that two heavy flows rarely share. */
static __always_inline __u32 add_suspect(struct packet *packet, __u32 window, __u32 length) {
    const __u32 tag = packet->hash >> 32;
    const __u32 first_slot = (__u32)packet->hash & (SPILLWAY_SUSPECTS - 1);
    const __u32 second_slot = (__u32)(packet->hash >> 16) & (SPILLWAY_SUSPECTS - 1);
    struct spillway_suspect *first = bpf_map_lookup_elem(&suspects, &first_slot);
    struct spillway_suspect *second = bpf_map_lookup_elem(&suspects, &second_slot);
    if (!first || !second)
        return 0;
    const __u32 first_bytes = first->window == window ? first->bytes : 0;
    const __u32 second_bytes = second->window == window ? second->bytes : 0;
    const bool mine = first->tag == tag && first_bytes;
    const bool second_mine = second->tag == tag && second_bytes;
    struct spillway_suspect *slot = mine || (!second_mine && first_bytes <= second_bytes) ? first : second;
    const __u32 sum = spillway_suspect_add(slot, tag, packet->queue_index, window, length);
    if (!sum)
        count(packet->port->ifindex, SPILLWAY_LOST_SUSPECTS, 1);
    __u64 *heaviest = &packet->queue->heaviest[window & 1];
    if (sum > spillway_heaviest_bytes(*heaviest, window))
        *heaviest = spillway_heaviest_word(window, sum);
    return sum;
}

static __always_inline __u32 isolation_of(const struct packet *packet) {
    const __u32 n = packet->queue->isolation_count;
    return n > 1 ? (__u32)(packet->hash >> 8) % n & (SPILLWAY_ISOLATION_MAX - 1) : 0;
}

/* Notes in the flow's entry where its packets wait isolated. */
static __always_inline void note(const struct __sk_buff *skb, const struct packet *packet,
                                 struct spillway_flow *flow, __u32 isolation) {
    const struct spillway_queue *queue = packet->queue;
    flow->queue = packet->queue_index;
    flow->isolation = isolation;
    flow->ingress = skb->ingress_ifindex;
    if (queue->isolation_count)
        flow->classid = queue->isolation[isolation].classid;
}

/* Puts the packet into the isolation class, and lowers the priority it carries. */
static __always_inline void isolate(struct __sk_buff *skb, const struct packet *packet, __u32 isolation) {
    if (packet->queue->isolation_count)
        set_priority(skb, packet->queue->isolation[isolation].classid);
    rewrite(skb, packet->port, &packet->layout);
}

/* Whether the flow's earlier packets have left its isolation leaf. */
static __always_inline enum spillway_drained drained(const struct packet *packet,
                                                     const struct spillway_flow *flow, __u32 isolation,
                                                     bool known, const struct reading *reading) {
    const struct spillway_queue *queue = packet->queue;
    if (!queue->isolation_count || !flow->classid)
        return SPILLWAY_DRAINED_YES;
    if (flow->queue != packet->queue_index || flow->isolation != isolation)
        return SPILLWAY_DRAINED_NO; /* from now on it waits in another leaf */
    const struct spillway_leaf *leaf = &queue->isolation[isolation];
    const bool positions = known && leaf->positions;
    if (known && !reading->backlog_packets)
        return SPILLWAY_DRAINED_YES;
    if (positions && spillway_drained_by_position(flow, reading->backlog_bytes, reading->sent_bytes,
                                                  leaf->generation, packet->set->drain_margin))
        return SPILLWAY_DRAINED_YES;
    if (leaf->drained_before_ns && spillway_drained_by_time(flow, leaf->drained_before_ns))
        return SPILLWAY_DRAINED_YES;
    /* Positions and readings that still come will tell; otherwise nobody will. */
    const bool readings = leaf->read_ns && spillway_since(packet->set->heartbeat_ns, leaf->read_ns) <
                                               (__s64)packet->set->stale_agent_ns;
    const bool agent =
        spillway_since(flow->last_seen_ns, packet->set->heartbeat_ns) < (__s64)packet->set->stale_agent_ns;
    return positions || (readings && agent) ? SPILLWAY_DRAINED_NO : SPILLWAY_DRAINED_UNKNOWN;
}

/* Closes the flow's guard window when a new one has begun, and keeps the queue's heaviest flow. A mark of our
 * own ends when its flow was light for a few windows in a row (B10): then the guard was wrong, or the flow
 * has become another one. Only windows that were isolated from their beginning are judged. */
static __always_inline void reconsider(const struct packet *packet, struct spillway_flow *flow, __u64 now) {
    const struct spillway_settings *set = packet->set;
    struct spillway_queue *queue = packet->queue;
    const __u32 window = spillway_window(now, set->window_ns);
    const __u32 bytes = flow->window_bytes;
    __u64 *heaviest = &queue->heaviest[flow->window & 1];
    if (bytes > spillway_heaviest_bytes(*heaviest, flow->window) && flow->window + 1 - window <= 1)
        *heaviest = spillway_heaviest_word(flow->window, bytes);
    if (flow->window == window)
        return;
    const __u32 most = spillway_heaviest_bytes(queue->heaviest[(window - 1) & 1], window - 1);
    if (set->guard && most && flow->window &&
        spillway_window(flow->marked_ns, set->window_ns) != flow->window)
        flow->light_windows =
            spillway_is_light(bytes, set->guard_min_ratio, most) ? flow->light_windows + 1 : 0;
    if (flow->light_windows >= SPILLWAY_LIGHT_WINDOWS)
        flow->local_until_ns = 0;
    flow->window = window;
    flow->window_bytes = 0;
}

/* What becomes of a packet of a marked flow. */
enum passage {
    PASSES,   /* the flow was released: an ordinary packet */
    ISOLATED, /* below */
    DROPPED,
};

/* Steps the flow's mark, with a packet of it at hand. */
static __always_inline enum passage step(struct __sk_buff *skb, const struct packet *packet,
                                         struct spillway_flow *flow, __u32 isolation) {
    struct spillway_queue *queue = packet->queue;
    struct spillway_leaf *leaf = &queue->isolation[isolation];
    const __u64 now = bpf_ktime_get_ns();
    struct reading reading = {};
    const bool known = kernel_read && queue->isolation_count && read_leaf(skb, leaf, &reading);
    if (known && queue->waterline.set) {
        const __u64 waiting =
            spillway_amount(&queue->waterline, reading.backlog_bytes, reading.backlog_packets, skb->wire_len);
        if (waiting > queue->waterline.low)
            leaf->busy_ns = now;
    }
    if (packet->above_low && kernel_read)
        queue->normal.busy_ns = now;
    reconsider(packet, flow, now);
    struct spillway_mark_times times;
    mark_times(packet->set, queue, isolation, &times);
    const enum spillway_drained gone = drained(packet, flow, isolation, known, &reading);
    if (step_mark(&packet->key, flow, &times, gone, now)) {
        flow->queue = packet->queue_index;
        release_mark(packet->set, &packet->key, flow, now);
        return PASSES;
    }
    if (spillway_hands_over(flow, packet->set->window_ns, now)) {
        count(packet->port->ifindex, SPILLWAY_LOST_HANDOVER, 1);
        return DROPPED;
    }
    flow->last_seen_ns = now;
    flow->drain_position = reading.backlog_bytes + reading.sent_bytes + skb->wire_len;
    flow->drain_base = reading.sent_bytes;
    flow->drain_generation = known && flow->state == SPILLWAY_STATE_DRAINING ? leaf->generation : 0;
    return ISOLATED;
}

/* A packet of a marked flow. */
static __always_inline enum passage pass_marked(struct __sk_buff *skb, struct packet *packet,
                                                struct spillway_flow *flow) {
    struct spillway_queue *queue = packet->queue;
    const __u32 isolation = isolation_of(packet);
    const __u64 jiffies = bpf_jiffies64();
    /* Clock and leaf cost as much as all the rest: they are read once a jiffy, and for each packet of a
     * draining flow, whose release depends on its last packet. */
    if (flow->last_seen_jiffies != jiffies || flow->state != SPILLWAY_STATE_ISOLATED) {
        const enum passage passage = step(skb, packet, flow, isolation);
        if (passage != ISOLATED)
            return passage;
        flow->last_seen_jiffies = jiffies;
    }
    if (packet->above_low)
        add_suspect(packet, spillway_window(bpf_ktime_get_ns(), packet->set->window_ns), skb->wire_len);
    note(skb, packet, flow, isolation);
    if (!flow->packets) /* marked by hand or by a CIP before any packet came */
        __sync_fetch_and_add(&queue->marked_total, 1);
    __sync_fetch_and_add(&flow->packets, 1);
    __sync_fetch_and_add(&flow->bytes, skb->wire_len);
    flow->window_bytes = spillway_saturated(flow->window_bytes, skb->wire_len);
    isolate(skb, packet, isolation);
    return ISOLATED;
}

/* A packet of a flow without a mark, where every flow has an entry (R5). */
static __always_inline void pass_unmarked(struct __sk_buff *skb, const struct packet *packet,
                                          struct spillway_flow *flow) {
    const __u64 jiffies = bpf_jiffies64();
    if (!flow) {
        const __u64 now = bpf_ktime_get_ns();
        const struct spillway_flow fresh = {.mark = SPILLWAY_MARK_NORMAL,
                                            .marked_ns = now,
                                            .last_seen_ns = now,
                                            .last_seen_jiffies = jiffies,
                                            .packets = 1,
                                            .bytes = skb->wire_len,
                                            .queue = packet->queue_index,
                                            .ingress = skb->ingress_ifindex};
        insert_unmarked(packet->set, packet->port, &packet->key, &fresh);
        return;
    }
    if (flow->last_seen_jiffies != jiffies) {
        flow->last_seen_ns = bpf_ktime_get_ns();
        flow->last_seen_jiffies = jiffies;
    }
    __sync_fetch_and_add(&flow->packets, 1);
    __sync_fetch_and_add(&flow->bytes, skb->wire_len);
}

/* An event about the packet's flow. */
static __always_inline void report(enum spillway_event_type type, const struct packet *packet, __u64 amount,
                                   __u64 now) {
    struct spillway_event *event = new_event(type, now);
    if (!event)
        return;
    event->key = packet->key;
    event->amount = amount;
    event->queue = packet->queue_index;
    bpf_ringbuf_submit(event, 0);
}

/* Tells the agent of a new mark, with the packet's own headers for the CIP. */
static __always_inline void report_marked(struct __sk_buff *skb, const struct packet *packet, __u64 now) {
    struct spillway_event *event = new_event(SPILLWAY_EVENT_MARKED, now);
    if (!event)
        return;
    event->key = packet->key;
    event->amount = packet->amount;
    event->queue = packet->queue_index;
    __u32 last = packet->layout.end - packet->layout.network - 1;
    if (last < SPILLWAY_CIP_PAYLOAD_MAX) {
        barrier_var(last); /* before 6.13 the verifier loses the bounds of a sum, and follows a mask */
        const __u32 length = (last & 0xff) + 1;
        if (!bpf_skb_load_bytes(skb, packet->layout.network, event->bytes, length))
            event->length = length;
    }
    bpf_ringbuf_submit(event, 0);
}

/* Marks the flow and isolates this packet already. */
static __always_inline void mark(struct __sk_buff *skb, struct packet *packet, __u64 now) {
    const __u32 isolation = isolation_of(packet);
    struct spillway_flow flow = {
        .mark = SPILLWAY_MARK_CONGESTED,
        .state = SPILLWAY_STATE_ISOLATED,
        .origin = SPILLWAY_ORIGIN_LOCAL,
        .marked_ns = now,
        .last_seen_ns = now,
        .last_seen_jiffies = bpf_jiffies64(),
        .local_until_ns = now + packet->set->life_ns,
        .packets = 1,
        .bytes = skb->wire_len,
        .window = spillway_window(now, packet->set->window_ns),
        .window_bytes = skb->wire_len,
    };
    note(skb, packet, &flow, isolation);
    const int result = insert_mark(packet->set, packet->port, &packet->key, &flow);
    if (result != SPILLWAY_EDIT_DONE && result != SPILLWAY_EDIT_EXISTS) {
        /* No entry, no isolation: later packets of the flow would overtake this one. */
        count(packet->port->ifindex, SPILLWAY_LOST_TABLE_FULL, 1);
        return;
    }
    if (result == SPILLWAY_EDIT_DONE) { /* else another CPU was first */
        __sync_fetch_and_add(&packet->queue->marked_total, 1);
        report_marked(skb, packet, now);
    }
    isolate(skb, packet, isolation);
}

/* A packet of an unmarked flow that makes its queue exceed the low waterline (R1, B5, B9). */
static __always_inline void judge(struct __sk_buff *skb, struct packet *packet) {
    const struct spillway_settings *set = packet->set;
    struct spillway_queue *queue = packet->queue;
    const __u64 now = bpf_ktime_get_ns();
    if (kernel_read)
        queue->normal.busy_ns = now;
    else if (spillway_since(now, queue->normal.read_ns) >= (__s64)set->stale_ns)
        return;
    if (spillway_since(now, set->heartbeat_ns) >= (__s64)set->stale_agent_ns)
        return;
    const __u32 window = spillway_window(now, set->window_ns);
    const __u32 bytes = add_suspect(packet, window, skb->wire_len);
    __u64 asked = 0;
    if (set->guard)
        asked = spillway_guard_asks(set->guard_min_bytes, set->guard_min_ratio,
                                    spillway_heaviest(queue->heaviest, window));
    /* Half way to a mark is the time to learn who sends the flow. */
    /* A tunnel's end forgets where the packet came in: it may have been forwarded. */
    const bool forwarded = (skb->ingress_ifindex || packet->key.flags & SPILLWAY_KEY_VNI) &&
                           packet->port->flags & SPILLWAY_PORT_SEND_CIP && !set->observe;
    if (bytes < asked) {
        if (bytes >= asked / 2 && bytes - skb->wire_len < asked / 2) {
            __sync_fetch_and_add(&queue->suspect_total, 1);
            report(SPILLWAY_EVENT_SUSPECT, packet, bytes, now);
            if (forwarded)
                want_upstream(packet->set, &packet->key, now);
        }
        return;
    }
    if (spillway_congested(&queue->waterline, packet->amount, bpf_get_prandom_u32())) {
        if (set->observe) {
            /* Once for a flow and window, or its every packet would be an event. */
            if (bytes == skb->wire_len || bytes - skb->wire_len < asked) {
                __sync_fetch_and_add(&queue->would_mark_total, 1);
                report(SPILLWAY_EVENT_WOULD_MARK, packet, packet->amount, now);
            }
            return;
        }
        if (forwarded)
            want_upstream(packet->set, &packet->key, now);
        mark(skb, packet, now);
    }
}

SEC("tc")
int spillway_isolate(struct __sk_buff *skb) {
    struct packet packet;
    packet.set = get_settings();
    packet.port = find_port(skb->ifindex);
    if (!packet.set || !packet.port || !packet.port->queue_count)
        return TC_ACT_UNSPEC;
    if (!select_queue(skb, &packet))
        return TC_ACT_UNSPEC;
    packet.amount = 0;
    packet.above_low = false;
    const struct spillway_waterline *waterline = &packet.queue->waterline;
    if (waterline->set && read_amount(skb, packet.queue, &packet.amount))
        packet.above_low = packet.amount > waterline->low;
    if (!packet.above_low && packet.set->gen == packet.set->swept && !table_full)
        return TC_ACT_UNSPEC;
    if (packet.set->panic) /* not before: nothing was touched so far, and idle packets need not ask */
        return TC_ACT_UNSPEC;

    const enum spillway_reason reason = parse_skb(skb, &packet.key, &packet.layout);
    if (reason != SPILLWAY_OK) {
        if (reason != SPILLWAY_NOT_IP && packet.above_low)
            count(packet.port->ifindex, SPILLWAY_LOST_PARSE, 1);
        return TC_ACT_UNSPEC;
    }
    packet.key.port = packet.port->ifindex;
    struct spillway_flow *flow = find_flow(&packet.key);
    /* Only the guard and a choice of isolation classes ask for it. */
    packet.hash = packet.above_low || packet.queue->isolation_count > 1 ? spillway_hash(&packet.key) : 0;
    if (flow && flow->mark == SPILLWAY_MARK_CONGESTED) {
        if (packet.set->observe)
            return TC_ACT_UNSPEC;
        const enum passage passage = pass_marked(skb, &packet, flow);
        if (passage != PASSES)
            return passage == DROPPED ? TC_ACT_SHOT : TC_ACT_UNSPEC;
    } else if (table_full) {
        pass_unmarked(skb, &packet, flow);
    }
    if (packet.above_low)
        judge(skb, &packet);
    return TC_ACT_UNSPEC;
}
