// SPDX-License-Identifier: Apache-2.0
/// Pinned BPF links: how programs hang on ports, outlive the agent and are updated in place.
#pragma once

#include "agent/core/result.h"
#include "agent/kernel/instance.h"

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

enum class Hook { egress, ingress, xdp_native, xdp_generic };

/// File name of a port's link: bpffs reserves dots, so `.` and `%` are written %2e and %25.
[[nodiscard]] std::string link_name(std::string_view port, Hook hook);

/// The file of a link; what else lies in the folder is somebody else's.
[[nodiscard]] bool is_link_name(std::string_view file);

/// Makes `program` run at the hook of the port. A pinned link of this very interface is updated in place, so
/// that no packet meets no program; one of a former interface of that name is replaced. Other people's
/// programs stay: an XDP program of somebody else is EBUSY.
Result<> ensure_link(const Paths &paths, std::string_view port, int ifindex, Hook hook, int program_fd);

/// Removes the port's link at the hook, if there is one; the program stops running there.
void remove_link(const Paths &paths, std::string_view port, Hook hook);

/// The port has another name now: its links get it too, and go on running. A name still taken is left alone
/// (two ports that swap names): then the link is made anew.
void rename_links(const Paths &paths, std::string_view from, std::string_view to);

/// Ids of the programs on the instance's pinned links.
[[nodiscard]] std::set<std::uint32_t> linked_programs(const Paths &paths);

/// Ids of the programs on a port's tcx hook (egress or ingress), whosesoever, in the order in which they run.
/// Empty without tcx. Interface numbers are those of one network namespace, ids those of the machine.
[[nodiscard]] std::vector<std::uint32_t> tcx_programs(int ifindex, Hook hook);

/// Removes every link of ours whose file name is not in `keep`.
void remove_other_links(const Paths &paths, const std::set<std::string> &keep);

} // namespace spillway
