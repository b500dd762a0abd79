// SPDX-License-Identifier: Apache-2.0
/// TC programs as filters of the clsact qdisc, for kernels that have no tcx links. A filter outlives the
/// agent as a pinned link does, and is found again by its handle, which is made of the instance's name.
#pragma once

#include "agent/core/result.h"
#include "agent/kernel/links.h"
#include "agent/kernel/netlink.h"

#include <cstdint>
#include <string_view>

namespace spillway {

/// Our filters come first, where the programs of others cannot end the chain before them.
inline constexpr std::uint32_t filter_priority = 1;

/// Handle of the instance's filters. Its lowest bit says whether the instance made the clsact that the filter
/// is in: only then may the clsact be removed with it.
[[nodiscard]] std::uint32_t filter_handle(std::string_view instance, bool made_clsact);

/// True of the filters that ensure_filter() makes for the instance.
[[nodiscard]] bool is_filter_of(const TcFilter &filter, std::string_view instance);

/// What the filters of a TC hook (egress or ingress) hang on.
[[nodiscard]] TcHandle clsact_hook(Hook hook);

/// Makes the TC program run at the hook (egress or ingress) of the port; a filter of ours that is there is
/// replaced in place, so that no packet meets no program. Makes a clsact where there is none. Fails when the
/// port has an ingress qdisc in its place, or when filters of another kind have our priority.
Result<> ensure_filter(Netlink &netlink, std::string_view instance, std::string_view port, int ifindex,
                       Hook hook, int program_fd);

/// Removes the instance's filters from the port, and the clsact if the instance made it and nobody else has a
/// filter in it.
void remove_filters(Netlink &netlink, std::string_view instance, int ifindex);

} // namespace spillway
