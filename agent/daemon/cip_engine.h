// SPDX-License-Identifier: Apache-2.0
/// Sends CIPs to upstream nodes (spec R3, R9, B1): the first when a flow is marked or a CIP for it came,
/// repeats while the congestion lasts. What was sent is kept in `upstream`, so a new agent goes on where this
/// one ended.
#pragma once

#include "agent/config/config.h"
#include "agent/core/cip_frame.h"
#include "agent/core/cip_schedule.h"
#include "agent/daemon/port_table.h"
#include "agent/kernel/maps.h"
#include "agent/kernel/packet_socket.h"

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

namespace spillway {

/// How often CipEngine::sweep() is to be called.
inline constexpr std::uint64_t sweep_period_ns = 100'000'000;

class CipEngine {
  public:
    CipEngine(Maps &maps, PortTable &ports, const PacketSocket &socket)
        : maps_(maps), ports_(ports), socket_(socket) {}

    void configure(const Config &config, std::uint64_t window_ns);

    /// Our own queue marked the flow; `headers` are those of the packet that crossed.
    void marked(const spillway_flow_key &key, std::span<const std::uint8_t> headers);
    /// The ingress program found where a flow (key.port = 0) comes from.
    void learned(const spillway_flow_key &key);
    /// A valid CIP from `sender` marked or refreshed the flow: it goes on to the flow's own upstream node.
    void accepted(const spillway_flow_key &key, const MacAddress &sender);
    /// A flow was released before it had been silent for its idle time: in descriptor form its upstream node
    /// is told, if it had been told to isolate.
    void released(const spillway_flow_key &key);
    /// All flows, a few times a second: starts the repeats that are due.
    void sweep(const FlowEntries &flows);
    /// Often: sends what was put off.
    void turn();
    /// Forgets what waits to be sent.
    void drop() { pending_.clear(); }
    /// True while something waits for turn().
    [[nodiscard]] bool busy() const { return !pending_.empty(); }

  private:
    struct KeyLess {
        bool operator()(const spillway_flow_key &a, const spillway_flow_key &b) const;
    };
    /// A CIP that is to be sent as soon as its upstream node is known and the limits allow.
    struct Pending {
        std::vector<std::uint8_t> headers; ///< of the packet that crossed, for the first CIP; may be empty
        bool tunnelled = false;            ///< they are those of a tunnel
        std::uint64_t give_up_ns = 0;      ///< when learning ends in vain
        bool own = false;                  ///< our own queue asks, not only a CIP
        bool delayed = false;              ///< counted as put off already
        bool restore = false;              ///< takes back, instead of telling again
    };
    struct Neighbour {
        std::uint32_t port = 0;
        MacAddress mac{};
        bool operator==(const Neighbour &) const = default;
    };

    /// The key of `upstream`, of pending_ and of told_by_: see abi.h.
    [[nodiscard]] spillway_flow_key node_key(const spillway_flow_key &key) const;
    /// What a CIP to the node says of the flow.
    [[nodiscard]] std::uint32_t write(const spillway_flow_key &any_port, const spillway_upstream &node,
                                      bool restore, std::uint8_t *payload);
    void ask(const spillway_flow_key &key, bool learn);
    [[nodiscard]] std::optional<spillway_upstream> node_of(const spillway_flow_key &any_port) const;
    /// True when the CIP is done with: sent, or never to be sent.
    bool try_send(const spillway_flow_key &any_port, Pending &pending, std::uint64_t now);
    void count(std::uint32_t port, spillway_counter counter);

    Maps &maps_;
    PortTable &ports_;
    const PacketSocket &socket_;
    CipConfig config_;
    CipLimits limits_;
    std::uint16_t vxlan_port_ = SPILLWAY_VXLAN_PORT; ///< in headers that are made up
    std::uint32_t sequence_ = 0;                     ///< of descriptors sent
    std::uint64_t window_ns_ = 0;
    std::uint64_t asked_ns_ = 0; ///< settings.learn_until_ns when `upstream` was last read
    bool nothing_known_ = false; ///< it was empty then
    std::map<spillway_flow_key, Pending, KeyLess> pending_;   ///< by node_key()
    std::map<spillway_flow_key, Neighbour, KeyLess> told_by_; ///< who sent us a CIP for the flow
    std::map<std::uint32_t, RateLimit> rates_;                ///< by ifindex
};

} // namespace spillway
