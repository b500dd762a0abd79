// SPDX-License-Identifier: Apache-2.0
#include "tests/prog/rig.h"

#include "agent/core/clock.h"
#include "agent/core/flow_text.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fmt/format.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <numeric>
#include <stdexcept>

namespace spillway::prog {
namespace {

constexpr const char *prefix = "prog-";

[[noreturn]] void fail_with(const std::string &what, int number = 0) {
    throw std::runtime_error(number == 0 ? what : fmt::format("{}: {}", what, std::strerror(number)));
}

template <class T>
T must(Result<T> result) {
    if (!result)
        fail_with(result.error().text());
    if constexpr (!std::is_void_v<T>)
        return std::move(*result);
}

/// `ip -batch` or `tc -batch` in the thread's namespace.
void batch(const std::string &program, const std::string &lines) {
    FILE *pipe = ::popen((program + " -batch - >/dev/null").c_str(), "we");
    if (pipe == nullptr)
        fail_with(program, errno);
    const bool written = std::fputs(lines.c_str(), pipe) >= 0;
    if (::pclose(pipe) != 0 || !written)
        fail_with(fmt::format("{} refused one of:\n{}", program, lines));
}

void remove_pins(const std::filesystem::path &root) {
    std::error_code ignored; // what is not there need not go
    std::filesystem::remove_all(root, ignored);
}

template <class Key>
void remove_all(int map) {
    Key key{};
    while (bpf_map_get_next_key(map, nullptr, &key) == 0)
        bpf_map_delete_elem(map, &key);
}

template <class Value>
void clear_array(int map, std::uint32_t entries) {
    std::vector<std::uint32_t> keys(entries);
    std::iota(keys.begin(), keys.end(), 0U);
    const std::vector<Value> values(entries);
    if (const int error = bpf_map_update_batch(map, keys.data(), values.data(), &entries, nullptr);
        error != 0)
        fail_with("clear a map", -error);
}

/// A new instance name; what killed tests left behind is taken away.
std::string new_instance() {
    static int number = 0;
    std::error_code none_yet;
    for (const auto &entry : std::filesystem::directory_iterator(Paths("x").root.parent_path(), none_yet)) {
        int pid = 0;
        if (std::sscanf(entry.path().filename().c_str(), "prog-%d-", &pid) == 1 && ::kill(pid, 0) != 0 &&
            errno == ESRCH)
            remove_pins(entry.path());
    }
    return fmt::format("{}{}-{}", prefix, ::getpid(), number++);
}

Run run(int program, const Bytes &packet, void *context, std::uint32_t context_size, int repeat) {
    Run result;
    result.packet.resize(packet.size() + 256);
    LIBBPF_OPTS(bpf_test_run_opts, options, .data_in = packet.data(), .data_out = result.packet.data(),
                .data_size_in = static_cast<std::uint32_t>(packet.size()),
                .data_size_out = static_cast<std::uint32_t>(result.packet.size()), .ctx_in = context,
                .ctx_out = context, .ctx_size_in = context_size, .ctx_size_out = context_size,
                .repeat = repeat);
    if (const int error = bpf_prog_test_run_opts(program, &options); error != 0)
        fail_with("BPF_PROG_TEST_RUN", -error);
    result.verdict = static_cast<int>(options.retval);
    result.duration_ns = options.duration;
    result.packet.resize(options.data_size_out);
    return result;
}

} // namespace

Run run_tc(int program, const Bytes &packet, __sk_buff &context, int repeat) {
    return run(program, packet, &context, sizeof(context), repeat);
}

Run run_xdp(int program, const Bytes &packet, xdp_md &context, int repeat) {
    return run(program, packet, &context, sizeof(context), repeat);
}

spillway_flow_key key_of(const std::string &text, std::uint32_t port) {
    const std::array<std::string, 1> words{text};
    spillway_flow_key key = must(parse_flow(words));
    key.port = port;
    return key;
}

/// The kernel takes longer to verify the programs than a test lasts.
struct Loaded {
    Loaded(Source source, Table table)
        : paths(new_instance()), lock(must(lock_instance(paths))),
          programs(must(Programs::load(paths, {.kernel_read = source == Source::kernel,
                                               .ethertype = SPILLWAY_CIP_ETHERTYPE,
                                               .flow_capacity = 16384,
                                               .table_full = table == Table::full,
                                               .vxlan_ports = {SPILLWAY_VXLAN_PORT}}))),
          maps(must(Maps::open(paths))), filter(bpf_obj_get((paths.maps / "filter").c_str())) {}
    ~Loaded() { remove_pins(paths.root); }
    Loaded(const Loaded &) = delete;
    Loaded &operator=(const Loaded &) = delete;

    void empty() {
        const std::uint32_t abi = maps.settings()->abi;
        *maps.settings() = {};
        maps.settings()->abi = abi;
        std::ranges::fill(maps.queues(), spillway_queue{});
        std::ranges::fill(maps.ports(), spillway_port{});
        remove_all<spillway_flow_key>(maps.flows_fd());
        remove_all<spillway_flow_key>(maps.upstream_fd());
        remove_all<spillway_counter_key>(maps.counters_fd());
        clear_array<std::uint32_t>(filter.get(), SPILLWAY_FILTER_SLOTS);
        clear_array<spillway_suspect>(maps.suspects_fd(), SPILLWAY_SUSPECTS);
    }

    Paths paths;
    Fd lock;
    Programs programs;
    Maps maps;
    Fd filter;
};

namespace {

Loaded &loaded(Source source, Table table) {
    if (::geteuid() != 0)
        fail_with("tests of the BPF programs load them into the kernel: run as root");
    must(ensure_bpffs());
    static std::map<std::pair<Source, Table>, Loaded> all;
    return all.try_emplace({source, table}, source, table).first->second;
}

} // namespace

Rig::Rig(Source source, Table table)
    : source_(source), loaded_(loaded(source, table)), maps_(&loaded_.maps),
      ring_(nullptr, ring_buffer__free) {
    make_ports();
    netlink_ = must(Netlink::open());
    loaded_.empty();
    fill_maps();
    const auto take = [](void *rig, void *data, std::size_t) {
        static_cast<Rig *>(rig)->events_.push_back(*static_cast<const spillway_event *>(data));
        return 0;
    };
    ring_.reset(ring_buffer__new(maps_->events_fd(), take, this, nullptr));
    if (!ring_)
        fail_with("open the event ring", errno);
    events(); // those of an earlier rig
    for (const std::uint32_t classid : {normal, second, isolation, second_isolation}) {
        if (source_ == Source::kernel)
            send(classid, 1000); // leaves at once, and puts the class into debt for the next minute
        hold(classid, 0);
    }
}

void Rig::make_ports() {
    if (::unshare(CLONE_NEWNET) != 0)
        fail_with("make a network namespace", errno);
    if (FILE *file = std::fopen("/proc/sys/net/ipv6/conf/default/disable_ipv6", "we")) {
        std::fputs("1", file); // nothing may be sent but by the test
        std::fclose(file);
    }
    batch("ip", "link add d0 address 02:00:00:00:00:02 type veth peer name d1\n"
                "link set d0 up\n"
                "link set d1 up\n");
    // A byte a second: what is in debt waits for minutes.
    std::string tree = "qdisc add dev d0 root handle 1: htb default 10\n";
    for (const char *minor : {"5", "10", "11", "20", "21"})
        tree +=
            fmt::format("class add dev d0 parent 1: classid 1:{} htb rate 8bit ceil 8bit burst 1 cburst 1 "
                        "quantum 1514\n",
                        minor);
    for (const char *minor : {"10", "20", "21"}) // 1:11 keeps the leaf that HTB gave it
        tree += fmt::format("qdisc add dev d0 parent 1:{0} handle {0}: pfifo limit 1000\n", minor);
    batch("tc", tree);
    ifindex_ = ::if_nametoindex("d0");
    other_ifindex_ = ::if_nametoindex("d1");
    socket_ = Fd(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0));
    sockaddr_ll address{};
    address.sll_family = AF_PACKET;
    address.sll_ifindex = static_cast<int>(ifindex_);
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): how sockets take addresses
    if (::bind(socket_.get(), reinterpret_cast<const sockaddr *>(&address), sizeof(address)) != 0)
        fail_with("open a packet socket", errno);
}

spillway_leaf Rig::leaf_of(std::uint32_t classid) {
    for (const Qdisc &qdisc : must(netlink_->qdiscs(static_cast<int>(ifindex_))))
        if (qdisc.parent == classid) {
            spillway_leaf leaf{};
            leaf.classid = classid;
            leaf.handle = qdisc.handle;
            leaf.parent = qdisc.parent;
            leaf.bucket = (qdisc.handle * 0x61C88647U) >> 28U; // the kernel's hash_32() to four bits
            leaf.generation = 1;
            leaf.positions = 1;
            return leaf;
        }
    fail_with(fmt::format("class {:x} has no leaf", classid));
}

void Rig::fill_maps() {
    const std::uint64_t now = now_ns();
    constexpr std::uint64_t hour = 3'600'000'000'000;
    spillway_settings &set = settings();
    set.stale_ns = hour;
    set.stale_agent_ns = hour;
    set.idle_ns = hour;
    set.clear_ns = hour;
    set.life_ns = hour;
    set.window_ns = now / 3 * 2; // window 1, and far from its ends
    set.quota = 16384;
    set.unmarked_quota = 12288;
    set.heartbeat_ns = now;

    spillway_port &mine = port();
    mine.ifindex = ifindex_;
    std::snprintf(mine.name, sizeof(mine.name), "d0");
    mine.mac[0] = mine.mac[5] = 2;
    mine.flags = SPILLWAY_PORT_ACCEPT_CIP | SPILLWAY_PORT_SEND_CIP;
    mine.root_major = 0x10000;
    mine.first_queue = 7;
    mine.queue_count = 2;
    mine.cip_per_second = 1000000;

    for (const std::size_t number : {0U, 1U}) {
        spillway_queue &filled = queue(number);
        filled.ifindex = ifindex_;
        filled.isolation_count = 1;
        filled.waterline = {.probability = SPILLWAY_PROBABILITY_ONE,
                            .low = low_waterline,
                            .high = high_waterline,
                            .unit = SPILLWAY_UNIT_BYTES,
                            .set = 1};
        filled.normal = leaf_of(number == 0 ? normal : second);
        filled.isolation[0] = leaf_of(number == 0 ? isolation : second_isolation);
    }
}

spillway_port &Rig::port() {
    return maps_->ports()[ifindex_ % SPILLWAY_PORTS_MAX];
}

spillway_queue &Rig::queue(std::size_t number) {
    return maps_->queues()[port().first_queue + number];
}

spillway_leaf &Rig::leaf(std::uint32_t classid) {
    for (const std::size_t number : {0U, 1U})
        for (spillway_leaf *leaf : {&queue(number).normal, &queue(number).isolation[0]})
            if (leaf->classid == classid)
                return *leaf;
    fail_with(fmt::format("class {:x} is no leaf of a queue", classid));
}

void Rig::send(std::uint32_t classid, std::uint32_t length) {
    Bytes frame(length);
    frame[0] = frame[6] = 0x02; // from and to nobody
    frame[12] = 0x88;           // local experimental
    frame[13] = 0xb5;
    if (::setsockopt(socket_.get(), SOL_SOCKET, SO_PRIORITY, &classid, sizeof(classid)) != 0 ||
        ::send(socket_.get(), frame.data(), frame.size(), 0) != static_cast<ssize_t>(frame.size()))
        fail_with("send a packet", errno);
}

void Rig::hold(std::uint32_t classid, std::uint32_t bytes) {
    constexpr std::uint32_t each = 500;
    const std::uint32_t packets = bytes == 0 ? 0 : std::max(bytes / each, 1U);
    spillway_leaf &held = leaf(classid);
    if (source_ == Source::poll) {
        held.backlog_bytes = bytes;
        held.backlog_packets = packets;
        held.read_ns = now_ns();
        return;
    }
    if (counters(classid).backlog_bytes != 0)
        renew(held);
    for (std::uint32_t i = 1; i <= packets; i++)
        send(classid, i < packets ? each : bytes - each * (packets - 1));
    if (const auto holds = counters(classid).backlog_bytes; holds != bytes)
        fail_with(fmt::format("class {:x} holds {} bytes instead of {}", classid, holds, bytes));
}

/// Another qdisc of the same handle, and empty.
void Rig::renew(const spillway_leaf &held) {
    const std::string where = fmt::format("dev d0 parent 1:{:x}", held.classid & 0xffffU);
    if (held.handle != 0)
        batch("tc", fmt::format("qdisc del {0}\nqdisc add {0} handle {1:x}: pfifo limit 1000\n", where,
                                held.handle >> 16U));
    else // HTB gives a new default leaf where one is taken away
        batch("tc", fmt::format("qdisc add {0} handle 77: pfifo\nqdisc del {0}\n", where));
}

TcCounters Rig::counters(std::uint32_t classid) {
    for (const Qdisc &qdisc : must(netlink_->qdiscs(static_cast<int>(ifindex_))))
        if (qdisc.parent == classid)
            return qdisc.counters;
    fail_with(fmt::format("class {:x} has no leaf", classid));
}

int Rig::isolate_fd() const {
    return loaded_.programs.isolate_fd();
}

int Rig::trap_fd() const {
    return loaded_.programs.trap_fd();
}

Outcome Rig::isolate(const Bytes &packet, const Skb &skb, int repeat) const {
    __sk_buff context{};
    context.priority = skb.priority;
    context.ingress_ifindex = skb.ingress_ifindex;
    context.wire_len = skb.wire_len;
    context.ifindex = skb.ifindex != 0 ? skb.ifindex : ifindex_;
    Run done = run_tc(loaded_.programs.isolate_fd(), packet, context, repeat);
    return {.verdict = done.verdict, .priority = context.priority, .packet = std::move(done.packet)};
}

Outcome Rig::ingress(const Bytes &packet, const Skb &skb, int repeat) const {
    __sk_buff context{};
    context.priority = skb.priority;
    context.ifindex = skb.ifindex != 0 ? skb.ifindex : ifindex_;
    Run done = run_tc(loaded_.programs.ingress_fd(), packet, context, repeat);
    return {.verdict = done.verdict, .priority = context.priority, .packet = std::move(done.packet)};
}

Outcome Rig::trap(const Bytes &packet, int repeat) const {
    xdp_md context{};
    context.data_end = static_cast<std::uint32_t>(packet.size());
    context.ingress_ifindex = ifindex_;
    Run done = run_xdp(loaded_.programs.trap_fd(), packet, context, repeat);
    return {.verdict = done.verdict, .packet = std::move(done.packet)};
}

spillway_edit_result Rig::edit(spillway_edit_op op, const spillway_flow_key &key, std::uint64_t value,
                               std::uint32_t counter) const {
    spillway_edit change{};
    change.op = op;
    change.key = key;
    change.value = value;
    change.counter = counter;
    return must(maps_->edit(change));
}

spillway_edit_result Rig::raw_edit(const Bytes &command) const {
    const Fd program(bpf_obj_get((loaded_.paths.progs / "edit").c_str()));
    if (!program)
        fail_with("open the edit program", errno);
    __sk_buff context{};
    return static_cast<spillway_edit_result>(run_tc(program.get(), command, context, 1).verdict);
}

std::optional<spillway_flow> Rig::flow(const spillway_flow_key &key) const {
    spillway_flow flow{};
    if (bpf_map_lookup_elem(maps_->flows_fd(), &key, &flow) != 0)
        return std::nullopt;
    return flow;
}

std::uint32_t Rig::filter(const spillway_flow_key &key) const {
    const std::uint32_t slot = spillway_filter_slot(&key);
    std::uint32_t count = 0;
    if (bpf_map_lookup_elem(loaded_.filter.get(), &slot, &count) != 0)
        fail_with("read the filter", errno);
    return count;
}

void Rig::put(const spillway_flow_key &key, const spillway_flow &flow) const {
    if (!this->flow(key)) {
        const std::uint32_t slot = spillway_filter_slot(&key);
        const std::uint32_t count = filter(key) + 1;
        if (bpf_map_update_elem(loaded_.filter.get(), &slot, &count, BPF_ANY) != 0)
            fail_with("write the filter", errno);
    }
    if (const int error = bpf_map_update_elem(maps_->flows_fd(), &key, &flow, BPF_ANY); error != 0)
        fail_with("write a flow", -error);
}

std::size_t Rig::flows() const {
    return must(maps_->read_flows()).size();
}

std::optional<spillway_upstream> Rig::upstream(const spillway_flow_key &key) const {
    spillway_flow_key any_port = key;
    any_port.port = 0;
    spillway_upstream node{};
    if (bpf_map_lookup_elem(maps_->upstream_fd(), &any_port, &node) != 0)
        return std::nullopt;
    return node;
}

std::vector<spillway_event> Rig::events(std::optional<spillway_event_type> type) {
    events_.clear();
    if (const int error = ring_buffer__consume(ring_.get()); error < 0)
        fail_with("read events", -error);
    if (type)
        std::erase_if(events_, [type](const spillway_event &event) { return event.type != *type; });
    return events_;
}

Counters Rig::counters() const {
    Counters all = must(maps_->read_counters());
    std::erase_if(all, [](const auto &entry) { return entry.second == 0; });
    return all;
}

std::uint64_t Rig::counter(spillway_counter counter, std::optional<std::uint32_t> ifindex) const {
    const Counters all = counters();
    const auto found = all.find({ifindex.value_or(ifindex_), counter});
    return found == all.end() ? 0 : found->second;
}

} // namespace spillway::prog
