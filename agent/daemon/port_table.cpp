// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/port_table.h"

#include "agent/core/clock.h"
#include "agent/daemon/publish.h"
#include "agent/kernel/filters.h"

#include <fmt/format.h>
#include <fnmatch.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

namespace spillway {
namespace {

constexpr std::uint32_t accept_factor = 4; ///< neighbours on a shared port may send together

void copy_name(char (&to)[SPILLWAY_NAME_MAX], const std::string &name) {
    std::memset(to, 0, sizeof(to));
    name.copy(to, sizeof(to) - 1);
}

/// Bucket of a handle in net_device.qdisc_hash: the kernel's hash_32() to four bits.
std::uint32_t qdisc_bucket(std::uint32_t handle) {
    return (handle * 0x61C88647U) >> 28U;
}

/// Never 0, and another one than before whenever a leaf was found anew.
std::uint32_t new_generation() {
    return static_cast<std::uint32_t>(now_ns() >> 10U) | 1U;
}

spillway_waterline waterline_of(const std::optional<WaterlineConfig> &config) {
    spillway_waterline line{};
    if (!config)
        return line;
    line.set = 1;
    line.low = config->low;
    line.high = config->high;
    line.unit = config->unit == WaterlineUnit::bytes ? SPILLWAY_UNIT_BYTES : SPILLWAY_UNIT_PACKETS;
    line.probability = static_cast<std::uint64_t>(std::llround(
        std::clamp(config->probability, 0.0, 1.0) * static_cast<double>(SPILLWAY_PROBABILITY_ONE)));
    return line;
}

spillway_match match_of(const MatchConfig &config) {
    spillway_match match{};
    if (!config.priority.empty())
        match.flags |= SPILLWAY_MATCH_PRIORITY;
    if (!config.pcp.empty())
        match.flags |= SPILLWAY_MATCH_PCP;
    if (!config.dscp.empty())
        match.flags |= SPILLWAY_MATCH_DSCP;
    for (const std::uint32_t priority : config.priority)
        if (match.priority_count < SPILLWAY_PRIORITIES_MAX)
            match.priorities[match.priority_count++] = priority;
    for (const std::uint8_t pcp : config.pcp)
        match.pcp = static_cast<std::uint8_t>(match.pcp | 1U << pcp);
    for (const std::uint8_t dscp : config.dscp)
        match.dscp |= std::uint64_t{1} << dscp;
    return match;
}

/// The VNI of the tunnel that a port's traffic goes into and comes out of (R9): of the VXLAN device in the
/// port's bridge; for a port of no bridge, of the only one that is routed to. None where several could be
/// meant.
std::optional<std::uint32_t> tunnel_of(std::span<const LinkInfo> links, const LinkInfo &port) {
    std::optional<std::uint32_t> found;
    for (const LinkInfo &link : links) {
        if (!link.vni || link.master != port.master || link.lower == port.ifindex ||
            link.ifindex == port.ifindex)
            continue;
        if (found)
            return std::nullopt;
        found = link.vni;
    }
    return found;
}

Waiting refused(const TcRefusal &refusal) {
    Waiting waiting;
    switch (refusal.reason) {
    case TcReason::no_class:
        waiting.reason = SPILLWAY_WAITING_NO_CLASS;
        break;
    case TcReason::noqueue:
        waiting.reason = SPILLWAY_WAITING_NOQUEUE;
        break;
    case TcReason::not_below:
        waiting.reason = SPILLWAY_WAITING_NOT_BELOW;
        break;
    }
    waiting.text = refusal.text + (refusal.hint.empty() ? "" : "; " + refusal.hint);
    return waiting;
}

Waiting refused(const Error &error) {
    const bool privilege = error.number == EPERM || error.number == EACCES;
    return {privilege ? SPILLWAY_WAITING_NO_PRIVILEGE : SPILLWAY_WAITING_NOT_ATTACHED, error.message()};
}

} // namespace

const PortConfig *PortTable::config_of(int ifindex) const {
    const auto found = served_.find(ifindex);
    return found == served_.end() ? nullptr : &found->second.config;
}

spillway_port *PortTable::port_of(int ifindex) const {
    const auto found = served_.find(ifindex);
    return found == served_.end() ? nullptr : &maps_.ports()[found->second.slot];
}

std::vector<int> PortTable::ifindexes() const {
    std::vector<int> all;
    all.reserve(served_.size());
    for (const auto &[ifindex, served] : served_)
        all.push_back(ifindex);
    return all;
}

bool PortTable::waits_for_others() const {
    return std::any_of(served_.begin(), served_.end(), [](const auto &entry) {
        return entry.second.waiting.reason == SPILLWAY_WAITING_OTHER;
    });
}

Result<> PortTable::reconcile(const Config &config, const Programs &programs, bool poll_only) {
    auto links = netlink_.links();
    if (!links)
        return std::unexpected(links.error());
    std::set<int> wanted;
    for (const LinkInfo &link : *links)
        if (find_port(config, link.name) != nullptr)
            wanted.insert(link.ifindex);
    // First make room: what is gone, and what a former agent left for ports that nobody wants now.
    for (spillway_port &port : maps_.ports().first(SPILLWAY_PORTS_MAX))
        if (port.ifindex != 0 && !wanted.contains(static_cast<int>(port.ifindex)))
            release(static_cast<int>(port.ifindex));
    others_ = OtherInstances::find(paths_);
    links_.clear();
    for (const LinkInfo &link : *links)
        if (const PortConfig *governs = find_port(config, link.name)) {
            const bool upper = link.master != 0 || has_upper(*links, link.ifindex) ||
                               netlink_.takes_other_addresses(link.ifindex).value_or(false);
            if (auto done = serve(*governs, accept_factor * config.cip.max_per_second, link, upper,
                                  tunnel_of(*links, link), programs, poll_only);
                !done)
                return done;
        }
    remove_other_links(paths_, links_);

    std::vector<std::string> absent;
    for (const PortConfig &port : config.ports)
        if (std::none_of(links->begin(), links->end(), [&port](const LinkInfo &link) {
                return ::fnmatch(port.name.c_str(), link.name.c_str(), 0) == 0;
            }))
            absent.push_back(port.name);
    publish_absent(absent);
    return {};
}

void PortTable::publish_absent(const std::vector<std::string> &names) {
    auto slots = maps_.ports().subspan(SPILLWAY_PORTS_MAX);
    std::set<std::string> now;
    for (std::size_t i = 0; i < slots.size(); i++) {
        spillway_port fresh{};
        if (i < names.size()) {
            copy_name(fresh.name, names[i]);
            fresh.waiting = SPILLWAY_WAITING_NO_PORT;
            now.insert(names[i]);
            if (!absent_.contains(names[i]))
                spdlog::warn("{}: waiting: no such port", names[i]);
        }
        slots[i] = fresh;
    }
    absent_ = std::move(now);
}

Result<> PortTable::serve(const PortConfig &config, std::uint32_t cip_per_second, const LinkInfo &link,
                          bool upper, std::optional<std::uint32_t> vni, const Programs &programs,
                          bool poll_only) {
    spillway_port *port = claim_slot(link.ifindex);
    Waiting waiting;
    if (port == nullptr) {
        spdlog::error("{}: not served: more ports than the map holds", link.name);
        return {};
    }
    Served &served = served_[link.ifindex];
    served.slot = static_cast<std::size_t>(port - maps_.ports().data());
    served.config = config;
    if (!served.name.empty() && served.name != link.name)
        rename_links(paths_, served.name, link.name);
    served.name = link.name;

    copy_name(port->name, link.name);
    std::copy(link.mac.begin(), link.mac.end(), port->mac);
    std::uint16_t flags = 0;
    if (config.accept_cip)
        flags |= SPILLWAY_PORT_ACCEPT_CIP;
    if (upper)
        flags |= SPILLWAY_PORT_ANY_UNICAST;
    if (config.send_cip)
        flags |= SPILLWAY_PORT_SEND_CIP;
    if (config.rewrite.pcp)
        flags |= SPILLWAY_PORT_REWRITE_PCP;
    if (config.rewrite.dscp)
        flags |= SPILLWAY_PORT_REWRITE_DSCP;
    if (config.rewrite.tag_untagged)
        flags |= SPILLWAY_PORT_TAG_UNTAGGED;
    if (config.rewrite.ecn)
        flags |= SPILLWAY_PORT_ECN;
    for (const QueueConfig &queue : config.queues) {
        if (!queue.match.empty())
            flags |= SPILLWAY_PORT_MATCH;
        if (!queue.match.pcp.empty() || !queue.match.dscp.empty())
            flags |= SPILLWAY_PORT_MATCH_FIELDS;
    }
    if (vni)
        flags |= SPILLWAY_PORT_VNI;
    const auto fallback = std::ranges::find_if(config.queues, &MatchConfig::empty, &QueueConfig::match);
    publish(port->fallback, static_cast<std::uint16_t>(fallback - config.queues.begin()));
    publish(port->vni, vni.value_or(0));
    publish(port->rewrite_pcp, config.rewrite.pcp.value_or(0));
    publish(port->rewrite_dscp, config.rewrite.dscp.value_or(0));
    publish(port->flags, flags);
    publish(port->cip_per_second, cip_per_second);

    if (!link.ethernet()) {
        waiting = {SPILLWAY_WAITING_NOT_ETHERNET, "it carries no Ethernet frames"};
        publish(port->queue_count, 0U);
    } else {
        if (!claim_queues(*port, static_cast<std::uint32_t>(config.queues.size()))) {
            waiting = {SPILLWAY_WAITING_NO_ROOM, "more queues than the map holds"};
        } else if (!config.queues.empty()) {
            const auto tree = netlink_.tree(link.ifindex);
            if (!tree)
                return std::unexpected(tree.error());
            waiting = fill_queues(*port, config, *tree);
        }
        if (const auto other = others_.on(netlink_, link.ifindex)) {
            detach(*port);
            waiting = {SPILLWAY_WAITING_OTHER,
                       other_instance_text(*other) + "; " + other_instance_hint(*other)};
        } else if (const Waiting attached = attach(*port, config, link, programs);
                   waiting.reason == SPILLWAY_WAITING_NO) {
            waiting = attached;
        }
        if (waiting.reason == SPILLWAY_WAITING_NO && !link.up)
            waiting = {SPILLWAY_WAITING_PORT_DOWN, "it is down"};
    }
    if (poll_only && !config.queues.empty())
        publish(port->degraded, port->degraded | SPILLWAY_DEGRADED_POLL_ONLY);
    for (std::size_t at = 0; (at = waiting.text.find("PORT", at)) != std::string::npos;
         at += link.name.size())
        waiting.text.replace(at, 4, link.name);
    publish(port->waiting, waiting.reason);
    if (waiting.reason != served.waiting.reason || waiting.text != served.waiting.text) {
        if (waiting.reason != SPILLWAY_WAITING_NO)
            spdlog::warn("{}: waiting: {}", link.name, waiting.text);
        else
            spdlog::info("{}: served", link.name);
        served.waiting = waiting;
    }
    return {};
}

spillway_port *PortTable::claim_slot(int ifindex) {
    auto ports = maps_.ports();
    const auto wanted = static_cast<std::uint32_t>(ifindex);
    spillway_port *free = nullptr;
    for (std::uint32_t i = 0; i < SPILLWAY_PORT_PROBES; i++) {
        spillway_port &port = ports[(wanted + i) & (SPILLWAY_PORTS_MAX - 1)];
        if (port.ifindex == wanted)
            return &port;
        if (port.ifindex == 0 && free == nullptr)
            free = &port;
    }
    if (free != nullptr) {
        *free = {};
        free->waiting = SPILLWAY_WAITING_STARTING;
        publish(free->ifindex, wanted);
    }
    return free;
}

/// A run of entries of its own for the port's queues. Entries that a former agent made are kept, with what
/// the kernel counted in them.
bool PortTable::claim_queues(spillway_port &port, std::uint32_t count) {
    auto queues = maps_.queues();
    if (port.queue_count == count &&
        std::all_of(queues.begin() + port.first_queue, queues.begin() + port.first_queue + count,
                    [&port](const spillway_queue &queue) { return queue.ifindex == port.ifindex; }))
        return true;
    publish(port.queue_count, 0U);
    for (spillway_queue &queue : queues)
        if (queue.ifindex == port.ifindex)
            publish(queue.ifindex, 0U);
    std::uint32_t run = 0;
    for (std::uint32_t i = 0; i < queues.size() && run < count; i++) {
        run = queues[i].ifindex == 0 ? run + 1 : 0;
        if (run == count)
            port.first_queue = i + 1 - count;
    }
    if (run < count)
        return false;
    for (spillway_queue &queue : queues.subspan(port.first_queue, count)) {
        queue = {};
        std::memcpy(queue.port, port.name, sizeof(queue.port));
        publish(queue.ifindex, port.ifindex);
    }
    publish(port.queue_count, count);
    return true;
}

Waiting PortTable::fill_queues(spillway_port &port, const PortConfig &config, const TcTree &tree) {
    Waiting first;
    const Qdisc *root = find_root(tree);
    publish(port.root_major, root != nullptr ? tc_major(root->handle) : 0U);
    std::uint32_t degraded = port.degraded & ~std::uint32_t{SPILLWAY_DEGRADED_DRAIN_UNKNOWN};
    for (std::size_t i = 0; i < config.queues.size(); i++) {
        spillway_queue &queue = maps_.queues()[port.first_queue + i];
        std::memcpy(queue.port, port.name, sizeof(queue.port));
        Waiting waiting = fill_queue(queue, config.queues[i], tree);
        if (waiting.reason != SPILLWAY_WAITING_NO && first.reason == SPILLWAY_WAITING_NO)
            first = waiting;
        for (std::uint32_t n = 0; n < queue.isolation_count; n++)
            if (queue.isolation[n].positions == 0)
                degraded |= SPILLWAY_DEGRADED_DRAIN_UNKNOWN;
    }
    publish(port.degraded, degraded);
    return first;
}

Waiting PortTable::fill_queue(spillway_queue &queue, const QueueConfig &config, const TcTree &tree) {
    const spillway_waterline line = waterline_of(config.waterline);
    if (std::memcmp(&line, &queue.waterline, sizeof(line)) != 0) {
        publish(queue.waterline.set, 0U); // never judged by half of the old and half of the new
        queue.waterline.probability = line.probability;
        queue.waterline.low = line.low;
        queue.waterline.high = line.high;
        queue.waterline.unit = line.unit;
        publish(queue.waterline.set, line.set);
    }
    if (const spillway_match match = match_of(config.match);
        std::memcmp(&match, &queue.match, sizeof(match)) != 0) {
        publish(queue.match.flags, std::uint16_t{0});
        spillway_match quiet = match;
        quiet.flags = 0;
        queue.match = quiet;
        publish(queue.match.flags, match.flags);
    }
    Waiting waiting;
    const auto normal = resolve_leaf(tree, config.queue_class.handle);
    if (!normal)
        waiting = refused(normal.error());
    else if (const auto readable = check_readable(tree, *normal); config.waterline && !readable)
        waiting = refused(readable.error());
    std::vector<Leaf> isolation;
    for (const ClassId id : config.isolate_class) {
        if (waiting.reason != SPILLWAY_WAITING_NO)
            break;
        const auto leaf = resolve_leaf(tree, id.handle);
        const auto below = check_below(tree, id.handle, config.queue_class.handle);
        if (!leaf)
            waiting = refused(leaf.error());
        else if (!below)
            waiting = refused(below.error());
        else
            isolation.push_back(*leaf);
    }
    const bool served = waiting.reason == SPILLWAY_WAITING_NO;
    set_leaf(queue.normal, config.queue_class.handle, served ? &*normal : nullptr);
    if (!served || queue.isolation_count > isolation.size())
        publish(queue.isolation_count, 0U);
    for (std::size_t i = 0; i < SPILLWAY_ISOLATION_MAX; i++)
        if (i < config.isolate_class.size())
            set_leaf(queue.isolation[i], config.isolate_class[i].handle, served ? &isolation[i] : nullptr);
        else
            set_leaf(queue.isolation[i], 0, nullptr);
    publish(queue.isolation_count, served ? static_cast<std::uint32_t>(isolation.size()) : 0U);
    if (!served)
        publish(queue.level, SPILLWAY_LEVEL_UNKNOWN);
    return waiting;
}

void PortTable::set_leaf(spillway_leaf &leaf, std::uint32_t classid, const Leaf *found) {
    const bool same = found != nullptr && leaf.generation != 0 && leaf.classid == classid &&
                      leaf.handle == found->handle && leaf.parent == found->parent &&
                      (leaf.positions != 0) == fifo_like(found->kind);
    if (same || (found == nullptr && leaf.generation == 0 && leaf.classid == classid))
        return;
    publish(leaf.generation, 0U);
    publish(leaf.read_ns, std::uint64_t{0});
    const std::uint64_t now = now_ns();
    trackers_[&leaf].replaced(now);
    publish(leaf.classid, classid);
    publish(leaf.drained_before_ns, now);
    if (found == nullptr)
        return;
    leaf.handle = found->handle;
    leaf.parent = found->parent;
    leaf.bucket = qdisc_bucket(found->handle);
    leaf.positions = fifo_like(found->kind) ? 1 : 0;
    leaf.busy_ns = 0;
    leaf.polled_busy_ns = 0;
    publish(leaf.generation, new_generation());
}

Waiting PortTable::attach(spillway_port &port, const PortConfig &config, const LinkInfo &link,
                          const Programs &programs) {
    const auto hang = [&](Hook hook, int fd) -> Result<> {
        if (!programs.tcx() && (hook == Hook::egress || hook == Hook::ingress))
            return ensure_filter(netlink_, paths_.instance, link.name, link.ifindex, hook, fd);
        auto done = ensure_link(paths_, link.name, link.ifindex, hook, fd);
        if (done)
            links_.insert(link_name(link.name, hook));
        return done;
    };
    for (const auto &[hook, fd] :
         {std::pair{Hook::egress, programs.isolate_fd()}, std::pair{Hook::ingress, programs.ingress_fd()}})
        if (auto done = hang(hook, fd); !done) {
            detach(port);
            return refused(done.error());
        }
    publish(port.attach, programs.tcx() ? SPILLWAY_ATTACH_TCX : SPILLWAY_ATTACH_CLSACT);

    // The TC ingress program traps whatever XDP has not; XDP only saves the way there.
    spillway_trap trap = SPILLWAY_TRAP_TC;
    std::uint32_t degraded = port.degraded & SPILLWAY_DEGRADED_DRAIN_UNKNOWN;
    if (!programs.tcx())
        degraded |= SPILLWAY_DEGRADED_CLSACT;
    Waiting waiting;
    const bool veth = link.kind == "veth"; // native XDP there turns off the peer's TSO
    if (config.trap == TrapMode::generic || config.trap == TrapMode::native ||
        (config.trap == TrapMode::automatic && !veth)) {
        const bool generic = config.trap == TrapMode::generic;
        remove_link(paths_, link.name, generic ? Hook::xdp_native : Hook::xdp_generic); // a port takes one
        auto done = hang(generic ? Hook::xdp_generic : Hook::xdp_native, programs.trap_fd());
        if (done) {
            trap = generic ? SPILLWAY_TRAP_GENERIC : SPILLWAY_TRAP_NATIVE;
            degraded |= generic ? SPILLWAY_DEGRADED_GENERIC_XDP : 0U;
        } else if (config.trap == TrapMode::automatic) {
            degraded |= SPILLWAY_DEGRADED_TC_TRAP;
        } else if (done.error().number == EBUSY || done.error().number == EEXIST) {
            waiting = {SPILLWAY_WAITING_FOREIGN_XDP,
                       "somebody else's XDP program is there; use trap: tc, or remove that program"};
        } else {
            waiting = {SPILLWAY_WAITING_NO_XDP, done.error().message() + "; use trap: tc"};
        }
    }
    publish(port.degraded, degraded);
    publish(port.trap, trap);
    return waiting;
}

/// Takes the programs off the port. Links go where nobody claims them any more, see remove_other_links().
void PortTable::detach(spillway_port &port) {
    if (port.attach != SPILLWAY_ATTACH_TCX) // or off: one of two filters may be there
        remove_filters(netlink_, paths_.instance, static_cast<int>(port.ifindex));
    publish(port.attach, SPILLWAY_ATTACH_OFF);
    publish(port.trap, SPILLWAY_TRAP_OFF);
}

void PortTable::release_slot(spillway_port &port) {
    publish(port.queue_count, 0U);
    for (spillway_queue &queue : maps_.queues())
        if (queue.ifindex == port.ifindex)
            publish(queue.ifindex, 0U);
    publish(port.ifindex, 0U);
}

void PortTable::release(int ifindex) {
    for (spillway_port &port : maps_.ports().first(SPILLWAY_PORTS_MAX))
        if (port.ifindex == static_cast<std::uint32_t>(ifindex)) {
            detach(port);
            release_slot(port);
        }
    if (const auto found = served_.find(ifindex); found != served_.end()) {
        spdlog::info("{}: gone", found->second.name);
        served_.erase(found);
    }
}

void PortTable::detach_all() {
    remove_other_links(paths_, {});
    for (spillway_port &port : maps_.ports().first(SPILLWAY_PORTS_MAX))
        detach(port);
}

void PortTable::publish_reading(const QueueReading &reading, std::uint64_t time_ns, std::uint64_t margin) {
    const spillway_port *port = port_of(reading.ifindex);
    if (port == nullptr)
        return;
    for (spillway_queue &queue : maps_.queues().subspan(port->first_queue, port->queue_count)) {
        const auto matches = [&reading](const spillway_leaf &leaf) {
            if (leaf.generation == 0)
                return false;
            if (leaf.classid == SPILLWAY_CLASS_ROOT)
                return reading.parent == tc_root;
            return leaf.handle == reading.handle && leaf.parent == reading.parent;
        };
        if (matches(queue.normal)) {
            read_leaf(queue, queue.normal, reading, time_ns, margin);
            const std::uint64_t amount = queue.waterline.unit == SPILLWAY_UNIT_PACKETS
                                             ? reading.counters.backlog_packets
                                             : reading.counters.backlog_bytes;
            publish(queue.level, spillway_level_of(&queue.waterline, amount));
        }
        for (std::uint32_t i = 0; i < queue.isolation_count; i++)
            if (matches(queue.isolation[i]))
                read_leaf(queue, queue.isolation[i], reading, time_ns, margin);
    }
}

void PortTable::read_leaf(spillway_queue &queue, spillway_leaf &leaf, const QueueReading &reading,
                          std::uint64_t time_ns, std::uint64_t margin) {
    const TcCounters &counters = reading.counters;
    publish(leaf.backlog_bytes, std::uint64_t{counters.backlog_bytes});
    publish(leaf.backlog_packets, std::uint64_t{counters.backlog_packets});
    publish(leaf.sent_bytes, counters.sent_bytes);
    publish(leaf.read_ns, time_ns);
    publish(leaf.drained_before_ns, trackers_[&leaf].read(time_ns, counters.backlog_bytes,
                                                          counters.sent_bytes, margin, leaf.positions != 0));
    const std::uint64_t amount =
        queue.waterline.unit == SPILLWAY_UNIT_PACKETS ? counters.backlog_packets : counters.backlog_bytes;
    if (queue.waterline.set != 0 && amount > queue.waterline.low)
        publish(leaf.polled_busy_ns, time_ns);
}

} // namespace spillway
