// SPDX-License-Identifier: Apache-2.0
#include "agent/doctor/host.h"

#include "agent/kernel/links.h"
#include "agent/kernel/other_instances.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>
#include <fstream>
#include <linux/capability.h>
#include <unistd.h>

namespace spillway {
namespace {

constexpr const char *kernel_types = "/sys/kernel/btf/vmlinux";

std::uint64_t effective_capabilities() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with("CapEff:"))
            return std::stoull(line.substr(7), nullptr, 16);
    }
    return 0;
}

std::vector<std::string> missing_capabilities() {
    struct Needed {
        int number;
        const char *name;
        bool in_sys_admin;
    };
    constexpr auto needed = std::to_array<Needed>({{CAP_BPF, "BPF", true},
                                                   {CAP_NET_ADMIN, "NET_ADMIN", false},
                                                   {CAP_NET_RAW, "NET_RAW", false},
                                                   {CAP_PERFMON, "PERFMON", true}});
    const std::uint64_t set = effective_capabilities();
    const auto has = [set](int number) { return (set >> number & 1) != 0; };
    std::vector<std::string> missing;
    for (const auto &one : needed) {
        if (!has(one.number) && !(one.in_sys_admin && has(CAP_SYS_ADMIN)))
            missing.emplace_back(one.name);
    }
    return missing;
}

/// A problem of a port, or of what is named `where` on it.
HostProblem problem(std::string_view check, const std::string &port, std::string_view where,
                    std::string_view detail, std::string_view hint) {
    return {.check = std::string(check),
            .port = port,
            .error = {.operation = "port " + port,
                      .object = std::string(where),
                      .detail = std::string(detail),
                      .hint = std::string(hint),
                      .kind = ErrorKind::usage}};
}

HostProblem problem(const std::string &port, std::string_view where, const TcRefusal &refusal) {
    std::string hint = refusal.hint;
    for (std::size_t at = 0; (at = hint.find("PORT", at)) != std::string::npos; at += port.size())
        hint.replace(at, 4, port);
    const auto check = [&refusal] {
        switch (refusal.reason) {
        case TcReason::noqueue:
            return "noqueue";
        case TcReason::not_below:
            return "isolation_class";
        default:
            return "classes";
        }
    };
    return problem(check(), port, where, refusal.text, hint);
}

void check_queue(const std::string &port, const QueueConfig &queue, const TcTree &tree,
                 std::vector<HostProblem> &problems) {
    const std::string where = "queue " + queue.queue_class.text();
    const auto normal = resolve_leaf(tree, queue.queue_class.handle);
    if (!normal) {
        problems.push_back(problem(port, where, normal.error()));
        return;
    }
    if (const auto readable = check_readable(tree, *normal); queue.waterline && !readable)
        problems.push_back(problem(port, where, readable.error()));
    for (const ClassId isolate : queue.isolate_class) {
        if (const auto leaf = resolve_leaf(tree, isolate.handle); !leaf)
            problems.push_back(problem(port, where, leaf.error()));
        else if (const auto below = check_below(tree, isolate.handle, queue.queue_class.handle); !below)
            problems.push_back(problem(port, where, below.error()));
    }
}

void check_port(const PortConfig &config, const LinkInfo &link, const Host &host,
                std::vector<HostProblem> &problems) {
    if (!link.ethernet()) {
        problems.push_back(problem("port", link.name, "", "it carries no Ethernet frames",
                                   "name Ethernet ports only; a glob may be too wide"));
        return;
    }
    if (!link.up)
        problems.push_back(
            problem("port", link.name, "", "it is down", fmt::format("ip link set {} up", link.name)));
    if (const auto other = host.others.find(link.ifindex); other != host.others.end())
        problems.push_back(problem("tc_programs", link.name, "", other_instance_text(other->second),
                                   other_instance_hint(other->second)));
    if (foreign_xdp(link, host) && (config.trap == TrapMode::native || config.trap == TrapMode::generic))
        problems.push_back(problem("xdp", link.name, "", "an XDP program of somebody else is there",
                                   "set trap to auto or tc, or remove that program"));
    const auto tree = host.trees.find(link.ifindex);
    if (tree == host.trees.end())
        return;
    for (const auto &queue : config.queues)
        check_queue(link.name, queue, tree->second, problems);
    if (config.cip_class) {
        if (const auto leaf = resolve_leaf(tree->second, config.cip_class->handle); !leaf)
            problems.push_back(problem(link.name, "cip_class " + config.cip_class->text(), leaf.error()));
    }
}

} // namespace

Result<Host> read_host(const Config &config, const Paths &paths) {
    Host host{.has_btf = ::access(kernel_types, R_OK) == 0,
              .missing_capabilities = missing_capabilities(),
              .links = {},
              .trees = {},
              .own_programs = linked_programs(paths),
              .others = {}};
    auto netlink = Netlink::open();
    if (!netlink)
        return fail(netlink.error());
    auto links = netlink->links();
    if (!links)
        return fail(links.error());
    host.links = std::move(*links);
    const auto others = OtherInstances::find(paths);
    for (const auto *link : named_ports(config, host)) {
        if (auto other = others.on(*netlink, link->ifindex))
            host.others[link->ifindex] = std::move(*other);
        auto tree = netlink->tree(link->ifindex);
        if (!tree)
            return fail(tree.error());
        host.trees[link->ifindex] = std::move(*tree);
    }
    return host;
}

std::vector<const LinkInfo *> named_ports(const Config &config, const Host &host) {
    std::vector<const LinkInfo *> ports;
    for (const auto &link : host.links) {
        if (find_port(config, link.name) != nullptr)
            ports.push_back(&link);
    }
    std::ranges::sort(ports, {}, &LinkInfo::name);
    return ports;
}

bool foreign_xdp(const LinkInfo &link, const Host &host) {
    return link.xdp != XdpMode::none && !host.own_programs.contains(link.xdp_program) &&
           !host.others.contains(link.ifindex);
}

std::vector<HostProblem> host_problems(const Config &config, const Host &host) {
    std::vector<HostProblem> problems;
    if (!host.missing_capabilities.empty())
        problems.push_back(
            {"privilege",
             "",
             {.operation = "privilege",
              .detail = fmt::format("capabilities missing: {}", fmt::join(host.missing_capabilities, ", ")),
              .hint = std::string(privilege_hint),
              .kind = ErrorKind::usage}});
    if (!host.has_btf)
        problems.push_back({"btf",
                            "",
                            {.operation = "kernel",
                             .detail = fmt::format("it has no type information ({})", kernel_types),
                             .hint = "use a kernel built with CONFIG_DEBUG_INFO_BTF=y",
                             .kind = ErrorKind::usage}});
    for (const auto &port : config.ports) {
        const bool found = std::ranges::any_of(host.links, [&port](const LinkInfo &link) {
            return ::fnmatch(port.name.c_str(), link.name.c_str(), 0) == 0;
        });
        if (!found)
            problems.push_back(
                problem("port", port.name, "", "no interface has this name, or matches it",
                        "ip -br link lists the interfaces; the agent waits for one to appear"));
    }
    for (const auto *link : named_ports(config, host))
        check_port(*find_port(config, link->name), *link, host, problems);
    return problems;
}

} // namespace spillway
