// SPDX-License-Identifier: Apache-2.0
/// The BPF programs of an instance: loaded onto its pinned maps, which are made or taken over.
#pragma once

#include "agent/core/result.h"
#include "agent/kernel/instance.h"

#include <cstdint>
#include <memory>
#include <vector>

struct spillway_bpf;

namespace spillway {

struct ProgramOptions {
    bool kernel_read = false;                 ///< the TC program reads queues itself; needs CAP_PERFMON
    std::uint16_t ethertype = 0;              ///< of CIPs, host order
    std::uint32_t flow_capacity = 0;          ///< entries of `flows`
    bool table_full = false;                  ///< every flow has an entry
    std::vector<std::uint16_t> vxlan_ports{}; ///< UDP, up to SPILLWAY_VXLAN_PORTS_MAX

    friend bool operator==(const ProgramOptions &, const ProgramOptions &) = default;
};

/// Loaded programs. What is attached stays attached when they go out of scope: links hold their program.
class Programs {
  public:
    /// Loads the programs, makes or reuses the maps pinned at `paths` (whose lock the caller holds), pins the
    /// edit program and fills in settings.abi of new maps. Nothing running changes until links are updated to
    /// these programs. Fails when pinned maps are of another ABI or capacity (hint: purge), when there is no
    /// BTF, no privilege, or when the kernel refuses a program (its last words are in the error).
    static Result<Programs> load(const Paths &paths, const ProgramOptions &options);

    /// Loads the programs onto maps of their own, to see whether the kernel takes them. Nothing is pinned.
    static Result<Programs> load_unpinned(const ProgramOptions &options);

    Programs(Programs &&) noexcept;
    Programs &operator=(Programs &&) noexcept;
    ~Programs();

    [[nodiscard]] int isolate_fd() const; ///< TC egress
    [[nodiscard]] int ingress_fd() const; ///< TC ingress
    [[nodiscard]] int trap_fd() const;    ///< XDP
    /// Links can hold the TC programs; else they have to be filters.
    [[nodiscard]] bool tcx() const { return tcx_; }

  private:
    explicit Programs(spillway_bpf *skeleton);
    /// Not yet loaded.
    static Result<Programs> open(const ProgramOptions &options);
    /// 0, or a negative errno.
    int load_into_kernel();
    struct Destroy {
        void operator()(spillway_bpf *skeleton) const;
    };
    std::unique_ptr<spillway_bpf, Destroy> skeleton_;
    bool tcx_ = false;
};

} // namespace spillway
