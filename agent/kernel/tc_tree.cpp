// SPDX-License-Identifier: Apache-2.0
#include "agent/kernel/tc_tree.h"

#include <algorithm>
#include <fmt/format.h>
#include <linux/pkt_sched.h>

namespace spillway {
namespace {

constexpr const char *one_tree_hint = "use one tree for all of them: spillway setup PORT --rate RATE";

const Qdisc *find_qdisc(const TcTree &tree, TcHandle handle) {
    const auto found = std::ranges::find(tree.qdiscs, handle, &Qdisc::handle);
    return found == tree.qdiscs.end() ? nullptr : &*found;
}

const Qdisc *find_child(const TcTree &tree, TcHandle classid) {
    const auto found = std::ranges::find(tree.qdiscs, classid, &Qdisc::parent);
    return found == tree.qdiscs.end() ? nullptr : &*found;
}

const TcClass *find_class(const TcTree &tree, TcHandle classid) {
    const auto found = std::ranges::find(tree.classes, classid, &TcClass::handle);
    return found == tree.classes.end() ? nullptr : &*found;
}

bool is_inner(const TcTree &tree, TcHandle classid) {
    return std::ranges::find(tree.classes, classid, &TcClass::parent) != tree.classes.end();
}

std::unexpected<TcRefusal> refuse(TcReason reason, std::string text, std::string hint = {}) {
    return std::unexpected(TcRefusal{reason, std::move(text), std::move(hint)});
}

std::expected<Leaf, TcRefusal> resolve_root(const TcTree &tree) {
    const Qdisc *root = find_root(tree);
    if (root == nullptr)
        return refuse(TcReason::no_class, "the port has no qdisc yet", "set the port up");
    if (root->kind == "noqueue")
        return refuse(
            TcReason::noqueue, "the port's qdisc is noqueue: no packet ever waits in it",
            "make a queue first: spillway setup PORT --rate RATE; of a bond or bridge watch its members");
    if (root->kind == "mq" || root->kind == "mqprio")
        return refuse(TcReason::no_class,
                      fmt::format("the root qdisc is {}: packets wait in the queues below it", root->kind),
                      one_tree_hint);
    return Leaf{tc_root, root->handle, tc_root, root->kind};
}

/// The classes that hold `classid`, itself first, one for each qdisc on the way to the root.
std::vector<const TcClass *> holders(const TcTree &tree, TcHandle classid) {
    std::vector<const TcClass *> chain;
    const TcClass *holder = find_class(tree, classid);
    while (holder != nullptr && chain.size() < tree.classes.size()) {
        chain.push_back(holder);
        // Major 0: a default mq at the root. Default children elsewhere bear that handle too.
        const TcHandle major = tc_major(holder->handle);
        const Qdisc *qdisc = major == 0 ? nullptr : find_qdisc(tree, major);
        holder = qdisc == nullptr ? nullptr : find_class(tree, qdisc->parent);
    }
    return chain;
}

/// Kinds that give each transmit queue of the device a class of its own, numbered from 1.
bool spreads_over_transmit_queues(std::string_view kind) {
    return kind == "mq" || kind == "mqprio" || kind == "multiq" || kind == "taprio";
}

/// Refuses what holds only those packets that the device's choice of a transmit queue happens to send there.
std::expected<void, TcRefusal> check_one_transmit_queue(const TcTree &tree, TcHandle classid) {
    constexpr uint32_t first_traffic_class = TC_H_MIN_PRIORITY; // mqprio has classes of these, too
    for (const TcClass *holder : holders(tree, classid)) {
        const auto queues = std::ranges::count_if(tree.classes, [holder](const TcClass &one) {
            return one.kind == holder->kind && tc_major(one.handle) == tc_major(holder->handle) &&
                   tc_minor(one.handle) < first_traffic_class;
        });
        if (spreads_over_transmit_queues(holder->kind) && queues > 1)
            return refuse(TcReason::no_class,
                          fmt::format("{} has {} transmit queues with a queue each: which of them a packet "
                                      "takes is not known when it is judged",
                                      holder->kind, queues),
                          one_tree_hint);
    }
    return {};
}

/// Both in one qdisc, neither the same.
std::expected<void, TcRefusal> check_below_in_qdisc(const TcTree &tree, const TcClass &isolate,
                                                    const TcClass &queue) {
    const auto names = [&] {
        return fmt::format("class {} is not served after {}", tc_name(isolate.handle), tc_name(queue.handle));
    };
    if (queue.kind == "htb" && isolate.htb && queue.htb) {
        for (const TcClass *one : {&isolate, &queue})
            if (is_inner(tree, one->handle))
                return refuse(TcReason::not_below,
                              fmt::format("{}: {} is an inner class, which HTB does not rank", names(),
                                          tc_name(one->handle)),
                              "name a class without children");
        if (isolate.htb->prio > queue.htb->prio)
            return {};
        return refuse(
            TcReason::not_below,
            fmt::format("{}: its prio is {}, not above {}", names(), isolate.htb->prio, queue.htb->prio),
            "give the isolation class a larger prio number");
    }
    if (queue.kind == "prio" || queue.kind == "ets") {
        if (tc_minor(isolate.handle) > tc_minor(queue.handle))
            return {};
        return refuse(TcReason::not_below, fmt::format("{}: its band comes earlier", names()),
                      "name a later band");
    }
    return refuse(TcReason::not_below, fmt::format("{}: {} does not rank its classes", names(), queue.kind),
                  "use htb, prio or ets: spillway setup PORT --rate RATE");
}

} // namespace

std::string tc_name(TcHandle handle) {
    if (handle == tc_root)
        return "root";
    if (tc_minor(handle) == 0)
        return fmt::format("{:x}:", handle >> 16U);
    return fmt::format("{:x}:{:x}", handle >> 16U, tc_minor(handle));
}

std::string_view to_string(TcReason reason) {
    switch (reason) {
    case TcReason::no_class:
        return "no_class";
    case TcReason::noqueue:
        return "noqueue";
    case TcReason::not_below:
        return "not_below";
    }
    return "unknown";
}

const Qdisc *find_root(const TcTree &tree) {
    return find_child(tree, tc_root);
}

std::expected<Leaf, TcRefusal> resolve_leaf(const TcTree &tree, TcHandle classid) {
    if (classid == tc_root)
        return resolve_root(tree);
    const TcClass *found = find_class(tree, classid);
    if (found == nullptr) {
        const Qdisc *root = find_root(tree);
        if (root != nullptr && root->kind == "noqueue")
            return refuse(
                TcReason::noqueue,
                fmt::format("there is no class {}: the port's qdisc is noqueue", tc_name(classid)),
                "make the classes first: spillway setup PORT --rate RATE; of a bond or bridge watch "
                "its members");
        return refuse(TcReason::no_class, fmt::format("there is no class {}", tc_name(classid)),
                      "tc class show dev PORT lists the classes; spillway setup PORT --rate RATE makes them");
    }
    if (is_inner(tree, classid))
        return refuse(
            TcReason::no_class,
            fmt::format("class {} is an inner class: packets wait in its children", tc_name(classid)),
            "name a class without children");
    if (auto one = check_one_transmit_queue(tree, classid); !one)
        return std::unexpected(std::move(one.error()));
    // By parent, not by handle: a default child has handle 0 like every other default child.
    const Qdisc *leaf = find_child(tree, classid);
    if (leaf == nullptr)
        return refuse(TcReason::no_class, fmt::format("class {} has no qdisc inside", tc_name(classid)));
    return Leaf{classid, leaf->handle, classid, leaf->kind};
}

std::expected<void, TcRefusal> check_below(const TcTree &tree, TcHandle isolate, TcHandle queue) {
    if (isolate == tc_root || queue == tc_root)
        return refuse(TcReason::not_below, "the root qdisc holds all classes: none is served after it",
                      "name the class of the queue");
    for (const TcHandle classid : {isolate, queue})
        if (find_class(tree, classid) == nullptr)
            return refuse(TcReason::no_class, fmt::format("there is no class {}", tc_name(classid)),
                          "tc class show dev PORT lists the classes");

    const auto ours = holders(tree, isolate);
    const auto theirs = holders(tree, queue);
    for (const TcClass *one : ours) {
        const auto other = std::ranges::find_if(
            theirs, [one](const TcClass *c) { return tc_major(c->handle) == tc_major(one->handle); });
        if (other == theirs.end())
            continue;
        if (*other == one)
            return refuse(TcReason::not_below,
                          isolate == queue
                              ? fmt::format("class {} cannot be its own isolation class", tc_name(queue))
                              : fmt::format("of classes {} and {} one lies inside the other",
                                            tc_name(isolate), tc_name(queue)),
                          "name a class beside the queue's");
        return check_below_in_qdisc(tree, *one, **other);
    }
    return refuse(
        TcReason::not_below,
        fmt::format("classes {} and {} share no qdisc that ranks them", tc_name(isolate), tc_name(queue)),
        "name two classes of one qdisc");
}

std::expected<void, TcRefusal> check_readable(const TcTree &tree, const Leaf &leaf) {
    const TcClass *holder = leaf.classid == tc_root ? nullptr : find_class(tree, leaf.classid);
    const bool lockless = holder == nullptr || spreads_over_transmit_queues(holder->kind);
    if (leaf.kind == "pfifo_fast" && lockless)
        return refuse(
            TcReason::no_class,
            "pfifo_fast counts by processor what waits in it, so that no packet can be judged by it",
            "use pfifo: tc qdisc replace dev PORT root pfifo; or a tree with an isolation class: "
            "spillway setup PORT --rate RATE");
    return {};
}

bool fifo_like(std::string_view kind) {
    return kind == "pfifo" || kind == "bfifo" || kind == "pfifo_head_drop" || kind == "tbf";
}

} // namespace spillway
