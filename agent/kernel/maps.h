// SPDX-License-Identifier: Apache-2.0
/// The pinned maps of an instance (include/spillway/abi.h), opened by name, and the edit program.
#pragma once

#include "agent/core/fd.h"
#include "agent/core/result.h"
#include "agent/kernel/instance.h"

#include <spillway/abi.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace spillway {

using FlowEntries = std::vector<std::pair<spillway_flow_key, spillway_flow>>;
using UpstreamEntries = std::vector<std::pair<spillway_flow_key, spillway_upstream>>;
using Counters = std::map<std::pair<std::uint32_t, spillway_counter>, std::uint64_t>; ///< by (ifindex, what)

/// The slots of `ports`: those found by ifindex, then the ports that do not exist.
inline constexpr std::size_t port_slots = SPILLWAY_PORTS_MAX + SPILLWAY_ABSENT_MAX;

/// Their files in Paths::maps.
inline constexpr std::array<std::string_view, 9> map_names{
    "flows", "filter", "queues", "ports", "suspects", "upstream", "counters", "settings", "events"};

class Maps {
  public:
    /// Fails with no_data_path when the maps are not there, or nobody has filled in `settings` yet; with a
    /// hint at `purge` when they are of another layout. Only edit() needs the edit program.
    static Result<Maps> open(const Paths &paths);

    /// The mapped arrays. They live as long as this object; fields change under the reader.
    [[nodiscard]] spillway_settings *settings() const;
    [[nodiscard]] std::span<spillway_queue> queues() const;
    [[nodiscard]] std::span<spillway_port> ports() const;

    [[nodiscard]] int flows_fd() const { return flows_.get(); }
    [[nodiscard]] int upstream_fd() const { return upstream_.get(); }
    [[nodiscard]] int counters_fd() const { return counters_.get(); }
    [[nodiscard]] int suspects_fd() const { return suspects_.get(); }
    [[nodiscard]] int events_fd() const { return events_.get(); }

    /// Entries that `flows` has room for.
    [[nodiscard]] std::uint32_t flows_capacity() const { return flows_capacity_; }

    /// All entries of a hash, no key twice. Entries that come or go meanwhile may or may not be among them.
    [[nodiscard]] Result<FlowEntries> read_flows() const;
    [[nodiscard]] Result<UpstreamEntries> read_upstreams() const;
    [[nodiscard]] Result<Counters> read_counters() const;

    /// Has the edit program make one change; `change.abi` is filled in here.
    [[nodiscard]] Result<spillway_edit_result> edit(spillway_edit change) const;
    /// Has the edit program decide, on what is true now, whether the flow's mark ends.
    [[nodiscard]] Result<spillway_edit_result> step(const spillway_flow_key &key) const;

  private:
    /// A mapped array; unmapped by scope.
    class Mapping {
      public:
        Mapping() = default;
        Mapping(void *start, std::size_t bytes) : start_(start), bytes_(bytes) {}
        Mapping(Mapping &&other) noexcept
            : start_(std::exchange(other.start_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
        Mapping &operator=(Mapping &&other) noexcept {
            std::swap(start_, other.start_);
            std::swap(bytes_, other.bytes_);
            return *this;
        }
        Mapping(const Mapping &) = delete;
        Mapping &operator=(const Mapping &) = delete;
        ~Mapping();

        [[nodiscard]] void *start() const { return start_; }

      private:
        void *start_ = nullptr;
        std::size_t bytes_ = 0;
    };

    Maps() = default;
    static Result<Mapping> map_array(const Fd &fd, std::size_t value_size, std::size_t entries,
                                     std::string_view name);

    Fd flows_;
    Fd upstream_;
    Fd counters_;
    Fd suspects_;
    Fd events_;
    Fd edit_;
    std::uint32_t flows_capacity_ = 0;
    Mapping settings_;
    Mapping queues_;
    Mapping ports_;
};

} // namespace spillway
