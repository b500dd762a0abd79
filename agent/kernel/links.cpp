// SPDX-License-Identifier: Apache-2.0
#include "agent/kernel/links.h"

#include "agent/core/fd.h"
#include "agent/kernel/tcx.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/if_link.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>

namespace spillway {
namespace {

constexpr std::array hooks{Hook::egress, Hook::ingress, Hook::xdp_native, Hook::xdp_generic};

std::string_view suffix(Hook hook) {
    switch (hook) {
    case Hook::egress:
        return "egress";
    case Hook::ingress:
        return "ingress";
    case Hook::xdp_native:
        return "xdp-native";
    case Hook::xdp_generic:
        return "xdp-generic";
    }
    return "";
}

bpf_attach_type attach_type(Hook hook) {
    switch (hook) {
    case Hook::egress:
        return tcx_egress;
    case Hook::ingress:
        return tcx_ingress;
    default:
        return BPF_XDP;
    }
}

/// What a link hangs on and runs. XDP and tcx have the interface at the same place of the union.
bpf_link_info link_info(int link_fd) {
    bpf_link_info info{};
    std::uint32_t size = sizeof(info);
    if (bpf_obj_get_info_by_fd(link_fd, &info, &size) != 0)
        return {};
    return info;
}

std::uint32_t program_id(int program_fd) {
    bpf_prog_info info{};
    std::uint32_t size = sizeof(info);
    return bpf_obj_get_info_by_fd(program_fd, &info, &size) == 0 ? info.id : 0;
}

} // namespace

std::string link_name(std::string_view port, Hook hook) {
    std::string name;
    for (const char c : port)
        if (c == '.')
            name += "%2e";
        else if (c == '%')
            name += "%25";
        else
            name += c;
    return name + "-" + std::string(suffix(hook));
}

bool is_link_name(std::string_view file) {
    return std::ranges::any_of(hooks,
                               [file](Hook hook) { return file.ends_with("-" + std::string(suffix(hook))); });
}

Result<> ensure_link(const Paths &paths, std::string_view port, int ifindex, Hook hook, int program_fd) {
    const std::filesystem::path pin = paths.links / link_name(port, hook);
    const Fd old(bpf_obj_get(pin.c_str()));
    if (old) {
        const bpf_link_info info = link_info(old.get()); // ifindex 0: its interface was deleted
        if (info.xdp.ifindex == static_cast<std::uint32_t>(ifindex) &&
            (info.prog_id == program_id(program_fd) || bpf_link_update(old.get(), program_fd, nullptr) == 0))
            return {};
        ::unlink(pin.c_str());
    }
    LIBBPF_OPTS(bpf_link_create_opts, options);
    if (hook == Hook::xdp_native)
        options.flags = XDP_FLAGS_DRV_MODE;
    if (hook == Hook::xdp_generic)
        options.flags = XDP_FLAGS_SKB_MODE;
    const Fd link(bpf_link_create(program_fd, ifindex, attach_type(hook), &options));
    if (!link)
        return fail({.operation = "attach program",
                     .object = std::string(port) + " " + std::string(suffix(hook)),
                     .number = errno});
    if (bpf_obj_pin(link.get(), pin.c_str()) != 0)
        return fail({.operation = "pin link", .object = pin.string(), .number = errno});
    return {};
}

void remove_link(const Paths &paths, std::string_view port, Hook hook) {
    ::unlink((paths.links / link_name(port, hook)).c_str());
}

void rename_links(const Paths &paths, std::string_view from, std::string_view to) {
    for (const Hook hook : hooks)
        ::renameat2(AT_FDCWD, (paths.links / link_name(from, hook)).c_str(), AT_FDCWD,
                    (paths.links / link_name(to, hook)).c_str(), RENAME_NOREPLACE);
}

std::set<std::uint32_t> linked_programs(const Paths &paths) {
    std::set<std::uint32_t> ids;
    std::error_code ignored; // a directory that is gone holds no links
    for (const auto &entry : std::filesystem::directory_iterator(paths.links, ignored))
        if (const Fd link(bpf_obj_get(entry.path().c_str())); link)
            if (const bpf_link_info info = link_info(link.get()); info.prog_id != 0)
                ids.insert(info.prog_id);
    return ids;
}

std::vector<std::uint32_t> tcx_programs(int ifindex, Hook hook) {
    std::array<std::uint32_t, 64> ids{}; // as many as a hook takes
    auto count = static_cast<std::uint32_t>(ids.size());
    if (bpf_prog_query(ifindex, attach_type(hook), 0, nullptr, ids.data(), &count) != 0)
        return {};
    return {ids.begin(), ids.begin() + std::min<std::ptrdiff_t>(count, ids.size())};
}

void remove_other_links(const Paths &paths, const std::set<std::string> &keep) {
    std::error_code ignored; // a directory that is gone holds no links
    for (const auto &entry : std::filesystem::directory_iterator(paths.links, ignored))
        if (const std::string name = entry.path().filename(); is_link_name(name) && !keep.contains(name))
            ::unlink(entry.path().c_str());
}

} // namespace spillway
