// SPDX-License-Identifier: Apache-2.0
/// The ports an agent serves: finds them, resolves their queues, fills in the maps, hangs on the programs,
/// and follows every change. Ports and classes that are not there yet wait.
#pragma once

#include "agent/config/config.h"
#include "agent/core/drain_tracker.h"
#include "agent/kernel/links.h"
#include "agent/kernel/maps.h"
#include "agent/kernel/netlink.h"
#include "agent/kernel/other_instances.h"
#include "agent/kernel/programs.h"

#include <map>
#include <set>
#include <string>
#include <vector>

namespace spillway {

struct Waiting {
    spillway_waiting reason = SPILLWAY_WAITING_NO;
    std::string text; ///< sentence for the log, with the remedy
};

class PortTable {
  public:
    PortTable(Maps &maps, const Paths &paths, Netlink &netlink)
        : maps_(maps), paths_(paths), netlink_(netlink) {}

    /// Makes maps and links agree with the configuration and the host as it is now. Safe to call at any time;
    /// programs on ports that stay are updated in place when `programs` are new. `poll_only`: the kernel
    /// could have been read but for a lack that `status` is to show.
    Result<> reconcile(const Config &config, const Programs &programs, bool poll_only);

    /// One reading of a qdisc: published where it is a monitored leaf, with level, busy time and what
    /// drained.
    void publish_reading(const QueueReading &reading, std::uint64_t time_ns, std::uint64_t margin);

    /// The configuration that governs a served port; null when the port is not served.
    [[nodiscard]] const PortConfig *config_of(int ifindex) const;
    [[nodiscard]] spillway_port *port_of(int ifindex) const;
    [[nodiscard]] std::size_t served() const { return served_.size(); }
    [[nodiscard]] std::vector<int> ifindexes() const;
    /// Some port is another instance's; reconcile() sees when it no longer is.
    [[nodiscard]] bool waits_for_others() const;

    /// Takes every program off every port.
    void detach_all();

  private:
    struct Served {
        std::size_t slot = 0;
        PortConfig config;
        std::string name;
        Waiting waiting;
    };

    Result<> serve(const PortConfig &config, std::uint32_t cip_per_second, const LinkInfo &link, bool upper,
                   std::optional<std::uint32_t> vni, const Programs &programs, bool poll_only);
    void release(int ifindex);
    void release_slot(spillway_port &port);
    void publish_absent(const std::vector<std::string> &names);
    [[nodiscard]] spillway_port *claim_slot(int ifindex);
    [[nodiscard]] bool claim_queues(spillway_port &port, std::uint32_t count);
    Waiting fill_queues(spillway_port &port, const PortConfig &config, const TcTree &tree);
    Waiting fill_queue(spillway_queue &queue, const QueueConfig &config, const TcTree &tree);
    void set_leaf(spillway_leaf &leaf, std::uint32_t classid, const Leaf *found);
    Waiting attach(spillway_port &port, const PortConfig &config, const LinkInfo &link,
                   const Programs &programs);
    void detach(spillway_port &port);
    void read_leaf(spillway_queue &queue, spillway_leaf &leaf, const QueueReading &reading,
                   std::uint64_t time_ns, std::uint64_t margin);

    Maps &maps_;
    const Paths &paths_;
    Netlink &netlink_;
    OtherInstances others_;
    std::map<int, Served> served_; ///< by ifindex
    std::map<const spillway_leaf *, DrainTracker> trackers_;
    std::set<std::string> links_; ///< link files in use
    std::set<std::string> absent_;
};

} // namespace spillway
