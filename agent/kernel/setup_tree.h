// SPDX-License-Identifier: Apache-2.0
/// `spillway setup`: the recommended qdisc tree of a port, made with the host's tc.
///
///     --kind htb (rate R)                        --kind prio, ets
///     1: htb default 10                          1: prio or ets
///     └─ 1:1   rate R                            ├─ 1:1  congestion isolation packets
///        ├─ 1:5   0.5 % of R, prio 0  CIPs       ├─ 1:2  normal traffic
///        ├─ 1:10  the rest,   prio 1  normal     └─ 1:3  isolated flows
///        └─ 1:20  0.5 % of R, prio 2  isolated
///
/// The leaves are FIFOs of 1000 packets, so that it can be known when a flow's packets have left. Every class
/// of the HTB may use the whole rate. prio and ets have no rate: packets wait there only while the device
/// takes no more. prio starves isolated flows while there is other traffic; ets keeps them 0.5 % of it.
///
/// A tree of this shape counts as made by setup, whatever its rates: giving another rate changes its classes
/// and drops nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "agent/core/result.h"
#include "agent/kernel/netlink.h"
#include "agent/kernel/tc_tree.h"

namespace spillway {

/// A rate as tc writes it: "200mbit", "1.5gbit", "25mbps" (bytes); a plain number is bit/s.
/// From 1 Mbit/s to 10 Tbit/s, in bit/s; anything else is a usage error.
[[nodiscard]] Result<uint64_t> parse_rate(std::string_view text);

/// The arguments of one program run, its name first.
using Command = std::vector<std::string>;

enum class SetupKind { htb, prio, ets };

/// What the user wants of a port.
struct SetupTree {
    SetupKind kind = SetupKind::htb;
    uint64_t rate = 0; ///< htb: bit/s
};

struct SetupPlan {
    enum class Action { nothing, create, change_rate };
    struct Step {
        Command run;
        Command undo; ///< takes `run` back; empty when there is nothing to take back
    };
    Action action = Action::nothing;
    std::vector<Step> steps;
};

/// What `setup` would do to a port as it stands; pure. Refuses ports that are not Ethernet and, without
/// `force`, a qdisc tree that somebody else made, or that setup made of another kind.
[[nodiscard]] Result<SetupPlan> plan_setup(const LinkInfo &port, const TcTree &tree, const SetupTree &wanted,
                                           bool force);

struct SetupOptions {
    std::string port;
    std::string kind = "htb";
    std::string rate{};  ///< as given by the user; empty = not given
    std::string netns{}; ///< network namespace that this thread has entered; for the commands shown
    bool dry_run = false;
    bool force = false;
};

/// Plans, prints the commands to `out`, ready to be pasted, and runs them unless `dry_run`. When one fails,
/// what was done before it is taken back; only a tree replaced by force is gone for good.
[[nodiscard]] Result<> setup_port(const SetupOptions &options, std::ostream &out);

} // namespace spillway
