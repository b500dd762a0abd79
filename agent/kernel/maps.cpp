// SPDX-License-Identifier: Apache-2.0
#include "agent/kernel/maps.h"

#include <bpf/bpf.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <unistd.h>

namespace spillway {
namespace {

/// What a map of this layout looks like; entries 0: any number.
struct Shape {
    std::string_view name;
    std::uint32_t key_size;
    std::uint32_t value_size;
    std::uint32_t entries;
};

constexpr Shape flows_shape{"flows", sizeof(spillway_flow_key), sizeof(spillway_flow), 0};
constexpr Shape upstream_shape{"upstream", sizeof(spillway_flow_key), sizeof(spillway_upstream), 0};
constexpr Shape counters_shape{"counters", sizeof(spillway_counter_key), sizeof(std::uint64_t), 0};
constexpr Shape suspects_shape{"suspects", 4, sizeof(spillway_suspect), SPILLWAY_SUSPECTS};
constexpr Shape queues_shape{"queues", 4, sizeof(spillway_queue), SPILLWAY_QUEUES_MAX};
constexpr Shape ports_shape{"ports", 4, sizeof(spillway_port), static_cast<std::uint32_t>(port_slots)};
constexpr Shape settings_shape{"settings", 4, sizeof(spillway_settings), 1};
constexpr Shape events_shape{"events", 0, 0, 0};

struct OpenMap {
    Fd fd;
    std::uint32_t entries;
};

std::unexpected<Error> no_data_path(const Paths &paths, std::string detail) {
    return fail({.operation = fmt::format("instance {}", paths.instance),
                 .detail = std::move(detail),
                 .hint = fmt::format("start the agent: spillway --instance {} agent", paths.instance),
                 .kind = ErrorKind::no_data_path});
}

std::unexpected<Error> other_layout(const Paths &paths, std::string_view what) {
    return fail({.operation = fmt::format("instance {}", paths.instance),
                 .detail = fmt::format("{} is of another version of spillway", what),
                 .hint = fmt::format("stop the agent of that version and remove its data path: "
                                     "spillway --instance {} purge",
                                     paths.instance)});
}

/// A pinned map or program.
Result<Fd> open_pin(const Paths &paths, const std::filesystem::path &pin) {
    Fd fd(::bpf_obj_get(pin.c_str()));
    if (fd)
        return fd;
    const int number = errno;
    if (number == ENOENT || number == ENOTDIR)
        return no_data_path(paths, fmt::format("no data path ({} is not there)", pin.native()));
    return fail({.operation = "open",
                 .object = pin,
                 .number = number,
                 .hint = number == EACCES || number == EPERM ? std::string(privilege_hint) : ""});
}

Result<OpenMap> open_map(const Paths &paths, const Shape &shape) {
    auto fd = open_pin(paths, paths.maps / shape.name);
    if (!fd)
        return fail(fd.error());
    bpf_map_info info{};
    std::uint32_t length = sizeof(info);
    if (::bpf_obj_get_info_by_fd(fd->get(), &info, &length) != 0)
        return fail({.operation = "look at map", .object = std::string(shape.name), .number = errno});
    if (info.key_size != shape.key_size || info.value_size != shape.value_size ||
        (shape.entries != 0 && info.max_entries != shape.entries))
        return other_layout(paths, fmt::format("map {}", shape.name));
    return OpenMap{std::move(*fd), info.max_entries};
}

std::unexpected<Error> cannot_read(std::string_view name, int number) {
    return fail({.operation = "read map",
                 .object = std::string(name),
                 .number = number,
                 .hint = number == EACCES || number == EPERM ? std::string(privilege_hint) : ""});
}

/// All entries, a batch a call. The kernel gives whole buckets, so no key comes twice.
template <class Key, class Value>
Result<std::vector<std::pair<Key, Value>>> read_hash(int fd, const Shape &shape) {
    constexpr std::size_t largest_batch = 1U << 20U;
    constexpr int most_retries = 10;
    std::vector<std::pair<Key, Value>> entries;
    std::vector<Key> keys(1024);
    std::vector<Value> values(keys.size());
    std::array<std::byte, sizeof(Key)> position{};
    bool first = true;
    for (int retries = 0;;) {
        auto count = static_cast<std::uint32_t>(keys.size());
        std::array<std::byte, sizeof(Key)> next{};
        const int result = ::bpf_map_lookup_batch(fd, first ? nullptr : position.data(), next.data(),
                                                  keys.data(), values.data(), &count, nullptr);
        if (result == -ENOSPC && keys.size() < largest_batch) { // one bucket holds more than the buffer
            keys.resize(keys.size() * 2);
            values.resize(keys.size());
            continue;
        }
        if ((result == -EAGAIN || result == -EINTR) && ++retries < most_retries)
            continue;
        if (result != 0 && result != -ENOENT)
            return cannot_read(shape.name, -result);
        for (std::size_t i = 0; i < count; i++)
            entries.emplace_back(keys[i], values[i]);
        if (result == -ENOENT)
            return entries;
        position = next;
        first = false;
    }
}

} // namespace

Maps::Mapping::~Mapping() {
    if (start_)
        ::munmap(start_, bytes_);
}

Result<Maps::Mapping> Maps::map_array(const Fd &fd, std::size_t value_size, std::size_t entries,
                                      std::string_view name) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t used = (value_size + 7) / 8 * 8 * entries;
    const std::size_t bytes = (used + page - 1) / page * page;
    void *start = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (start == MAP_FAILED)
        return fail({.operation = "map into memory", .object = std::string(name), .number = errno});
    return Mapping(start, bytes);
}

Result<Maps> Maps::open(const Paths &paths) {
    Maps maps;
    const auto open_hash = [&paths](const Shape &shape, Fd &fd, std::uint32_t &entries) -> Result<> {
        auto opened = open_map(paths, shape);
        if (!opened)
            return fail(opened.error());
        fd = std::move(opened->fd);
        entries = opened->entries;
        return {};
    };
    const auto open_array = [&paths](const Shape &shape, Mapping &mapping) -> Result<> {
        auto opened = open_map(paths, shape);
        if (!opened)
            return fail(opened.error());
        auto mapped = map_array(opened->fd, shape.value_size, shape.entries, shape.name);
        if (!mapped)
            return fail(mapped.error());
        mapping = std::move(*mapped);
        return {};
    };

    if (auto done = open_array(settings_shape, maps.settings_); !done)
        return fail(done.error());
    const std::uint32_t abi = maps.settings()->abi;
    if (abi == 0)
        return no_data_path(paths, "no agent has set up its data path yet");
    if (abi != SPILLWAY_ABI)
        return other_layout(
            paths, fmt::format("the data path (layout {}, this program's is {})", abi, SPILLWAY_ABI));
    std::uint32_t entries = 0;
    for (auto &&done :
         {open_hash(flows_shape, maps.flows_, maps.flows_capacity_),
          open_hash(upstream_shape, maps.upstream_, entries),
          open_hash(counters_shape, maps.counters_, entries),
          open_hash(suspects_shape, maps.suspects_, entries), open_hash(events_shape, maps.events_, entries),
          open_array(queues_shape, maps.queues_), open_array(ports_shape, maps.ports_)}) {
        if (!done)
            return fail(done.error());
    }
    auto edit = open_pin(paths, paths.progs / "edit");
    if (edit)
        maps.edit_ = std::move(*edit);
    else if (edit.error().kind != ErrorKind::no_data_path)
        return fail(edit.error());
    return maps;
}

spillway_settings *Maps::settings() const {
    return static_cast<spillway_settings *>(settings_.start());
}

std::span<spillway_queue> Maps::queues() const {
    return {static_cast<spillway_queue *>(queues_.start()), SPILLWAY_QUEUES_MAX};
}

std::span<spillway_port> Maps::ports() const {
    return {static_cast<spillway_port *>(ports_.start()), port_slots};
}

Result<FlowEntries> Maps::read_flows() const {
    return read_hash<spillway_flow_key, spillway_flow>(flows_.get(), flows_shape);
}

Result<UpstreamEntries> Maps::read_upstreams() const {
    return read_hash<spillway_flow_key, spillway_upstream>(upstream_.get(), upstream_shape);
}

Result<Counters> Maps::read_counters() const {
    auto entries = read_hash<spillway_counter_key, std::uint64_t>(counters_.get(), counters_shape);
    if (!entries)
        return fail(entries.error());
    Counters counters;
    for (const auto &[key, value] : *entries)
        counters[{key.port, key.counter}] = value;
    return counters;
}

Result<spillway_edit_result> Maps::edit(spillway_edit change) const {
    if (!edit_)
        return fail({.operation = "change flows",
                     .detail = "the instance has no edit program",
                     .hint = "start the agent: spillway agent",
                     .kind = ErrorKind::no_data_path});
    change.abi = SPILLWAY_ABI;
    LIBBPF_OPTS(bpf_test_run_opts, options, .data_in = &change, .data_size_in = sizeof(change), .repeat = 1);
    if (const int result = ::bpf_prog_test_run_opts(edit_.get(), &options); result != 0)
        return fail({.operation = "run program",
                     .object = "edit",
                     .number = -result,
                     .hint = result == -EPERM ? std::string(privilege_hint) : ""});
    return options.retval <= SPILLWAY_EDIT_EXISTS ? static_cast<spillway_edit_result>(options.retval)
                                                  : SPILLWAY_EDIT_BAD;
}

Result<spillway_edit_result> Maps::step(const spillway_flow_key &key) const {
    spillway_edit change{};
    change.op = SPILLWAY_EDIT_STEP;
    change.key = key;
    return edit(change);
}

} // namespace spillway
