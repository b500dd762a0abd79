// SPDX-License-Identifier: Apache-2.0
/// What the running kernel offers: probed, never told by its version.
#pragma once

namespace spillway {

/// TC programs can hang on a port as links (tcx), which are pinned and updated in place. `tc_program_fd`: any
/// loaded TC program.
[[nodiscard]] bool has_tcx(int tc_program_fd);

/// The kernel's type information names this function; for functions that programs may call (kfuncs).
[[nodiscard]] bool has_kernel_function(const char *name);

} // namespace spillway
