// SPDX-License-Identifier: Apache-2.0
#include "agent/kernel/features.h"

#include "agent/kernel/tcx.h"

#include <bpf/bpf.h>
#include <bpf/btf.h>

#include <cerrno>
#include <limits>
#include <memory>

namespace spillway {

bool has_tcx(int tc_program_fd) {
    // With tcx the kernel looks for the interface, which does not exist; without, it refuses the hook first.
    constexpr int no_interface = std::numeric_limits<int>::max();
    return bpf_link_create(tc_program_fd, no_interface, tcx_egress, nullptr) < 0 && errno == ENODEV;
}

bool has_kernel_function(const char *name) {
    const std::unique_ptr<btf, decltype(&btf__free)> types(btf__load_vmlinux_btf(), &btf__free);
    return types && btf__find_by_name_kind(types.get(), name, BTF_KIND_FUNC) > 0;
}

} // namespace spillway
