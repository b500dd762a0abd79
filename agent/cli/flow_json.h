// SPDX-License-Identifier: Apache-2.0
/// What all JSON of this program says alike.
#pragma once

#include "agent/core/flow_text.h"

#include <nlohmann/json.hpp>

#include <optional>

namespace spillway {

template <class T>
nlohmann::ordered_json or_null(const std::optional<T> &value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

/// A flow's description: what is not part of it is null.
inline nlohmann::ordered_json flow_key_json(const spillway_flow_key &key) {
    using json = nlohmann::ordered_json;
    const bool ports = (key.flags & SPILLWAY_KEY_PORTS) != 0;
    return {{"family", key.family},
            {"proto", proto_text(key.proto)},
            {"src", address_text(key.family, key.src)},
            {"sport", ports ? json(key.sport) : json(nullptr)},
            {"dst", address_text(key.family, key.dst)},
            {"dport", ports ? json(key.dport) : json(nullptr)},
            {"vni", (key.flags & SPILLWAY_KEY_VNI) != 0 ? json(key.vni) : json(nullptr)}};
}

} // namespace spillway
