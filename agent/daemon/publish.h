// SPDX-License-Identifier: Apache-2.0
/// Stores into mapped arrays, which BPF programs read at the same time.
#pragma once

#include <atomic>
#include <type_traits>

namespace spillway {

/// One aligned store; what was published before is seen before.
template <class T>
void publish(T &field, std::type_identity_t<T> value) {
    std::atomic_ref<T>(field).store(value, std::memory_order_release);
}

template <class T>
[[nodiscard]] T observe(T &field) {
    return std::atomic_ref<T>(field).load(std::memory_order_acquire);
}

} // namespace spillway
