// SPDX-License-Identifier: Apache-2.0
/// Other instances of spillway on the ports of this network namespace. Two on one port would each mark flows
/// and put them where the other does not look, so a port belongs to the one that came first.
#pragma once

#include "agent/kernel/instance.h"
#include "agent/kernel/netlink.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace spillway {

class OtherInstances {
  public:
    /// All that is pinned now, whether agents run or not.
    [[nodiscard]] static OtherInstances find(const Paths &own);

    /// The instance that the port belongs to, if that is another one: of several that have programs there,
    /// each sees the same one.
    [[nodiscard]] std::optional<std::string> on(Netlink &netlink, int ifindex) const;

  private:
    std::string own_;
    std::vector<std::string> others_;
    std::map<std::uint32_t, std::string> programs_; ///< of links, our own included, by id
};

/// What is wrong with a port that belongs to instance `other`, and the remedy.
[[nodiscard]] std::string other_instance_text(const std::string &other);
[[nodiscard]] std::string other_instance_hint(const std::string &other);

} // namespace spillway
