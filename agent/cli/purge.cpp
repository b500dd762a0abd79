// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/commands.h"

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
    else if (error.value() == ENOTEMPTY)
        failure.hint = "somebody else keeps something there; the instance's own is gone";
    return fail(std::move(failure));
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

    // Links first: without them no program runs, and no map is written any more.
    for (const auto &folder : {paths.links, paths.progs, paths.maps}) {
        std::filesystem::remove_all(folder, error);
        if (error)
            return cannot_remove(folder, error);
    }
    std::filesystem::remove(paths.root, error);
    if (error)
        return cannot_remove(paths.root, error);
    std::filesystem::remove(paths.root.parent_path(), error); // stays while another instance is there
    std::cout << fmt::format("instance {}: removed\n", paths.instance);
    return {};
}

} // namespace spillway
