// SPDX-License-Identifier: Apache-2.0
#include "agent/kernel/other_instances.h"

#include "agent/kernel/filters.h"
#include "agent/kernel/links.h"

#include <fmt/format.h>

#include <algorithm>

namespace spillway {

OtherInstances OtherInstances::find(const Paths &own) {
    OtherInstances found;
    found.own_ = own.instance;
    std::error_code ignored; // a folder that is gone holds nothing
    for (const auto &folder : std::filesystem::directory_iterator(own.root.parent_path(), ignored)) {
        const std::string name = folder.path().filename();
        if (name != own.instance)
            found.others_.push_back(name);
    }
    if (found.others_.empty())
        return found; // the usual case, at every change of the host
    const auto add = [&found](const Paths &paths) {
        for (const std::uint32_t id : linked_programs(paths))
            found.programs_[id] = paths.instance;
    };
    add(own);
    for (const std::string &name : found.others_)
        add(Paths(name));
    return found;
}

std::optional<std::string> OtherInstances::on(Netlink &netlink, int ifindex) const {
    if (others_.empty())
        return std::nullopt;
    const auto unless_own = [this](const std::string &name) {
        return name == own_ ? std::nullopt : std::optional(name);
    };
    for (const std::uint32_t id : tcx_programs(ifindex, Hook::egress))
        if (const auto program = programs_.find(id); program != programs_.end())
            return unless_own(program->second);
    const auto filters = netlink.filters(ifindex, clsact_hook(Hook::egress));
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
