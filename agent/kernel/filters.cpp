// SPDX-License-Identifier: Apache-2.0
#include "agent/kernel/filters.h"

#include <bpf/libbpf.h>
#include <fmt/format.h>
#include <linux/pkt_sched.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace spillway {
namespace {

bpf_tc_attach_point attach_point(Hook hook) {
    return hook == Hook::egress ? BPF_TC_EGRESS : BPF_TC_INGRESS;
}

/// All filters at the hook; none when there is no clsact.
std::vector<TcFilter> filters_at(Netlink &netlink, int ifindex, Hook hook) {
    return netlink.filters(ifindex, clsact_hook(hook)).value_or(std::vector<TcFilter>{});
}

} // namespace

std::uint32_t filter_handle(std::string_view instance, bool made_clsact) {
    std::uint32_t hash = 2166136261; // FNV-1a
    for (const char c : instance)
        hash = (hash ^ static_cast<unsigned char>(c)) * 16777619;
    return made_clsact ? hash | 1U : std::max(hash & ~1U, 2U); // 0 would let the kernel choose
}

bool is_filter_of(const TcFilter &filter, std::string_view instance) {
    return filter.kind == "bpf" && filter.priority == filter_priority &&
           (filter.handle == filter_handle(instance, true) ||
            filter.handle == filter_handle(instance, false));
}

TcHandle clsact_hook(Hook hook) {
    return TC_H_MAKE(TC_H_CLSACT, hook == Hook::egress ? TC_H_MIN_EGRESS : TC_H_MIN_INGRESS);
}

Result<> ensure_filter(Netlink &netlink, std::string_view instance, std::string_view port, int ifindex,
                       Hook hook, int program_fd) {
    LIBBPF_OPTS(bpf_tc_hook, clsact, .ifindex = ifindex, .attach_point = attach_point(hook));
    const int made = bpf_tc_hook_create(&clsact);
    if (made != 0 && made != -EEXIST)
        return fail({.operation = "make clsact", .object = std::string(port), .number = -made});
    std::uint32_t handle = filter_handle(instance, made == 0);
    for (const Hook other : {Hook::egress, Hook::ingress}) // it is ours if it was when the first one came
        for (const TcFilter &filter : filters_at(netlink, ifindex, other))
            if (is_filter_of(filter, instance))
                handle = filter.handle;
    LIBBPF_OPTS(bpf_tc_opts, filter, .prog_fd = program_fd, .flags = BPF_TC_F_REPLACE, .handle = handle,
                .priority = filter_priority);
    if (const int error = bpf_tc_attach(&clsact, &filter); error != 0)
        return fail({.operation = "attach filter",
                     .object = std::string(port),
                     .number = -error,
                     .hint = fmt::format(
                         "clsact of {} must have room at priority {} for filters of kind bpf; "
                         "see `tc filter show dev {} {}` and `tc qdisc show dev {}`",
                         port, filter_priority, port, hook == Hook::egress ? "egress" : "ingress", port)});
    return {};
}

void remove_filters(Netlink &netlink, std::string_view instance, int ifindex) {
    bool made_clsact = false;
    for (const Hook hook : {Hook::egress, Hook::ingress})
        for (const TcFilter &filter : filters_at(netlink, ifindex, hook)) {
            if (!is_filter_of(filter, instance))
                continue;
            made_clsact = made_clsact || filter.handle == filter_handle(instance, true);
            LIBBPF_OPTS(bpf_tc_hook, clsact, .ifindex = ifindex, .attach_point = attach_point(hook));
            LIBBPF_OPTS(bpf_tc_opts, which, .handle = filter.handle, .priority = filter.priority);
            bpf_tc_detach(&clsact, &which);
        }
    if (!made_clsact)
        return;
    for (const Hook hook : {Hook::egress, Hook::ingress})
        if (!filters_at(netlink, ifindex, hook).empty())
            return;
    LIBBPF_OPTS(bpf_tc_hook, clsact, .ifindex = ifindex,
                .attach_point = static_cast<bpf_tc_attach_point>(BPF_TC_INGRESS | BPF_TC_EGRESS));
    bpf_tc_hook_destroy(&clsact);
}

} // namespace spillway
