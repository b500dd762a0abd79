/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The contract between the BPF programs and user space: the pinned maps and what their bytes mean.
 *
 *   flows     HASH   spillway_flow_key -> spillway_flow      marked flows; changed by BPF programs only
 *   filter    ARRAY  spillway_filter_slot() -> u32           marked flows that fall into the slot; BPF only
 *   queues    ARRAY  index -> spillway_queue                 monitored queues; mapped by the agent
 *   ports     ARRAY  slot -> spillway_port                   ports, found by open addressing on ifindex
 *   suspects  ARRAY  slot -> spillway_suspect                guard sums; BPF only
 *   upstream  HASH   spillway_flow_key -> spillway_upstream  where flows come from; key.port is 0; BPF only
 *   counters  HASH   spillway_counter_key -> u64             what is counted; BPF only
 *   settings  ARRAY  0 -> spillway_settings                  one entry; mapped by the agent
 *   events    RINGBUF spillway_event
 *
 * Times are nanoseconds of CLOCK_MONOTONIC, lengths bytes, ports and EtherTypes host order. Every field has
 * one writer, named below: 'agent' or 'command' (through the mapping, one aligned store a field) or 'BPF'.
 * User space changes entries of the hashes only through the edit program, so that no write of a packet is
 * lost.
 *
 * No flow is marked exactly when gen = swept: whoever inserts a mark inserts first and then increments gen;
 * the sweeper reads gen as G, scans all flows, and if it found no mark sets swept = G. A mark made during
 * the scan has raised gen past G, so the gate stays open. A dead agent costs speed, never correctness.
 *
 * Where the filter has 0 no flow is marked, and `flows` need not be asked: whoever inserts a mark counts it
 * in the filter before, and whoever deletes one takes it out after.
 *
 * Any change of these structures or their meaning increments SPILLWAY_ABI. */
#ifndef SPILLWAY_ABI_H
#define SPILLWAY_ABI_H

#include "base.h"
#include "cip.h"
#include "flow_key.h"
#include "guard.h"
#include "mark.h"
#include "waterline.h"

#define SPILLWAY_ABI 4

#define SPILLWAY_NAME_MAX 16       /* interface name with its NUL */
#define SPILLWAY_PORTS_MAX 512     /* slots of `ports` found by ifindex, a power of two */
#define SPILLWAY_ABSENT_MAX 128    /* slots behind those: configured ports that do not exist, by name */
#define SPILLWAY_PORT_PROBES 8     /* a port lies within this many slots after its ifindex */
#define SPILLWAY_QUEUES_MAX 2048   /* entries of `queues` */
#define SPILLWAY_PORT_QUEUES_MAX 8 /* queues a port may have */
#define SPILLWAY_ISOLATION_MAX 4   /* isolation classes a queue may have */
#define SPILLWAY_PRIORITIES_MAX 8  /* priorities a queue may match */
#define SPILLWAY_TOLD_MAX 10       /* events about refused CIPs, per port and second */
#define SPILLWAY_SUSPECTS 65536    /* slots of `suspects`, a power of two */
#define SPILLWAY_EVENTS_BYTES (1U << 20)
#define SPILLWAY_QDISC_WALK_MAX 32 /* qdiscs looked at in one bucket of a device */

/* classid of a queue that is the root qdisc (TC_H_ROOT). */
#define SPILLWAY_CLASS_ROOT 0xffffffffU

/* A qdisc in which packets wait. `classid` names it for people, handle and parent for the kernel. */
struct spillway_leaf {
    __u32 classid;           /* agent: 0: unused entry */
    __u32 handle;            /* agent: of the leaf qdisc; 0 for a default leaf */
    __u32 parent;            /* agent: its parent class */
    __u32 bucket;            /* agent: hash bucket of the handle in the device */
    __u32 generation;        /* agent: +1 each time another qdisc is behind classid; 0: there is none */
    __u32 positions;         /* agent: 1: a FIFO, in which bytes leave in the order in which they came */
    __u64 read_ns;           /* agent: when the next four were read; 0: never */
    __u64 backlog_bytes;     /* agent */
    __u64 backlog_packets;   /* agent */
    __u64 sent_bytes;        /* agent */
    __u64 drained_before_ns; /* agent: all that was enqueued before has left; 0: not known */
    __u64 polled_busy_ns;    /* agent: last reading above the low waterline; 0: never */
    __u64 busy_ns;           /* BPF: last packet that made it exceed the low waterline; 0: never */
};
SPILLWAY_ASSERT(sizeof(struct spillway_leaf) == 80);

#define SPILLWAY_MATCH_PRIORITY 1
#define SPILLWAY_MATCH_PCP 2
#define SPILLWAY_MATCH_DSCP 4

/* Which packets are a queue's, whatever class their priority names: every field that is asked for is one of
 * those given. A packet without a tag has PCP 0; one that is not IP has no DSCP. */
struct spillway_match {
    __u64 dscp;                                /* bit n: DSCP n */
    __u32 priorities[SPILLWAY_PRIORITIES_MAX]; /* skb->priority, as it arrives at egress */
    __u16 flags;                               /* SPILLWAY_MATCH_* asked for; 0: the class decides */
    __u8 priority_count;                       /* of `priorities` */
    __u8 pcp;                                  /* bit n: PCP n */
    __u32 reserved;                            /* 0 */
};
SPILLWAY_ASSERT(sizeof(struct spillway_match) == 48);

/* One monitored queue: where its packets wait normally, and where they wait isolated. */
struct spillway_queue {
    __u32 ifindex;                       /* agent: 0: unused entry */
    __u32 isolation_count;               /* agent: 0: isolated packets stay in this queue */
    char port[SPILLWAY_NAME_MAX];        /* agent */
    struct spillway_waterline waterline; /* agent */
    enum spillway_level level;           /* agent: by its last reading; telemetry only */
    __u32 reserved;                      /* 0 */
    struct spillway_leaf normal;         /* */
    struct spillway_leaf isolation[SPILLWAY_ISOLATION_MAX]; /* */
    __u64 heaviest[2];           /* BPF: see guard.h, by lowest bit of the window */
    __u64 marked_total;          /* BPF: flows that were isolated out of this queue, for whatever reason */
    __u64 restored_total;        /* BPF: those of them that got their priority back */
    __u64 suspect_total;         /* BPF: times that a flow reached half of what the guard asks in a window */
    __u64 would_mark_total;      /* BPF: the same, for flows that only mode observe left unmarked */
    struct spillway_match match; /* agent */
};
SPILLWAY_ASSERT(sizeof(struct spillway_queue) == 552);
SPILLWAY_ASSERT(SPILLWAY_OFFSET(spillway_queue, normal) == 56);

/* The port takes CIPs; otherwise they are counted as not_accepted. */
#define SPILLWAY_PORT_ACCEPT_CIP 1
/* The port is below a bridge, bond or other device: a CIP to any unicast address is for us. */
#define SPILLWAY_PORT_ANY_UNICAST 2

/* CIPs are sent for flows that this port congests. */
#define SPILLWAY_PORT_SEND_CIP 4

/* Isolated packets get rewrite_pcp, rewrite_dscp, if that is lower than what they have (R4a). */
#define SPILLWAY_PORT_REWRITE_PCP 8
#define SPILLWAY_PORT_REWRITE_DSCP 16
/* Isolated packets without a tag get a priority tag with rewrite_pcp. */
#define SPILLWAY_PORT_TAG_UNTAGGED 32
/* Isolated packets of ECN-capable flows get CE (B8). */
#define SPILLWAY_PORT_ECN 64
/* Some queue of the port has a match; some match asks for PCP or DSCP. */
#define SPILLWAY_PORT_MATCH 128
#define SPILLWAY_PORT_MATCH_FIELDS 256
/* What arrives here goes into the VXLAN tunnel `vni`, and what leaves here came out of it (R9). */
#define SPILLWAY_PORT_VNI 512

/* Why a configured port, or a queue of it, is not served; names as in `status --json`. */
enum spillway_waiting {
    SPILLWAY_WAITING_NO = 0,
    SPILLWAY_WAITING_NO_PORT = 1,       /* no such interface */
    SPILLWAY_WAITING_NO_CLASS = 2,      /* a configured class does not exist or is no queue */
    SPILLWAY_WAITING_NOQUEUE = 3,       /* the port has no qdisc in which packets wait */
    SPILLWAY_WAITING_NOT_BELOW = 4,     /* isolate_class is not scheduled below class (R4e) */
    SPILLWAY_WAITING_FOREIGN_XDP = 5,   /* trap: native, and somebody else's XDP program is there */
    SPILLWAY_WAITING_NO_PRIVILEGE = 6,  /* the kernel refused a program */
    SPILLWAY_WAITING_PORT_DOWN = 7,     /* the interface is down */
    SPILLWAY_WAITING_NOT_ETHERNET = 8,  /* the interface carries no Ethernet frames */
    SPILLWAY_WAITING_NO_ROOM = 9,       /* more ports or queues than the maps hold */
    SPILLWAY_WAITING_NOT_ATTACHED = 10, /* the TC programs could not be attached */
    SPILLWAY_WAITING_NO_XDP = 11,       /* trap: native or generic, and the driver refuses */
    SPILLWAY_WAITING_STARTING = 12,     /* the agent is about to serve it */
    SPILLWAY_WAITING_OTHER = 13,        /* another instance of spillway has its programs there */
};

/* Where CIPs are trapped. */
enum spillway_trap {
    SPILLWAY_TRAP_OFF = 0,
    SPILLWAY_TRAP_NATIVE = 1,
    SPILLWAY_TRAP_GENERIC = 2,
    SPILLWAY_TRAP_TC = 3,
};

/* How the TC egress program reads queues; compiled in when it is loaded. */
enum spillway_kernel_read {
    SPILLWAY_READ_NO = 0,         /* the agent publishes them */
    SPILLWAY_READ_BY_POINTER = 1, /* through pointers that two kernel functions make; about 1 ns each */
    SPILLWAY_READ_BY_HELPER = 2,  /* by copies, where the kernel does not have these functions */
};

/* How the TC programs are attached. */
enum spillway_attach {
    SPILLWAY_ATTACH_OFF = 0,
    SPILLWAY_ATTACH_TCX = 1,
    SPILLWAY_ATTACH_CLSACT = 2, /* the kernel has no tcx */
};

/* What works less well than it could; bits of spillway_port.degraded. */
#define SPILLWAY_DEGRADED_POLL_ONLY 1     /* source auto, and the kernel cannot be read from the program */
#define SPILLWAY_DEGRADED_TC_TRAP 2       /* native XDP was wanted or usual, and TC traps instead */
#define SPILLWAY_DEGRADED_GENERIC_XDP 4   /* generic XDP, as asked */
#define SPILLWAY_DEGRADED_DRAIN_UNKNOWN 8 /* an isolation leaf is no FIFO, and nobody polls it */
#define SPILLWAY_DEGRADED_CLSACT 16       /* the TC programs are filters of clsact, for want of tcx */

struct spillway_port {
    __u32 ifindex;                /* agent: 0: free slot, or a port that does not exist */
    char name[SPILLWAY_NAME_MAX]; /* agent */
    __u8 mac[6];                  /* agent */
    __u16 flags;                  /* agent: SPILLWAY_PORT_* */
    __u32 root_major;     /* agent: root qdisc's handle, as in the upper half of skb->priority; 0: none */
    __u32 first_queue;    /* agent: index into `queues` */
    __u32 queue_count;    /* agent */
    __u32 cip_per_second; /* agent: CIPs taken in a second */
    __u32 entries;        /* BPF, set right by the agent's sweep: entries in `flows` */
    __u64 cip_second;     /* BPF: the second counted in cip_count and told_count */
    __u32 cip_count;      /* BPF: CIPs taken */
    __u32 told_count;     /* BPF: CIPs refused of which an event tells */
    enum spillway_waiting waiting; /* agent */
    enum spillway_trap trap;       /* agent */
    enum spillway_attach attach;   /* agent */
    __u32 degraded;                /* agent: SPILLWAY_DEGRADED_* */
    __u8 rewrite_pcp;              /* agent: 0..7 */
    __u8 rewrite_dscp;             /* agent: 0..63 */
    __u16 fallback;                /* agent: the first queue without a match, counted from first_queue;
                                    * queue_count: there is none */
    __u32 vni;                     /* agent: with SPILLWAY_PORT_VNI */
    __u32 unmarked;                /* as `entries`: those of them whose mark is the second one */
    __u32 reserved;                /* 0 */
};
SPILLWAY_ASSERT(sizeof(struct spillway_port) == 96);

/* Where a flow comes from (R3), and the bookkeeping of the CIPs sent there (B1). Key: the flow with port 0;
 * where it enters or leaves a VXLAN tunnel on this node, the 6-tuple, whichever side is meant. */
struct spillway_upstream {
    __u64 wanted_until_ns; /* learn until then from the flow's packets; 0: nobody asks */
    __u64 learned_ns;      /* when the next fields were last learned; 0: never */
    __u64 next_due_ns;     /* no CIP before; 0: none sent yet */
    __u32 port;            /* ifindex the flow's packets arrive on */
    __u32 egress;          /* ifindex the flow leaves through, whose mark asked */
    __u32 sent;            /* CIPs sent to this upstream node for this mark */
    __u8 mac[6];           /* source address of the flow's packets there */
    __u16 vlan_tci;        /* tag they arrived with */
    __u16 vlan_proto;      /* its EtherType; 0: untagged */
    __u16 tunnelled;       /* 1: they arrived inside the tunnel; 0: as they are */
};
SPILLWAY_ASSERT(sizeof(struct spillway_upstream) == 48);

struct spillway_settings {
    __u32 abi;             /* agent: SPILLWAY_ABI */
    __u32 agent_pid;       /* agent; 0 while it starts */
    char version[16];      /* agent */
    __u64 gen;             /* BPF: marks ever inserted */
    __u64 swept;           /* agent */
    __u64 learn_until_ns;  /* BPF: some flow's upstream node is wanted until then; 0: none */
    __u64 stale_ns;        /* agent: a published reading older than this is ignored */
    __u64 stale_agent_ns;  /* agent */
    __u64 idle_ns;         /* agent */
    __u64 clear_ns;        /* agent */
    __u64 life_ns;         /* agent */
    __u64 window_ns;       /* agent: the guard's window, and how long an upstream node is looked for */
    __u64 drain_margin;    /* agent: bytes, see mark.h */
    __u32 guard;           /* agent: 0: off, the bare rule */
    __u32 guard_min_bytes; /* agent */
    __u32 guard_min_ratio; /* agent: 0..SPILLWAY_RATIO_ONE */
    __u32 quota;           /* agent: entries a port may have in `flows` */
    __u32 source;          /* agent: enum spillway_source in use */
    __u32 panic;           /* command: 1: every program lets every packet pass untouched */
    __u32 observe;         /* agent: 1: nothing is marked, isolated or sent, only counted (B11) */
    __u32 table_full;      /* agent: 1: every flow has an entry (R5); as compiled into the programs */
    __u32 unmarked_quota;  /* agent: unmarked entries a port may have */
    __u32 reserved;        /* 0 */
    __u64 started_ns;      /* agent: when it started */
    __u64 heartbeat_ns; /* agent: last turn of its event loop; far from gen, which is read by every packet */
};
SPILLWAY_ASSERT(sizeof(struct spillway_settings) == 160);

enum spillway_source {
    SPILLWAY_SOURCE_KERNEL = 1, /* the TC program reads the qdisc */
    SPILLWAY_SOURCE_POLL = 2,   /* the agent publishes what it reads over netlink */
};

/* What is counted. Port 0 where the port does not matter. */
enum spillway_counter {
    SPILLWAY_CIP_SENT = 1,
    SPILLWAY_CIP_RECEIVED = 2, /* taken from the wire, good or not */
    SPILLWAY_CIP_ACCEPTED = 3, /* marked or refreshed a flow */
    SPILLWAY_REJECTED_TOO_SHORT = 16,
    SPILLWAY_REJECTED_BAD_VERSION = 17,
    SPILLWAY_REJECTED_BAD_HEADER = 18,
    SPILLWAY_REJECTED_TOO_MANY_EXTENSIONS = 19,
    SPILLWAY_REJECTED_NOT_IP = 20, /* what is inside the tunnel */
    SPILLWAY_REJECTED_TOO_MANY_TAGS = 21,
    SPILLWAY_REJECTED_NOT_ACCEPTED = 22,
    SPILLWAY_REJECTED_RATE_LIMITED = 23,
    SPILLWAY_REJECTED_TABLE_FULL = 24,
    SPILLWAY_REJECTED_QUOTA = 25,
    SPILLWAY_REJECTED_BAD_TYPE = 26,
    SPILLWAY_REJECTED_BAD_FAMILY = 27,
    SPILLWAY_REJECTED_BAD_FLAGS = 28,
    SPILLWAY_REJECTED_NESTED_TUNNEL = 29,
    SPILLWAY_LOST_EVENTS = 32, /* the event ring was full */
    SPILLWAY_LOST_TABLE_FULL =
        33,                      /* a heavy flow found no room in `flows`, or its port's quota was used up */
    SPILLWAY_LOST_CIP_RATE = 34, /* a CIP was put off by max_per_second */
    SPILLWAY_LOST_CIP_SEND = 35, /* the kernel refused a CIP */
    SPILLWAY_LOST_NO_UPSTREAM = 36, /* a forwarded flow's upstream node was not found, or there was no room */
    SPILLWAY_LOST_SUSPECTS =
        38,                   /* a packet the guard could not add up: heavier flows hold its flow's slots */
    SPILLWAY_LOST_PARSE = 37, /* an IP packet of a congested queue that could not be read */
    SPILLWAY_LOST_HANDOVER = 40, /* a packet dropped so that its flow can get its priority back, see mark.h */
    SPILLWAY_LOST_ENTRIES = 39,  /* table full: an unmarked flow found no room in `flows` */
};

/* The counter of a reason why a CIP was refused. */
#define SPILLWAY_REJECTED(reason) ((enum spillway_counter)(15 + (reason)))
SPILLWAY_ASSERT(SPILLWAY_REJECTED(SPILLWAY_TOO_SHORT) == SPILLWAY_REJECTED_TOO_SHORT);
SPILLWAY_ASSERT(SPILLWAY_REJECTED(SPILLWAY_NESTED_TUNNEL) == SPILLWAY_REJECTED_NESTED_TUNNEL);

struct spillway_counter_key {
    __u32 port; /* ifindex */
    enum spillway_counter counter;
};
SPILLWAY_ASSERT(sizeof(struct spillway_counter_key) == 8);

enum spillway_event_type {
    SPILLWAY_EVENT_MARKED = 1,       /* our queue marked a flow; bytes holds its headers */
    SPILLWAY_EVENT_LEARNED = 2,      /* an upstream node was found; key.port is 0 */
    SPILLWAY_EVENT_CIP_RECEIVED = 3, /* a CIP passed the trap; key.port is the port it came in by */
    SPILLWAY_EVENT_RELEASED = 4,     /* a flow got its priority back */
    SPILLWAY_EVENT_SUSPECT = 5,      /* a flow reached half of what the guard asks */
    SPILLWAY_EVENT_WOULD_MARK = 6,   /* mode observe: a flow that would have been marked */
    SPILLWAY_EVENT_DRAINING = 7,     /* the last reason of a mark ended */
    SPILLWAY_EVENT_CIP_REJECTED = 8, /* `reason`; key is as far as it could be read */
};

struct spillway_event {
    __u64 time_ns;
    enum spillway_event_type type;
    __u32 length; /* valid bytes in `bytes` */
    struct spillway_flow_key key;
    __u64 amount;      /* MARKED, WOULD_MARK: what waits, in the queue's unit; SUSPECT: bytes in the window;
                        * RELEASED: how long the flow had been silent, in nanoseconds */
    __u32 queue;       /* all but LEARNED, CIP_*: index into `queues` */
    __u8 mac[6];       /* CIP_*: who sent it */
    __u16 lifetime_ms; /* CIP_RECEIVED: 0: our own */
    __u32 cip_type;    /* CIP_RECEIVED: enum spillway_cip_type */
    __u32 reason; /* CIP_REJECTED: enum spillway_reason; RELEASED: enum spillway_origin, the last that held */
    __u32 reserved; /* 0 */
    __u8 bytes[256];
};
SPILLWAY_ASSERT(sizeof(struct spillway_event) == 352);
SPILLWAY_ASSERT(SPILLWAY_OFFSET(spillway_event, bytes) == 96);

/* A change asked of the edit program, in the packet given to BPF_PROG_TEST_RUN. The first bytes lie where
 * an Ethernet header is expected and stay zero. The program's return value is a spillway_edit_result. */
enum spillway_edit_op {
    SPILLWAY_EDIT_MARK_MANUAL = 1,
    SPILLWAY_EDIT_MARK_CIP = 2,
    SPILLWAY_EDIT_UNMARK = 3,      /* take every reason away; the flow drains */
    SPILLWAY_EDIT_STEP = 4,        /* sweep one flow: step its state, release it when drained */
    SPILLWAY_EDIT_LEARN = 5,       /* ask for the upstream node of key (port = egress of the mark) */
    SPILLWAY_EDIT_CIP_SENT = 6,    /* count a CIP, next one not before value */
    SPILLWAY_EDIT_COUNT = 7,       /* add value to counter of key.port */
    SPILLWAY_EDIT_FORGET = 8,      /* delete the upstream entry of key (port ignored) */
    SPILLWAY_EDIT_END_CIP = 9,     /* take reason cip away */
    SPILLWAY_EDIT_MARK_LOCAL = 10, /* as if our own queue had been congested by the flow */
};

enum spillway_edit_result {
    SPILLWAY_EDIT_DONE = 0,
    SPILLWAY_EDIT_NO_ENTRY = 1,
    SPILLWAY_EDIT_TABLE_FULL = 2,
    SPILLWAY_EDIT_QUOTA = 3,
    SPILLWAY_EDIT_BAD = 4,      /* not a command this program knows */
    SPILLWAY_EDIT_RELEASED = 5, /* STEP: the entry is gone */
    SPILLWAY_EDIT_EXISTS = 6,   /* MARK_*: the flow was marked already, the reason was added */
};

struct spillway_edit {
    __u8 ethernet[14]; /* zero */
    __u16 abi;         /* SPILLWAY_ABI */
    __u32 op;          /* enum spillway_edit_op */
    __u32 counter;     /* COUNT: enum spillway_counter */
    struct spillway_flow_key key;
    __u64 value;
};
SPILLWAY_ASSERT(sizeof(struct spillway_edit) == 80);
SPILLWAY_ASSERT(SPILLWAY_OFFSET(spillway_edit, key) == 24);

#endif
