// SPDX-License-Identifier: Apache-2.0
/// Prints what the running kernel offers to programs like ours, one `NAME: WHAT` a line: tried, never told
/// from a version. Works in a network namespace of its own; needs root, `ip` and `tc`.
#include "agent/core/fd.h"
#include "agent/kernel/features.h"
#include "agent/kernel/tcx.h"

#include <array>
#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <bpf/libbpf.h>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <linux/if_link.h>
#include <memory>
#include <net/if.h>
#include <sched.h>
#include <string>
#include <vector>

namespace spillway {
namespace {

// Newer than the oldest headers that this is built with.
constexpr auto coarse_time = static_cast<bpf_func_id>(160);
constexpr auto loop = static_cast<bpf_func_id>(181);

bpf_insn instruction(int code, unsigned dst, unsigned src, std::int16_t off, std::int32_t imm) {
    return {.code = static_cast<__u8>(code),
            .dst_reg = static_cast<__u8>(dst & 15U),
            .src_reg = static_cast<__u8>(src & 15U),
            .off = off,
            .imm = imm};
}

const bpf_insn leave = instruction(BPF_JMP | BPF_EXIT, 0, 0, 0, 0);
const bpf_insn zero = instruction(BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, 0);

struct LoadOptions {
    std::uint32_t flags = 0;
    bpf_attach_type attach = {};
    int btf_id = 0;
};

Fd load(bpf_prog_type type, const std::vector<bpf_insn> &code, const LoadOptions &how = {}) {
    LIBBPF_OPTS(bpf_prog_load_opts, options, .expected_attach_type = how.attach, .prog_flags = how.flags,
                .attach_btf_id = static_cast<__u32>(how.btf_id));
    return Fd(bpf_prog_load(type, "probe", "GPL", code.data(), code.size(), &options));
}

std::string yes(bool is) {
    return is ? "yes" : fmt::format("no ({})", std::strerror(errno));
}

struct FreeBtf {
    void operator()(btf *types) const { btf__free(types); }
};
using Btf = std::unique_ptr<btf, FreeBtf>;

/// The id of a type of the kernel's; 0, with errno set, if it has none of that name.
int type_id(const Btf &types, const char *name, std::uint32_t kind) {
    const int id = types ? btf__find_by_name_kind(types.get(), name, kind) : -ENOENT;
    if (id > 0)
        return id;
    errno = ENOENT;
    return 0;
}

std::string tc_hook(int ifindex, const char *port) {
    const Fd program = load(BPF_PROG_TYPE_SCHED_CLS, {zero, leave});
    if (Fd(bpf_link_create(program.get(), ifindex, tcx_ingress, nullptr)))
        return "tcx";
    const std::string without = yes(false);
    if (std::system(fmt::format("tc qdisc add dev {} clsact", port).c_str()) != 0)
        return fmt::format("tcx: {}; no clsact either", without);
    LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = ifindex, .attach_point = BPF_TC_EGRESS);
    LIBBPF_OPTS(bpf_tc_opts, options, .prog_fd = program.get());
    const int error = bpf_tc_attach(&hook, &options);
    return error == 0 ? fmt::format("clsact (tcx: {})", without)
                      : fmt::format("none ({})", std::strerror(-error));
}

std::string native_xdp(int ifindex) {
    LIBBPF_OPTS(bpf_link_create_opts, native, .flags = XDP_FLAGS_DRV_MODE);
    const auto attaches = [&](std::uint32_t flags) {
        const Fd program = load(BPF_PROG_TYPE_XDP, {zero, leave}, {.flags = flags});
        return program && Fd(bpf_link_create(program.get(), ifindex, BPF_XDP, &native));
    };
    if (attaches(xdp_has_frags))
        return "yes, with frags";
    return attaches(0) ? "yes, without frags" : yes(false);
}

/// Whether a TC program may turn its context into the kernel's own structure.
std::string kernel_read(const Btf &types) {
    const int cast = type_id(types, "bpf_cast_to_kern_ctx", BTF_KIND_FUNC);
    if (cast == 0 || type_id(types, "bpf_rdonly_cast", BTF_KIND_FUNC) == 0)
        return yes(false);
    return yes(static_cast<bool>(
        load(BPF_PROG_TYPE_SCHED_CLS,
             {instruction(BPF_JMP | BPF_CALL, 0, BPF_PSEUDO_KFUNC_CALL, 0, cast), zero, leave})));
}

/// Whether a TC program may copy from kernel memory, and from the structure behind its context.
std::string helper_read() {
    return yes(static_cast<bool>(
        load(BPF_PROG_TYPE_SCHED_CLS,
             {instruction(BPF_ALU64 | BPF_MOV | BPF_X, 3, 1, 0, 0),
              instruction(BPF_ALU64 | BPF_ADD | BPF_K, 3, 0, 0, 16),
              instruction(BPF_ALU64 | BPF_MOV | BPF_K, 2, 0, 0, 8),
              instruction(BPF_ALU64 | BPF_MOV | BPF_X, 1, 10, 0, 0),
              instruction(BPF_ALU64 | BPF_ADD | BPF_K, 1, 0, 0, -8),
              instruction(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_probe_read_kernel), zero, leave})));
}

std::string tracing(const Btf &types, bpf_attach_type how, const char *name, std::uint32_t kind) {
    const int id = type_id(types, name, kind);
    if (id == 0)
        return yes(false);
    const Fd program = load(BPF_PROG_TYPE_TRACING, {zero, leave}, {.attach = how, .btf_id = id});
    return yes(program && Fd(bpf_raw_tracepoint_open(nullptr, program.get())));
}

/// Atomic addition that gives the old value, to a word of the stack.
std::string fetching_atomics() {
    return yes(static_cast<bool>(
        load(BPF_PROG_TYPE_SCHED_CLS,
             {zero, instruction(BPF_STX | BPF_MEM | BPF_DW, 10, 0, -8, 0),
              instruction(BPF_STX | BPF_ATOMIC | BPF_DW, 10, 0, -8, BPF_ADD | BPF_FETCH), zero, leave})));
}

std::string helper(bpf_func_id id) {
    return yes(libbpf_probe_bpf_helper(BPF_PROG_TYPE_SCHED_CLS, id, nullptr) == 1);
}

void print(const char *name, const std::string &what) {
    fmt::print("{}: {}\n", name, what);
}

int probe() {
    libbpf_set_print([](libbpf_print_level, const char *, va_list) { return 0; });
    if (::unshare(CLONE_NEWNET) != 0 || std::system("ip link add p0 type veth peer name p1") != 0) {
        std::perror("vm_probe: a network namespace with a port");
        return 1;
    }
    const int port = static_cast<int>(::if_nametoindex("p0"));
    const Btf types(btf__load_vmlinux_btf());
    print("type information", yes(static_cast<bool>(types)));
    print("tc hook", tc_hook(port, "p0"));
    print("kernel read by kfunc", kernel_read(types));
    print("kernel read by helper", helper_read());
    print("ring buffer", yes(libbpf_probe_bpf_map_type(BPF_MAP_TYPE_RINGBUF, nullptr) == 1));
    print("native XDP on veth", native_xdp(port));
    print("BPF qdisc", yes(type_id(types, "bpf_struct_ops_Qdisc_ops", BTF_KIND_STRUCT) != 0));
    print("fetching atomics", fetching_atomics());
    print("coarse time", helper(coarse_time));
    print("bpf_loop", helper(loop));
    print("SEC(\"syscall\")",
          yes(static_cast<bool>(load(BPF_PROG_TYPE_SYSCALL, {zero, leave}, {.flags = BPF_F_SLEEPABLE}))));
    print("fentry of dev_queue_xmit", tracing(types, BPF_TRACE_FENTRY, "__dev_queue_xmit", BTF_KIND_FUNC));
    print("tp_btf of qdisc_enqueue",
          tracing(types, BPF_TRACE_RAW_TP, "btf_trace_qdisc_enqueue", BTF_KIND_TYPEDEF));
    print("tp_btf of qdisc_dequeue",
          tracing(types, BPF_TRACE_RAW_TP, "btf_trace_qdisc_dequeue", BTF_KIND_TYPEDEF));
    return 0;
}

} // namespace
} // namespace spillway

int main() {
    return spillway::probe();
}
