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

/* The queue a packet will wait in: a priority that names a class of the tree decides (an unmonitored class
 * is no queue of ours: isolated packets and CIPs are left alone), all else goes to the first queue. */
static __always_inline bool select_queue(struct packet *packet, __u32 priority) {
    const struct spillway_port *port = packet->port;
    __u32 index = port->first_queue;
    if (MAJOR(priority) && MAJOR(priority) == port->root_major) {
        __u32 i = 0;
        for (; i < SPILLWAY_PORT_QUEUES_MAX && i < port->queue_count; i++) {
            struct spillway_queue *queue = get_queue(port->first_queue + i);
            if (queue && queue->normal.classid == priority)
                break;
        }
        if (i >= SPILLWAY_PORT_QUEUES_MAX || i >= port->queue_count)
            return false;
        index += i;
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
    rewrite(skb, packet->port, &packet->layout, packet->key.family);
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

/* Steps the flow's mark, with a packet of it at hand. Returns false when the flow was released. */
static __always_inline bool step(struct __sk_buff *skb, const struct packet *packet,
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
    struct spillway_mark_times times;
    mark_times(packet->set, queue, isolation, &times);
    if (spillway_mark_step(flow, &times, drained(packet, flow, isolation, known, &reading), now)) {
        release_mark(&packet->key, packet->queue_index, flow->packets, now);
        return false;
    }
    flow->last_seen_ns = now;
    flow->drain_position = reading.backlog_bytes + reading.sent_bytes + skb->wire_len;
    flow->drain_base = reading.sent_bytes;
    flow->drain_generation = known && flow->state == SPILLWAY_STATE_DRAINING ? leaf->generation : 0;
    return true;
}

/* A packet of a marked flow. Returns false when the flow was released and the packet is an ordinary one. */
static __always_inline bool pass_marked(struct __sk_buff *skb, struct packet *packet,
                                        struct spillway_flow *flow) {
    struct spillway_queue *queue = packet->queue;
    const __u32 isolation = isolation_of(packet);
    const __u64 jiffies = bpf_jiffies64();
    /* Clock and leaf cost as much as all the rest: they are read once a jiffy, and for each packet of a
     * draining flow, whose release depends on its last packet. */
    if (flow->last_seen_jiffies != jiffies || flow->state != SPILLWAY_STATE_ISOLATED) {
        if (!step(skb, packet, flow, isolation))
            return false;
        flow->last_seen_jiffies = jiffies;
    }
    if (packet->above_low)
        add_suspect(packet, spillway_window(bpf_ktime_get_ns(), packet->set->window_ns), skb->wire_len);
    note(skb, packet, flow, isolation);
    if (!flow->packets) /* marked by hand or by a CIP before any packet came */
        __sync_fetch_and_add(&queue->marked_total, 1);
    __sync_fetch_and_add(&flow->packets, 1);
    __sync_fetch_and_add(&flow->bytes, skb->wire_len);
    isolate(skb, packet, isolation);
    return true;
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
    const bool forwarded = skb->ingress_ifindex != 0 && (packet->port->flags & SPILLWAY_PORT_SEND_CIP);
    if (bytes < asked) {
        if (forwarded && bytes >= asked / 2 && bytes - skb->wire_len < asked / 2)
            want_upstream(packet->set, &packet->key, now);
        return;
    }
    if (spillway_congested(&queue->waterline, packet->amount, bpf_get_prandom_u32())) {
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
    if (!select_queue(&packet, skb->priority))
        return TC_ACT_UNSPEC;
    packet.amount = 0;
    packet.above_low = false;
    const struct spillway_waterline *waterline = &packet.queue->waterline;
    if (waterline->set && read_amount(skb, packet.queue, &packet.amount))
        packet.above_low = packet.amount > waterline->low;
    if (!packet.above_low && packet.set->gen == packet.set->swept)
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
    if (flow && flow->mark == SPILLWAY_MARK_CONGESTED && pass_marked(skb, &packet, flow))
        return TC_ACT_UNSPEC;
    if (packet.above_low)
        judge(skb, &packet);
    return TC_ACT_UNSPEC;
}
