// SPDX-License-Identifier: Apache-2.0
/// What `doctor` wants to know about one port beyond its link and qdiscs.
#pragma once

#include "agent/core/fd.h"
#include "agent/core/result.h"
#include "agent/kernel/netlink.h"

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace spillway {

/// A TC program of a tcx link.
struct TcxProgram {
    bool egress = false;
    std::uint32_t id = 0;
    std::string name{}; ///< at most 15 characters; empty when the kernel does not tell
};

/// A filter, and the qdisc, class or clsact hook it hangs on.
struct PortFilter {
    TcHandle parent = 0;
    TcFilter filter{};
    bool own = false; ///< of the instance asked for

    [[nodiscard]] bool at_clsact() const { return tc_major(parent) == tc_major(tc_root); }
};

/// How a device with data center bridging sorts priorities (PCP).
struct DcbFacts {
    std::uint8_t pfc_enabled = 0;          ///< bit P: priority P is paused by itself
    std::array<std::uint8_t, 8> prio_tc{}; ///< traffic class of each priority
    bool operator==(const DcbFacts &) const = default;
};

struct PortFacts {
    std::string driver{};                            ///< empty when it does not say
    std::optional<std::set<std::string>> features{}; ///< those that are on, by ethtool's names
    std::optional<std::uint64_t> xdp_features{};     ///< NETDEV_XDP_ACT_*; none before Linux 6.3
    std::string xdp_program{}; ///< name of the XDP program that runs; empty when the kernel does not tell
    std::vector<TcxProgram> tcx{};
    std::vector<PortFilter> filters{};
    std::optional<bool> xps{}; ///< a CPU picks the transmit queue of what it sends
    std::optional<DcbFacts> dcb{};
    bool switch_chip = false; ///< a switch chip forwards what arrives, and shows the CPU some of it

    [[nodiscard]] bool on(const char *feature) const { return features && features->contains(feature); }
};

inline constexpr std::uint64_t xdp_basic = 1; ///< NETDEV_XDP_ACT_BASIC: the driver runs XDP programs itself

/// Asks the kernel about ports, in the network namespace in which it was opened.
class PortQuestions {
  public:
    static Result<PortQuestions> open(std::string_view instance);

    /// `tree`: the port's qdiscs and classes. A question that the kernel or the driver does not know leaves
    /// the answer empty.
    [[nodiscard]] Result<PortFacts> ask(const LinkInfo &link, const TcTree &tree);

  private:
    PortQuestions(std::string_view instance, Netlink netlink, Fd sysfs, Fd socket)
        : instance_(instance), netlink_(std::move(netlink)), sysfs_(std::move(sysfs)),
          socket_(std::move(socket)) {}

    std::string instance_;
    Netlink netlink_;
    Fd sysfs_;  ///< /sys as this network namespace has it; none without privilege
    Fd socket_; ///< for ethtool
};

} // namespace spillway
