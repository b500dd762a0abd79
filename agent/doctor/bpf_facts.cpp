// SPDX-License-Identifier: Apache-2.0
#include "agent/doctor/bpf_facts.h"

#include "agent/core/fd.h"
#include "agent/kernel/programs.h"

#include <array>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <cerrno>
#include <net/if.h>
#include <sched.h>
#include <thread>

namespace spillway {
namespace {

Fd load_pass(bpf_prog_type type) {
    const std::array<bpf_insn, 2> pass{
        bpf_insn{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = 0},
        bpf_insn{.code = BPF_JMP | BPF_EXIT, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = 0}};
    return Fd(::bpf_prog_load(type, "probe", "GPL", pass.data(), pass.size(), nullptr));
}

/// Whether a port takes a clsact qdisc with a filter; tried on the loopback device of a network namespace
/// that ends with the thread. Empty where none may be made.
std::optional<bool> takes_clsact(int program) {
    std::optional<bool> takes;
    std::thread([&takes, program] {
        if (::unshare(CLONE_NEWNET) != 0)
            return;
        LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = static_cast<int>(::if_nametoindex("lo")),
                    .attach_point = BPF_TC_EGRESS);
        LIBBPF_OPTS(bpf_tc_opts, filter, .prog_fd = program);
        takes = bpf_tc_hook_create(&hook) == 0 && bpf_tc_attach(&hook, &filter) == 0;
    }).join();
    return takes;
}

} // namespace

BpfFacts try_bpf() {
    BpfFacts facts;
    libbpf_set_print(nullptr);
    const Fd pass = load_pass(BPF_PROG_TYPE_SCHED_CLS);
    if (!pass) {
        facts.refusal = errno;
        return facts;
    }
    facts.ring_buffer = libbpf_probe_bpf_map_type(BPF_MAP_TYPE_RINGBUF, nullptr) == 1;
    constexpr std::uint32_t few = 1024; // flows: no need for memory that nobody uses
    ProgramOptions options{.kernel_read = true, .ethertype = 0x8809, .flow_capacity = few};
    auto programs = Programs::load_unpinned(options);
    facts.queue_read = programs.has_value();
    if (!programs) {
        options.kernel_read = false;
        programs = Programs::load_unpinned(options);
    }
    if (!programs)
        facts.programs = programs.error();
    if (programs && programs->tcx())
        facts.tc_hook = TcHook::tcx;
    else if (const auto clsact = takes_clsact(pass.get()))
        facts.tc_hook = *clsact ? TcHook::clsact : TcHook::none;
    return facts;
}

} // namespace spillway
