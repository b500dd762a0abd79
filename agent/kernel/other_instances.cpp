// SPDX-License-Identifier: Apache-2.0
#include "agent/kernel/other_instances.h"

#include "agent/core/fd.h"
#include "agent/kernel/filters.h"
#include "agent/kernel/tcx.h"

#include <bpf/bpf.h>
#include <fmt/format.h>
#include <linux/pkt_sched.h>

#include <algorithm>
#include <array>

namespace spillway {
namespace {

/// Programs on the port's tcx egress hook, in the order in which they run. Interface numbers are those of one
/// network namespace, ids of programs those of the machine.
std::vector<std::uint32_t> programs_at(int ifindex) {
    std::array<std::uint32_t, 64> ids{}; // as many as a hook takes
    auto count = static_cast<std::uint32_t>(ids.size());
    if (bpf_prog_query(ifindex, tcx_egress, 0, nullptr, ids.data(), &count) != 0)
        return {}; // no tcx here
    return {ids.begin(), ids.begin() + std::min<std::ptrdiff_t>(count, ids.size())};
}

bool is_filter_of(const TcFilter &filter, std::string_view instance) {
    return filter.kind == "bpf" && filter.priority == filter_priority &&
           (filter.handle == filter_handle(instance, true) ||
            filter.handle == filter_handle(instance, false));
}

} // namespace

OtherInstances OtherInstances::find(const Paths &own) {
    OtherInstances found;
    found.own_ = own.instance;
    std::error_code ignored; // a folder that is gone holds nothing
    for (const auto &folder : std::filesystem::directory_iterator(own.root.parent_path(), ignored)) {
        const std::string name = folder.path().filename();
        if (name != own.instance)
            found.others_.push_back(name);
        for (const auto &entry : std::filesystem::directory_iterator(Paths(name).links, ignored)) {
            const Fd link(bpf_obj_get(entry.path().c_str()));
            bpf_link_info info{};
            std::uint32_t size = sizeof(info);
            if (link && bpf_obj_get_info_by_fd(link.get(), &info, &size) == 0)
                found.programs_[info.prog_id] = name;
        }
    }
    return found;
}

std::optional<std::string> OtherInstances::on(Netlink &netlink, int ifindex) const {
    if (others_.empty())
        return std::nullopt;
    const auto unless_own = [this](const std::string &name) {
        return name == own_ ? std::nullopt : std::optional(name);
    };
    for (const std::uint32_t id : programs_at(ifindex))
        if (const auto program = programs_.find(id); program != programs_.end())
            return unless_own(program->second);
    const auto filters = netlink.filters(ifindex, TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_EGRESS));
    for (const TcFilter &filter : filters.value_or(std::vector<TcFilter>{})) {
        if (is_filter_of(filter, own_))
            return std::nullopt;
        const auto other = std::ranges::find_if(
            others_, [&filter](const std::string &name) { return is_filter_of(filter, name); });
        if (other != others_.end())
            return *other;
    }
    return std::nullopt;
}

std::string other_instance_text(const std::string &other) {
    return fmt::format("it belongs to instance {} of spillway", other);
}

std::string other_instance_hint(const std::string &other) {
    return fmt::format("take the port out of one of the two configurations, or remove that instance with "
                       "`spillway --instance {} purge`",
                       other);
}

} // namespace spillway
