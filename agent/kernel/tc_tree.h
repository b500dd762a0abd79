// SPDX-License-Identifier: Apache-2.0
/// The qdiscs and classes of one port as a value, and what can be said about them without asking the kernel:
/// in which qdisc a class's packets wait, and whether one class is served after another ('below', R4e).
#pragma once

#include <array>
#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

/// A qdisc handle or class id as the kernel writes it: major in the high half, minor in the low half.
using TcHandle = uint32_t;

inline constexpr TcHandle tc_root = 0xFFFFFFFFU; ///< parent of a port's root qdisc and of HTB's top classes

constexpr TcHandle tc_major(TcHandle handle) {
    return handle & 0xFFFF0000U;
}
constexpr uint32_t tc_minor(TcHandle handle) {
    return handle & 0x0000FFFFU;
}
constexpr TcHandle tc_handle(uint32_t major, uint32_t minor) {
    return major << 16U | (minor & 0xFFFFU);
}

/// "1:10", "1:" for a qdisc, "root"; hexadecimal digits, as tc prints them.
[[nodiscard]] std::string tc_name(TcHandle handle);

/// Counters of a qdisc or class at one moment. `sent` counts what left it; it starts anew with a new qdisc.
struct TcCounters {
    uint64_t sent_bytes = 0;
    uint64_t sent_packets = 0;    ///< a GSO packet counts as its segments
    uint32_t backlog_bytes = 0;   ///< waiting now
    uint32_t backlog_packets = 0; ///< waiting now; a GSO packet counts once
    uint32_t drops = 0;
};

/// How prio and ets serve their bands, the first one first.
struct Bands {
    uint32_t count = 0;
    uint32_t strict = 0;               ///< ets: bands served before all others; prio: all are
    std::vector<uint32_t> quanta{};    ///< ets: bytes in a turn of each band that is not strict
    std::array<uint8_t, 16> priomap{}; ///< band, from 0, of packets whose priority names no class

    bool operator==(const Bands &) const = default;
};

struct Qdisc {
    std::string kind{};  ///< "htb", "pfifo", …
    TcHandle handle = 0; ///< 0 for a default qdisc and for HTB's default child
    TcHandle parent = 0; ///< tc_root, a class id, or 0xFFFFFFF1 for clsact and ingress
    TcCounters counters{};
    std::optional<uint32_t> htb_default{}; ///< HTB: minor number of the class for unclassified packets
    std::optional<uint32_t> fifo_limit{};  ///< pfifo, bfifo, pfifo_head_drop: packets or bytes
    std::optional<Bands> bands{};          ///< prio, ets
};

/// What HTB says about a class. Rates in bit/s.
struct HtbClass {
    uint32_t prio = 0; ///< 0–7; a larger number is served later
    uint64_t rate = 0;
    uint64_t ceil = 0;
    uint32_t quantum = 0; ///< bytes

    bool operator==(const HtbClass &) const = default;
};

struct TcClass {
    std::string kind{};    ///< of the qdisc that the class belongs to
    TcHandle handle = 0;   ///< the class id
    TcHandle parent = 0;   ///< another class, the qdisc's own handle, or tc_root (HTB's top classes)
    TcHandle leaf = 0;     ///< handle of the qdisc inside; 0 when none, or a default child
    TcCounters counters{}; ///< HTB: backlog is the leaf's own; sent goes on when the leaf is replaced
    std::optional<HtbClass> htb{};
};

/// All qdiscs (ingress side included) and classes of one port.
struct TcTree {
    int ifindex = 0;
    std::vector<Qdisc> qdiscs;
    std::vector<TcClass> classes;
};

/// The qdisc in which the packets of a queue wait. `parent` alone names it where `handle` is 0.
struct Leaf {
    TcHandle classid = 0; ///< the class asked for, or tc_root
    TcHandle handle = 0;
    TcHandle parent = 0;
    std::string kind{};
};

/// Why a queue cannot be served as things stand. to_string() gives the `waiting` reason of `status`.
enum class TcReason { no_class, noqueue, not_below };
[[nodiscard]] std::string_view to_string(TcReason reason);

struct TcRefusal {
    TcReason reason = TcReason::no_class;
    std::string text{}; ///< one sentence for the user
    std::string hint{}; ///< the remedy; may be empty
};

/// The root qdisc on the egress side; null while the port was never up.
[[nodiscard]] const Qdisc *find_root(const TcTree &tree);

/// The leaf of class `classid`, or the root qdisc for tc_root.
/// Refused: no such class or an inner class (no_class); noqueue; as root also mq and mqprio, whose own
/// backlog the kernel only adds up for dumps (no_class); a class below mq, mqprio, multiq or taprio where the
/// port has several transmit queues (no_class). Every other root has a backlog of its own, classful or not.
[[nodiscard]] std::expected<Leaf, TcRefusal> resolve_leaf(const TcTree &tree, TcHandle classid);

/// Success when each packet can be judged by what waits in `leaf`. Refused with no_class where the kernel
/// counts that by processor: pfifo_fast as the root, or as a transmit queue's own.
[[nodiscard]] std::expected<void, TcRefusal> check_readable(const TcTree &tree, const Leaf &leaf);

/// Success when packets in `isolate` are served after packets in `queue` (design §9, R4e).
/// The two are compared in the first qdisc that holds both in different classes. HTB: by the prio of the leaf
/// classes (HTB never looks at the prio of an inner class); prio and ets: by band. Equal is not below.
/// Refused with no_class when either is absent, else with not_below.
[[nodiscard]] std::expected<void, TcRefusal> check_below(const TcTree &tree, TcHandle isolate,
                                                         TcHandle queue);

/// True when packets leave a qdisc of this kind in the order in which they came, so that drain positions
/// hold.
[[nodiscard]] bool fifo_like(std::string_view kind);

} // namespace spillway
