// SPDX-License-Identifier: Apache-2.0
#include "agent/kernel/programs.h"

#include "agent/core/fd.h"
#include "agent/kernel/features.h"

#include <spillway/abi.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fmt/format.h>
#include <spillway_bpf.skel.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <span>
#include <string>

namespace spillway {
namespace {

/// What libbpf and the verifier said last; libbpf's printer is global and takes no context.
std::string last_words; // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

int keep_last_words(libbpf_print_level level, const char *format, va_list arguments) {
    if (level == LIBBPF_DEBUG)
        return 0;
    std::array<char, 1024> line{};
    const int length = std::vsnprintf(line.data(), line.size(), format, arguments);
    if (last_words.size() < 65536)
        last_words += line.data();
    return length;
}

/// The line that tells most: the verifier's last one before its statistics, else libbpf's first.
std::string reason_of(const std::string &words) {
    std::string best;
    std::size_t at = 0;
    while (at < words.size()) {
        const std::size_t end = std::min(words.find('\n', at), words.size());
        const std::string line = words.substr(at, end - at);
        if (line.find("processed ") == 0 || line.find("-- END") != std::string::npos)
            break;
        if (!line.empty())
            best = line;
        at = end + 1;
    }
    return best;
}

Error load_error(int number) {
    Error error{.operation = "load BPF programs", .number = number};
    if (::access("/sys/kernel/btf/vmlinux", R_OK) != 0) {
        error.detail = "the kernel has no type information (/sys/kernel/btf/vmlinux)";
        error.hint = "use a kernel built with CONFIG_DEBUG_INFO_BTF=y";
    } else if (number == EPERM || number == EACCES) {
        error.detail = reason_of(last_words);
        error.hint = privilege_hint;
    } else {
        error.detail = reason_of(last_words);
    }
    return error;
}

std::string purge(const Paths &paths) {
    return fmt::format("`spillway --instance {} purge`", paths.instance);
}

/// Pinned maps of another layout are reported, never rebuilt: they hold marks.
Result<> check_pinned(const Paths &paths, std::uint32_t capacity) {
    const Fd settings(bpf_obj_get((paths.maps / "settings").c_str()));
    if (!settings) {
        if (errno == ENOENT)
            return {};
        return fail({.operation = "open pinned map",
                     .object = (paths.maps / "settings").string(),
                     .number = errno,
                     .hint = std::string(privilege_hint)});
    }
    bpf_map_info info{};
    std::uint32_t size = sizeof(info);
    std::uint32_t abi = 0;
    std::array<std::byte, 4096> value{};
    const std::uint32_t zero = 0;
    if (bpf_obj_get_info_by_fd(settings.get(), &info, &size) == 0 && info.value_size <= value.size() &&
        bpf_map_lookup_elem(settings.get(), &zero, value.data()) == 0)
        std::memcpy(&abi, value.data(), sizeof(abi));
    if (info.value_size != sizeof(spillway_settings) || (abi != 0 && abi != SPILLWAY_ABI))
        return fail({.operation = "open pinned maps",
                     .object = paths.maps.string(),
                     .detail = fmt::format("they have layout {}, this program has {}", abi, SPILLWAY_ABI),
                     .hint = fmt::format("{} removes them and every mark; or run the version that made them",
                                         purge(paths))});
    const Fd flows(bpf_obj_get((paths.maps / "flows").c_str()));
    if (flows && bpf_obj_get_info_by_fd(flows.get(), &info, &size) == 0 && info.max_entries != capacity)
        return fail({.operation = "open pinned maps",
                     .object = paths.maps.string(),
                     .detail = fmt::format("the flow table holds {} entries, the configuration wants {}",
                                           info.max_entries, capacity),
                     .hint = fmt::format("{}, then start again; or keep flows.capacity", purge(paths)),
                     .kind = ErrorKind::usage});
    return {};
}

/// New maps get their ABI number at once, so that nobody takes them for half-made ones.
Result<> write_abi(const bpf_map *settings) {
    const int fd = bpf_map__fd(settings);
    const std::uint32_t zero = 0;
    spillway_settings value{};
    if (bpf_map_lookup_elem(fd, &zero, &value) == 0 && value.abi == SPILLWAY_ABI)
        return {};
    value.abi = SPILLWAY_ABI;
    if (bpf_map_update_elem(fd, &zero, &value, BPF_ANY) != 0)
        return fail({.operation = "write settings", .number = errno});
    return {};
}

/// Replaces what is pinned at `path`, never leaving nothing there.
Result<> pin_program(int fd, const std::filesystem::path &path) {
    const std::filesystem::path fresh = path.string() + "_new";
    ::unlink(fresh.c_str());
    if (bpf_obj_pin(fd, fresh.c_str()) != 0 || ::rename(fresh.c_str(), path.c_str()) != 0)
        return fail({.operation = "pin program", .object = path.string(), .number = errno});
    return {};
}

} // namespace

Programs::Programs(spillway_bpf *skeleton) : skeleton_(skeleton) {}
Programs::Programs(Programs &&) noexcept = default;
Programs &Programs::operator=(Programs &&) noexcept = default;
Programs::~Programs() = default;
void Programs::Destroy::operator()(spillway_bpf *skeleton) const {
    spillway_bpf__destroy(skeleton);
}

Result<Programs> Programs::open(const ProgramOptions &options) {
    libbpf_set_print(keep_last_words);
    last_words.clear();
    Programs programs(spillway_bpf__open());
    spillway_bpf *skeleton = programs.skeleton_.get();
    if (skeleton == nullptr)
        return fail(load_error(errno));
    if (options.kernel_read)
        skeleton->rodata->kernel_read =
            has_kernel_function("bpf_cast_to_kern_ctx") ? SPILLWAY_READ_BY_POINTER : SPILLWAY_READ_BY_HELPER;
    skeleton->rodata->cip_ethertype = options.ethertype;
    skeleton->rodata->table_full = options.table_full ? 1 : 0;
    auto &vxlan_ports = skeleton->rodata->tunnels.vxlan_ports;
    std::ranges::fill(vxlan_ports, std::uint16_t{0});
    std::ranges::copy(
        std::span(options.vxlan_ports).first(std::min(options.vxlan_ports.size(), std::size(vxlan_ports))),
        std::begin(vxlan_ports));
    bpf_map__set_max_entries(skeleton->maps.flows, options.flow_capacity);
    bpf_map__set_max_entries(skeleton->maps.upstream, options.flow_capacity);
    if (has_xdp_frags())
        bpf_program__set_flags(skeleton->progs.spillway_trap, xdp_has_frags);
    last_words.clear();
    return programs;
}

int Programs::load_into_kernel() {
    const int error = spillway_bpf__load(skeleton_.get());
    if (error == 0)
        tcx_ = has_tcx(isolate_fd());
    return error;
}

Result<Programs> Programs::load_unpinned(const ProgramOptions &options) {
    auto programs = open(options);
    if (!programs)
        return programs;
    if (const int error = programs->load_into_kernel(); error != 0)
        return fail(load_error(-error));
    return programs;
}

Result<Programs> Programs::load(const Paths &paths, const ProgramOptions &options) {
    if (auto checked = check_pinned(paths, options.flow_capacity); !checked)
        return std::unexpected(checked.error());
    auto programs = open(options);
    if (!programs)
        return programs;
    spillway_bpf *skeleton = programs->skeleton_.get();
    for (bpf_map *map : {skeleton->maps.flows, skeleton->maps.filter, skeleton->maps.queues,
                         skeleton->maps.ports, skeleton->maps.suspects, skeleton->maps.upstream,
                         skeleton->maps.counters, skeleton->maps.settings, skeleton->maps.events})
        if (bpf_map__set_pin_path(map, (paths.maps / bpf_map__name(map)).c_str()) != 0)
            return fail({.operation = "choose pin path", .object = bpf_map__name(map), .number = errno});
    if (const int error = programs->load_into_kernel(); error != 0) {
        Error failed = load_error(-error);
        if (error == -EINVAL && ::access((paths.maps / "settings").c_str(), F_OK) == 0)
            failed.hint =
                fmt::format("pinned maps may be damaged; {} removes them and every mark", purge(paths));
        return fail(std::move(failed));
    }
    if (auto written = write_abi(skeleton->maps.settings); !written)
        return std::unexpected(written.error());
    if (auto pinned = pin_program(bpf_program__fd(skeleton->progs.spillway_edit), paths.progs / "edit");
        !pinned)
        return std::unexpected(pinned.error());
    return programs;
}

int Programs::isolate_fd() const {
    return bpf_program__fd(skeleton_->progs.spillway_isolate);
}
int Programs::ingress_fd() const {
    return bpf_program__fd(skeleton_->progs.spillway_ingress);
}
int Programs::trap_fd() const {
    return bpf_program__fd(skeleton_->progs.spillway_trap);
}

} // namespace spillway
