// SPDX-License-Identifier: Apache-2.0
/// The hooks of tcx links, newer than the oldest kernel headers we build with.
#pragma once

#include <linux/bpf.h>

namespace spillway {

inline constexpr auto tcx_ingress = static_cast<bpf_attach_type>(46); ///< BPF_TCX_INGRESS
inline constexpr auto tcx_egress = static_cast<bpf_attach_type>(47);  ///< BPF_TCX_EGRESS

} // namespace spillway
