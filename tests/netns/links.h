// SPDX-License-Identifier: Apache-2.0
/// The links that an instance has pinned.
#pragma once

#include "agent/core/fd.h"
#include "tests/netns/fixture.h"

#include <bpf/bpf.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace spillway::lab {

/// Their ids, by their file names.
inline std::map<std::string, std::uint32_t> link_ids(const Agent &agent) {
    std::map<std::string, std::uint32_t> ids;
    for (const auto &entry :
         std::filesystem::directory_iterator("/sys/fs/bpf/spillway/" + agent.instance() + "/links")) {
        const Fd link(bpf_obj_get(entry.path().c_str()));
        bpf_link_info info{};
        std::uint32_t size = sizeof(info);
        if (link && bpf_obj_get_info_by_fd(link.get(), &info, &size) == 0)
            ids[entry.path().filename()] = info.id;
    }
    return ids;
}

} // namespace spillway::lab
