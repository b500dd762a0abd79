// SPDX-License-Identifier: Apache-2.0
#include "agent/kernel/features.h"

#include "agent/kernel/tcx.h"

#include <bpf/bpf.h>
#include <bpf/btf.h>

#include <array>
#include <cerrno>
#include <limits>
#include <memory>

namespace spillway {

Fd load_least_program(bpf_prog_type type, std::uint32_t flags) {
    const std::array<bpf_insn, 2> nothing{
        bpf_insn{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = 0},
        bpf_insn{.code = BPF_JMP | BPF_EXIT, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = 0}};
    LIBBPF_OPTS(bpf_prog_load_opts, options, .prog_flags = flags);
    return Fd(bpf_prog_load(type, "probe", "GPL", nothing.data(), nothing.size(), &options));
}

bool has_xdp_frags() {
    return static_cast<bool>(load_least_program(BPF_PROG_TYPE_XDP, xdp_has_frags));
}

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
