// SPDX-License-Identifier: Apache-2.0
/// What the running kernel offers: probed, never told by its version.
#pragma once

#include "agent/core/fd.h"

#include <linux/bpf.h>

#include <cstdint>

namespace spillway {

inline constexpr std::uint32_t xdp_has_frags = 1U
                                               << 5U; ///< BPF_F_XDP_HAS_FRAGS, newer than the oldest headers

/// The least of programs: it returns 0. Loaded to see whether the kernel takes one of this type, with these
/// flags; not open, and errno set, when it does not.
[[nodiscard]] Fd load_least_program(bpf_prog_type type, std::uint32_t flags = 0);

/// XDP programs may say that they take packets in fragments (large MTU).
[[nodiscard]] bool has_xdp_frags();

/// TC programs can hang on a port as links (tcx), which are pinned and updated in place. `tc_program_fd`: any
/// loaded TC program.
[[nodiscard]] bool has_tcx(int tc_program_fd);

/// The kernel's type information names this function; for functions that programs may call (kfuncs).
[[nodiscard]] bool has_kernel_function(const char *name);

} // namespace spillway
