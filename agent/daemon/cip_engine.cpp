// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/cip_engine.h"

#include "agent/core/clock.h"
#include "agent/core/flow_text.h"
#include "agent/daemon/publish.h"

#include <bpf/bpf.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>

namespace spillway {
namespace {

MacAddress mac_of(const spillway_upstream &node) {
    MacAddress mac{};
    std::copy(std::begin(node.mac), std::end(node.mac), mac.begin());
    return mac;
}

} // namespace

bool CipEngine::KeyLess::operator()(const spillway_flow_key &a, const spillway_flow_key &b) const {
    return std::memcmp(&a, &b, sizeof(a)) < 0; // no padding: abi.h
}

spillway_flow_key CipEngine::node_key(const spillway_flow_key &key) const {
    spillway_flow_key made = key;
    const spillway_port *port = key.port != 0 ? ports_.port_of(static_cast<int>(key.port)) : nullptr;
    made.port = 0;
    if (port != nullptr && (port->flags & SPILLWAY_PORT_VNI) != 0 && (key.flags & SPILLWAY_KEY_VNI) == 0) {
        made.vni = port->vni;
        made.flags |= SPILLWAY_KEY_VNI;
    }
    return made;
}

void CipEngine::configure(const Config &config, std::uint64_t window_ns) {
    const CipConfig &cip = config.cip;
    const FlowsConfig &flows = config.flows;
    config_ = cip;
    vxlan_port_ = config.tunnels.vxlan_ports.empty() ? std::uint16_t{SPILLWAY_VXLAN_PORT}
                                                     : config.tunnels.vxlan_ports.front();
    limits_ = {.refresh_ns = ms_to_ns(cip.refresh_ms),
               .life_ns = ms_to_ns(flows.max_flow_life_ms),
               .max_per_flow = cip.max_per_flow,
               .max_per_second = cip.max_per_second};
    window_ns_ = window_ns;
}

std::optional<spillway_upstream> CipEngine::node_of(const spillway_flow_key &any_port) const {
    spillway_upstream node{};
    if (bpf_map_lookup_elem(maps_.upstream_fd(), &any_port, &node) != 0)
        return std::nullopt;
    return node;
}

void CipEngine::count(std::uint32_t port, spillway_counter counter) {
    spillway_edit edit{};
    edit.op = SPILLWAY_EDIT_COUNT;
    edit.counter = counter;
    edit.key.port = port;
    edit.value = 1;
    if (auto done = maps_.edit(edit); !done)
        spdlog::debug("{}", done.error().message());
}

void CipEngine::ask(const spillway_flow_key &key, bool learn) {
    const std::uint64_t now = now_ns();
    const spillway_flow_key any_port = node_key(key);
    Pending &pending = pending_[any_port];
    pending.restore = false;
    if (learn) {
        spillway_edit edit{};
        edit.op = SPILLWAY_EDIT_LEARN;
        edit.key = key;
        if (auto done = maps_.edit(edit); !done)
            spdlog::warn("{}", done.error().message());
    }
    pending.give_up_ns = now + window_ns_;
}

void CipEngine::marked(const spillway_flow_key &key, std::span<const std::uint8_t> headers) {
    const spillway_port *port = ports_.port_of(static_cast<int>(key.port));
    if (port == nullptr || (port->flags & SPILLWAY_PORT_SEND_CIP) == 0)
        return;
    const spillway_flow_key any_port = node_key(key);
    if (!node_of(any_port)) // the program asks for the upstream node of every flow that comes from outside
        return;
    ask(key, false);
    Pending &pending = pending_[any_port];
    pending.own = true;
    pending.headers.assign(headers.begin(), headers.end());
    pending.tunnelled = (key.flags & SPILLWAY_KEY_VNI) != 0;
    turn();
}

void CipEngine::learned(const spillway_flow_key &key) {
    const auto found = pending_.find(key);
    if (found != pending_.end() && try_send(found->first, found->second, now_ns()))
        pending_.erase(found);
}

void CipEngine::accepted(const spillway_flow_key &key, const MacAddress &sender) {
    const spillway_port *port = ports_.port_of(static_cast<int>(key.port));
    if (port == nullptr || (port->flags & SPILLWAY_PORT_SEND_CIP) == 0)
        return;
    spillway_flow flow{};
    if (bpf_map_lookup_elem(maps_.flows_fd(), &key, &flow) == 0 && flow.packets != 0 && flow.ingress == 0 &&
        (key.flags & SPILLWAY_KEY_VNI) == 0)
        return; // made on this host: nobody is further upstream. What goes into a tunnel always seems to be.
    told_by_[node_key(key)] = {key.port, sender};
    ask(key, true);
}

void CipEngine::released(const spillway_flow_key &key) {
    const spillway_port *port = ports_.port_of(static_cast<int>(key.port));
    if (config_.form != CipForm::descriptor || port == nullptr || (port->flags & SPILLWAY_PORT_SEND_CIP) == 0)
        return;
    const spillway_flow_key any_port = node_key(key);
    const auto node = node_of(any_port);
    if (!node || node->sent == 0)
        return;
    Pending &pending = pending_[any_port];
    pending = {};
    pending.restore = true;
    pending.give_up_ns = now_ns() + window_ns_;
    turn();
}

std::uint32_t CipEngine::write(const spillway_flow_key &any_port, const spillway_upstream &node, bool restore,
                               std::uint8_t *payload) {
    spillway_flow_key key = any_port;
    if (node.tunnelled == 0) {
        key.vni = 0;
        key.flags &= static_cast<std::uint16_t>(~SPILLWAY_KEY_VNI);
    }
    if (config_.form == CipForm::headers)
        return spillway_headers_write(&key, vxlan_port_, payload);
    constexpr std::uint64_t longest = 0xffff;
    const spillway_cip cip{.key = key,
                           .type = restore ? SPILLWAY_CIP_RESTORE : SPILLWAY_CIP_ISOLATE,
                           .lifetime_ms =
                               static_cast<std::uint32_t>(std::min(limits_.life_ns / ms_to_ns(1), longest)),
                           .sequence = ++sequence_};
    return spillway_descriptor_write(&cip, payload);
}

bool CipEngine::try_send(const spillway_flow_key &any_port, Pending &pending, std::uint64_t now) {
    const auto node = node_of(any_port);
    if (!node)
        return true;
    const bool fresh = node->learned_ns != 0 &&
                       spillway_since(now, node->learned_ns) <= static_cast<std::int64_t>(window_ns_);
    if (!fresh) {
        if (node->wanted_until_ns != 0 && spillway_since(node->wanted_until_ns, now) > 0)
            return false; // the next packet of the flow will tell
        if (spillway_since(pending.give_up_ns, now) > 0)
            return false;
        if (node->learned_ns == 0) {
            if (pending.own && (any_port.flags & SPILLWAY_KEY_VNI) == 0) // it may have been made here
                count(node->egress, SPILLWAY_LOST_NO_UPSTREAM);
            return true;
        }
        // The flow is silent, as it is while flow control holds it back: who sent it last is to go on.
    }
    if (!pending.restore && spillway_since(node->next_due_ns, now) > 0) {
        pending.give_up_ns = node->next_due_ns + window_ns_;
        return false;
    }
    const auto told = told_by_.find(any_port);
    if (told != told_by_.end() && told->second == Neighbour{node->port, mac_of(*node)})
        return true; // no echo
    const spillway_port *port = ports_.port_of(static_cast<int>(node->port));
    const PortConfig *config = ports_.config_of(static_cast<int>(node->port));
    if (port == nullptr || config == nullptr)
        return true;
    if (!rates_[node->port].take(limits_.max_per_second, now)) {
        if (!pending.delayed)
            count(node->port, SPILLWAY_LOST_CIP_RATE);
        pending.delayed = true;
        pending.give_up_ns = now + window_ns_;
        return false;
    }

    std::array<std::uint8_t, SPILLWAY_CIP_PAYLOAD_MAX> made{};
    std::span<const std::uint8_t> payload = pending.headers;
    // The packet's own headers, where it came in with them: not so at the end of a tunnel.
    const bool verbatim =
        node->sent == 0 && config_.form == CipForm::headers && pending.tunnelled == (node->tunnelled != 0);
    if (payload.empty() || !verbatim)
        payload = std::span(made).first(write(any_port, *node, pending.restore, made.data()));
    CipCarrier carrier{.destination = mac_of(*node),
                       .source = {},
                       .ethertype = config_.ethertype,
                       .vlan_proto = node->vlan_proto,
                       .vlan_tci = node->vlan_tci,
                       .pcp = config_.tx_priority};
    std::copy(std::begin(port->mac), std::end(port->mac), carrier.source.begin());
    const std::uint32_t priority = config->cip_class ? config->cip_class->handle : config_.tx_priority;
    if (auto sent = socket_.send(static_cast<int>(node->port), cip_frame(carrier, payload), priority);
        !sent) {
        spdlog::debug("{}: {}", port->name, sent.error().message());
        count(node->port, SPILLWAY_LOST_CIP_SEND);
        return true;
    }
    spillway_edit edit{};
    edit.op = SPILLWAY_EDIT_CIP_SENT;
    edit.key = any_port;
    edit.value = next_due(limits_, node->sent + 1, now);
    if (pending.restore)
        edit.op = SPILLWAY_EDIT_FORGET; // a new mark begins anew
    if (auto done = maps_.edit(edit); !done)
        spdlog::warn("{}", done.error().message());
    count(node->port, SPILLWAY_CIP_SENT);
    spdlog::debug("{}: {} {} for {}", port->name, pending.restore ? "restore CIP after" : "CIP",
                  node->sent + 1, flow_text(any_port));
    return true;
}

void CipEngine::turn() {
    const std::uint64_t now = now_ns();
    // New flows first: a repeat that waits costs less than a node that knows nothing yet.
    std::vector<spillway_flow_key> later;
    const auto attempt = [this, now](const spillway_flow_key &key) {
        const auto found = pending_.find(key);
        if (try_send(found->first, found->second, now))
            pending_.erase(found);
    };
    std::vector<spillway_flow_key> first;
    for (const auto &[key, pending] : pending_)
        (pending.headers.empty() ? later : first).push_back(key);
    std::for_each(first.begin(), first.end(), attempt);
    std::for_each(later.begin(), later.end(), attempt);
}

void CipEngine::sweep(const FlowEntries &flows) {
    const std::uint64_t now = now_ns();
    std::set<spillway_flow_key, KeyLess> marked_flows;
    for (const auto &[key, flow] : flows) {
        if (flow.mark != SPILLWAY_MARK_CONGESTED)
            continue;
        const spillway_flow_key any_port = node_key(key);
        marked_flows.insert(any_port);
        const bool made_here = flow.ingress == 0 && (key.flags & SPILLWAY_KEY_VNI) == 0;
        if (flow.state != SPILLWAY_STATE_ISOLATED || flow.local_until_ns == 0 || made_here ||
            pending_.contains(any_port))
            continue;
        const spillway_port *port = ports_.port_of(static_cast<int>(key.port));
        if (port == nullptr || (port->flags & SPILLWAY_PORT_SEND_CIP) == 0 ||
            flow.queue >= SPILLWAY_QUEUES_MAX)
            continue;
        const spillway_queue &queue = maps_.queues()[flow.queue];
        const spillway_leaf &leaf = queue.isolation_count != 0
                                        ? queue.isolation[flow.isolation % SPILLWAY_ISOLATION_MAX]
                                        : queue.normal;
        const std::uint64_t busy_ns = spillway_later(leaf.busy_ns, leaf.polled_busy_ns);
        const bool busy =
            busy_ns != 0 && spillway_since(now, busy_ns) < static_cast<std::int64_t>(limits_.life_ns / 4);
        // A little ahead of time: turn() sends it when it is due, not when the next sweep comes.
        const auto node = node_of(any_port);
        if (!node || repeat_due(limits_, node->sent, node->next_due_ns, busy, now + sweep_period_ns)) {
            ask(key, true);
            pending_[any_port].own = true;
        }
    }
    // Where nothing is marked any more nothing is remembered.
    std::erase_if(told_by_, [&](const auto &entry) {
        return !marked_flows.contains(entry.first) && !pending_.contains(entry.first);
    });
    // Each request for an upstream node moves this time; without one, and with nothing known, there is
    // nothing to forget.
    const std::uint64_t asked_ns = observe(maps_.settings()->learn_until_ns);
    if (flows.empty() && nothing_known_ && asked_ns == asked_ns_)
        return;
    const auto upstreams = maps_.read_upstreams();
    if (!upstreams)
        return;
    asked_ns_ = asked_ns;
    nothing_known_ = upstreams->empty();
    for (const auto &[key, node] : *upstreams) {
        const bool wanted = node.wanted_until_ns != 0 && spillway_since(node.wanted_until_ns, now) > 0;
        if (wanted || marked_flows.contains(key) || pending_.contains(key))
            continue;
        spillway_edit edit{};
        edit.op = SPILLWAY_EDIT_FORGET;
        edit.key = key;
        if (auto done = maps_.edit(edit); !done)
            spdlog::debug("{}", done.error().message());
    }
}

} // namespace spillway
