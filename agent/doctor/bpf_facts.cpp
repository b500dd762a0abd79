// SPDX-License-Identifier: Apache-2.0
#include "agent/doctor/bpf_facts.h"

#include "agent/kernel/features.h"
#include "agent/kernel/filters.h"
#include "agent/kernel/programs.h"

#include <spillway/flow_key.h>

#include <bpf/libbpf.h>
#include <cerrno>
#include <net/if.h>
#include <sched.h>
#include <thread>

namespace spillway {
namespace {

/// Whether a port takes a clsact qdisc with a filter; tried on the loopback device of a network namespace
/// that ends with the thread. Empty where none may be made.
std::optional<bool> takes_clsact(int program) {
    std::optional<bool> takes;
    std::thread([&takes, program] {
        if (::unshare(CLONE_NEWNET) != 0)
            return;
        auto netlink = Netlink::open();
        takes = netlink && ensure_filter(*netlink, "probe", "lo", static_cast<int>(::if_nametoindex("lo")),
                                         Hook::egress, program);
    }).join();
    return takes;
}

} // namespace

BpfFacts try_bpf() {
    BpfFacts facts;
    libbpf_set_print(nullptr);
    const Fd pass = load_least_program(BPF_PROG_TYPE_SCHED_CLS);
    if (!pass) {
        facts.refusal = errno;
        return facts;
    }
    facts.ring_buffer = libbpf_probe_bpf_map_type(BPF_MAP_TYPE_RINGBUF, nullptr) == 1;
    constexpr std::uint32_t few = 1024; // flows: no need for memory that nobody uses
    ProgramOptions options{
        .kernel_read = true, .ethertype = 0x8809, .flow_capacity = few, .vxlan_ports = {SPILLWAY_VXLAN_PORT}};
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
