// SPDX-License-Identifier: Apache-2.0
/// Ports, qdiscs and queue readings from rtnetlink, and the events that tell when they change.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agent/core/result.h"
#include "agent/kernel/tc_tree.h"

struct nl_msg;
struct nl_sock;

namespace spillway {

enum class XdpMode { none, native, generic, offload, multiple };

struct LinkInfo {
    int ifindex = 0;
    std::string name{};
    std::array<uint8_t, 6> mac{}; ///< zero unless the address has six bytes
    uint16_t arp_type = 0;        ///< ARPHRD_*: 1 Ethernet, 772 loopback
    bool up = false;              ///< set up by the administrator
    bool running = false;         ///< up and with a carrier
    uint32_t mtu = 0;
    int master = 0;                ///< ifindex of the bridge or bond; 0 = none
    int lower = 0;                 ///< IFLA_LINK: the device below, or the peer (veth); 0 = none
    bool lower_foreign = false;    ///< `lower` counts in another network namespace
    std::string kind{};            ///< "veth", "bridge", "vlan", …; empty for hardware
    std::optional<uint32_t> vni{}; ///< of a VXLAN device with one VNI
    XdpMode xdp = XdpMode::none;
    uint32_t xdp_program = 0; ///< program id; 0 when none, or several
    uint32_t tx_queues = 0;
    uint32_t gso_max_size = 0; ///< bytes

    [[nodiscard]] bool ethernet() const { return arp_type == 1; }
};

/// True when another device of this namespace (VLAN, macvlan, …) stands on `ifindex`. A veth's peer does not,
/// nor does a tunnel's underlay. Masters are in LinkInfo::master.
[[nodiscard]] bool has_upper(std::span<const LinkInfo> links, int ifindex);

/// One qdisc at one moment: its own counters, never those of the class around it.
struct QueueReading {
    int ifindex = 0;
    TcHandle handle = 0; ///< 0 for HTB's default child
    TcHandle parent = 0; ///< class id, or tc_root
    TcCounters counters{};
};

/// A filter at one hook of a port.
struct TcFilter {
    std::string kind{}; ///< "bpf", "u32", …
    uint32_t handle = 0;
    uint32_t priority = 0;
    std::string program{};      ///< name that a BPF filter bears; empty for others
    bool sets_priority = false; ///< by an action "skbedit priority"
};

namespace detail {
struct NlFree {
    void operator()(nl_sock *socket) const;
    void operator()(nl_msg *message) const;
};
using NlSocket = std::unique_ptr<nl_sock, NlFree>;
using NlMessage = std::unique_ptr<nl_msg, NlFree>;
} // namespace detail

/// Asks the kernel, in the network namespace in which it was opened. One request at a time; not thread-safe.
/// Errors name the request, the port and the errno; an interrupted dump is repeated a few times.
class Netlink {
  public:
    static Result<Netlink> open();

    [[nodiscard]] Result<std::vector<LinkInfo>> links();
    /// Empty when there is no such port.
    [[nodiscard]] Result<std::optional<LinkInfo>> link(std::string_view name);
    [[nodiscard]] Result<std::optional<LinkInfo>> link(int ifindex);

    /// Default children included. Empty for a port that is gone.
    /// Whether the port, which has no master, was told to take frames to further unicast addresses: so it is
    /// with a macvlan above it, even where that is in another network namespace and no list of ports shows
    /// it.
    [[nodiscard]] Result<bool> takes_other_addresses(int ifindex);

    [[nodiscard]] Result<std::vector<Qdisc>> qdiscs(int ifindex);
    [[nodiscard]] Result<std::vector<TcClass>> classes(int ifindex);
    [[nodiscard]] Result<TcTree> tree(int ifindex);

    /// Filters at `parent` (a qdisc, a class, or a hook of clsact). Empty where there is no such parent.
    [[nodiscard]] Result<std::vector<TcFilter>> filters(int ifindex, TcHandle parent);

    /// Readings of every qdisc of every port of the namespace, into `out` (cleared; its
    /// memory is used again). One dump for all: asking for a single qdisc is no alternative, since the kernel
    /// sends the answer to every listener on qdisc events too, and does not answer for HTB's default child.
    [[nodiscard]] Result<> read_queues(std::vector<QueueReading> &out);

  private:
    struct Question {
        const char *operation;
        std::string object;
    };

    explicit Netlink(detail::NlSocket socket);
    /// `read` adds what a message says to `out`, which starts empty at each attempt.
    template <class T, class Read>
    Result<> ask(const Question &question, const detail::NlMessage &request, std::vector<T> &out, Read read);
    Result<std::optional<LinkInfo>> one_link(std::string object, const detail::NlMessage &request);

    detail::NlSocket socket_;
    std::vector<std::byte> buffer_;
    uint32_t sequence_ = 0;
};

/// A port that came, changed (state, name, MAC, master, …) or went.
struct LinkEvent {
    int ifindex = 0;
    std::string name{};
    bool deleted = false;
};

struct EventBatch {
    std::vector<LinkEvent> links; ///< in order of arrival
    std::vector<int> tc_ports;    ///< ifindex of each port with a changed qdisc or class, once
    bool resync = false;          ///< the kernel dropped events: read everything again
};

/// Changes of ports, qdiscs and classes, from a socket of its own: replies and events never mix.
class NetlinkEvents {
  public:
    static Result<NetlinkEvents> open();

    /// Readable when there is something to drain.
    [[nodiscard]] int fd() const;
    /// All that has arrived; never waits.
    [[nodiscard]] Result<EventBatch> drain();

  private:
    explicit NetlinkEvents(detail::NlSocket socket);

    detail::NlSocket socket_;
    std::vector<std::byte> buffer_;
    int receive_buffer_; ///< bytes asked for; grows after a loss
};

} // namespace spillway
