// SPDX-License-Identifier: Apache-2.0
/// A test rig for the BPF programs: an instance of its own whose maps the test fills in, a port with a real
/// HTB tree in a network namespace of its own, and runs of the programs by BPF_PROG_TEST_RUN.
///
///     Rig rig(Source::kernel);
///     rig.hold(normal, 25000);                          // really waits in the FIFO of class 1:10
///     const Outcome out = rig.isolate((Ethernet{} / IPv4{} / Udp{} / zeros(1000)).bytes());
///     EXPECT_EQ(out.priority, isolation);
///
/// The programs hang on no port: what a test sends is seen by none of them. The rigs of a process share
/// programs and maps, which each finds empty: there is one at a time of either kind. The namespace is that
/// of the calling thread, and is gone with it. What cannot be made throws std::runtime_error. Needs root.
#pragma once

#include "agent/core/fd.h"
#include "agent/kernel/maps.h"
#include "agent/kernel/netlink.h"
#include "agent/kernel/programs.h"
#include "tests/prog/packet.h"

#include <linux/bpf.h>
#include <spillway/abi.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

struct ring_buffer;

namespace spillway::prog {

using packet::Bytes;

/// Classes of the rig's tree.
inline constexpr std::uint32_t cip_class = 0x10005;        ///< 1:5, no queue of ours
inline constexpr std::uint32_t normal = 0x10010;           ///< 1:10, the port's first queue
inline constexpr std::uint32_t second = 0x10011;           ///< 1:11, its second; a default leaf, handle 0
inline constexpr std::uint32_t isolation = 0x10020;        ///< 1:20, isolates for the first queue
inline constexpr std::uint32_t second_isolation = 0x10021; ///< 1:21, isolates for the second one

inline constexpr std::uint32_t low_waterline = 10000;
inline constexpr std::uint32_t high_waterline = 20000;

/// Who reads the queues: the TC program in the kernel's structures, or the test, in the place of the agent.
enum class Source { kernel, poll };

/// Flows that have an entry.
enum class Table { congested, full };

/// What the kernel knows of a packet besides its bytes.
struct Skb {
    std::uint32_t priority = 0;
    std::uint32_t ingress_ifindex = 0; ///< port it came in by; 0: made on this host
    std::uint32_t wire_len = 0;        ///< 0: that of the bytes
    std::uint32_t ifindex = 0;         ///< port it is on; 0: the rig's
};

struct Outcome {
    int verdict = 0;
    std::uint32_t priority = 0;
    Bytes packet{};
};

struct Loaded; // the instance: its programs and maps

class Rig {
  public:
    /// Two queues with the waterlines above and probability 1; the guard is off, nothing is stale, windows
    /// are so long that none ends during a test; the port takes CIPs for 02:00:00:00:00:02.
    explicit Rig(Source source, Table table = Table::congested);
    Rig(const Rig &) = delete;
    Rig &operator=(const Rig &) = delete;

    [[nodiscard]] Source source() const { return source_; }
    [[nodiscard]] std::uint32_t ifindex() const { return ifindex_; }
    [[nodiscard]] std::uint32_t other_ifindex() const { return other_ifindex_; } ///< a port nobody serves
    [[nodiscard]] Maps &maps() { return *maps_; }
    [[nodiscard]] spillway_settings &settings() { return *maps_->settings(); }
    [[nodiscard]] spillway_port &port();
    [[nodiscard]] spillway_queue &queue(std::size_t number = 0); ///< of the rig's port
    [[nodiscard]] spillway_leaf &leaf(std::uint32_t classid);

    /// Makes exactly so many bytes wait in a class, 0 or at least 60: in packets of 500, the last one with
    /// the rest. With Source::poll they are published as a reading of now.
    void hold(std::uint32_t classid, std::uint32_t bytes);
    /// What the kernel says of a class's leaf.
    [[nodiscard]] TcCounters counters(std::uint32_t classid);

    /// One run; `repeat` runs on copies of the packet, of which the last one's outcome is told.
    Outcome isolate(const Bytes &packet, const Skb &skb = {}, int repeat = 1) const;
    Outcome ingress(const Bytes &packet, const Skb &skb = {}, int repeat = 1) const;
    Outcome trap(const Bytes &packet, int repeat = 1) const; ///< XDP, arriving on the rig's port

    [[nodiscard]] int isolate_fd() const;
    [[nodiscard]] int trap_fd() const;

    spillway_edit_result edit(spillway_edit_op op, const spillway_flow_key &key, std::uint64_t value = 0,
                              std::uint32_t counter = 0) const;

    /// Any bytes as a command.
    [[nodiscard]] spillway_edit_result raw_edit(const Bytes &command) const;

    [[nodiscard]] std::optional<spillway_flow> flow(const spillway_flow_key &key) const;
    /// Writes an entry behind the programs' backs, as one that they made.
    void put(const spillway_flow_key &key, const spillway_flow &flow) const;
    [[nodiscard]] std::uint32_t filter(const spillway_flow_key &key) const; ///< count of the key's slot
    [[nodiscard]] std::size_t flows() const;                                ///< how many there are
    [[nodiscard]] std::optional<spillway_upstream> upstream(const spillway_flow_key &key) const;

    /// Events since the last call; those of one type, if one is given.
    std::vector<spillway_event> events(std::optional<spillway_event_type> type = {});
    /// A counter of the rig's port, or of `ifindex`.
    [[nodiscard]] std::uint64_t counter(spillway_counter counter,
                                        std::optional<std::uint32_t> ifindex = {}) const;
    /// Every counter that is not 0, whatever its port.
    [[nodiscard]] Counters counters() const;

  private:
    void make_ports();
    void fill_maps();
    [[nodiscard]] spillway_leaf leaf_of(std::uint32_t classid);
    void send(std::uint32_t classid, std::uint32_t length);
    void renew(const spillway_leaf &held);

    Source source_;
    Loaded &loaded_;
    Maps *maps_;
    std::uint32_t ifindex_ = 0;
    std::uint32_t other_ifindex_ = 0;
    Fd socket_;
    std::optional<Netlink> netlink_;
    std::vector<spillway_event> events_;
    std::unique_ptr<ring_buffer, void (*)(ring_buffer *)> ring_;
};

/// The key of a flow as people write it; `port`: ifindex.
[[nodiscard]] spillway_flow_key key_of(const std::string &text, std::uint32_t port = 0);

/// Runs a program once by its descriptor, or `repeat` times; for programs that are not the rig's too.
struct Run {
    int verdict = 0;
    std::uint32_t duration_ns = 0; ///< of one run, on average
    Bytes packet{};
};
Run run_tc(int program, const Bytes &packet, __sk_buff &context, int repeat);
Run run_xdp(int program, const Bytes &packet, xdp_md &context, int repeat);

} // namespace spillway::prog
