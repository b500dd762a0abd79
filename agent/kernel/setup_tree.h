// SPDX-License-Identifier: Apache-2.0
/// `spillway setup`: the recommended qdisc tree of a port, made with the host's tc.
///
///     1: htb default 10
///     └─ 1:1   rate R                    the port
///        ├─ 1:5   0.5 % of R, prio 0     congestion isolation packets
///        ├─ 1:10  the rest,   prio 1     normal traffic
///        └─ 1:20  0.5 % of R, prio 2     isolated flows
///
/// Every class may use the whole rate; the leaves are FIFOs of 1000 packets. A tree of this shape counts as
/// made by setup, whatever its rates: giving another rate changes its classes and drops nothing.
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

struct SetupPlan {
    enum class Action { nothing, create, change_rate };
    struct Step {
        Command run;
        Command undo; ///< takes `run` back; empty when there is nothing to take back
    };
    Action action = Action::nothing;
    std::vector<Step> steps;
};

/// What `setup` would do to a port as it stands; pure. `rate` in bit/s. Refuses ports that are not Ethernet
/// and, without `force`, a qdisc tree that somebody else made.
[[nodiscard]] Result<SetupPlan> plan_setup(const LinkInfo &port, const TcTree &tree, uint64_t rate,
                                           bool force);

struct SetupOptions {
    std::string port;
    std::string kind = "htb";
    std::string rate; ///< as given by the user; empty = not given
    bool dry_run = false;
    bool force = false;
};

/// Plans, prints the commands to `out`, and runs them unless `dry_run`. When one fails, what was done before
/// it is taken back; only a tree replaced by force is gone for good.
[[nodiscard]] Result<> setup_port(const SetupOptions &options, std::ostream &out);

} // namespace spillway
