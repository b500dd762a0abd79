// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/commands.h"
#include "agent/kernel/filters.h"
#include "agent/kernel/links.h"
#include "agent/kernel/maps.h"

#include <algorithm>
#include <cerrno>
#include <fmt/format.h>
#include <iostream>
#include <system_error>

namespace spillway {
namespace {

std::unexpected<Error> cannot_remove(const std::filesystem::path &path, const std::error_code &error) {
    Error failure{.operation = "remove", .object = path, .number = error.value()};
    if (error.value() == EACCES || error.value() == EPERM)
        failure.hint = privilege_hint;
    return fail(std::move(failure));
}

bool is_program(std::string_view name) {
    return name == "edit" || name == "edit_new"; // the latter for an instant, see Programs::load()
}

bool is_map(std::string_view name) {
    return std::ranges::find(map_names, name) != map_names.end();
}

/// Removes what is the instance's own from one of its folders, and the folder if nothing else is in it.
Result<> empty(const std::filesystem::path &folder, bool (*ours)(std::string_view name)) {
    std::error_code error; // a folder that is not there holds nothing
    for (const auto &entry : std::filesystem::directory_iterator(folder, error)) {
        if (entry.is_directory(error) || !ours(entry.path().filename().native()))
            continue;
        std::filesystem::remove(entry.path(), error);
        if (error)
            return cannot_remove(entry.path(), error);
    }
    std::filesystem::remove(folder, error);
    if (error && error.value() != ENOTEMPTY)
        return cannot_remove(folder, error);
    return {};
}

} // namespace

Result<> run_purge(const Context &context) {
    const Paths paths(context.instance);
    std::error_code error;
    const bool there = std::filesystem::exists(paths.root, error);
    if (error)
        return fail({.operation = "look at",
                     .object = paths.root,
                     .number = error.value(),
                     .hint = std::string(privilege_hint)});
    if (!there) {
        std::cout << fmt::format("instance {}: nothing to remove\n", paths.instance);
        return {};
    }
    const auto lock = lock_instance(paths);
    if (!lock) {
        Error refused = lock.error();
        if (agent_running(paths))
            refused.hint = "stop it first; nothing was removed";
        return fail(std::move(refused));
    }

    if (auto netlink = Netlink::open())
        for (const LinkInfo &link : netlink->links().value_or(std::vector<LinkInfo>{}))
            remove_filters(*netlink, paths.instance, link.ifindex);
    // Links first: without them no program runs, and no map is written any more.
    for (auto &&done :
         {empty(paths.links, is_link_name), empty(paths.progs, is_program), empty(paths.maps, is_map)})
        if (!done)
            return done;
    std::filesystem::remove(paths.root, error);
    if (error && error.value() != ENOTEMPTY)
        return cannot_remove(paths.root, error);
    const bool stays = static_cast<bool>(error);
    std::filesystem::remove(paths.root.parent_path(), error); // stays while another instance is there
    std::cout << fmt::format("instance {}: removed{}\n", paths.instance,
                             stays ? fmt::format("; what is not its own stays in {}", paths.root.native())
                                   : "");
    return {};
}

} // namespace spillway
