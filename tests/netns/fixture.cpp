// SPDX-License-Identifier: Apache-2.0
#include "tests/netns/fixture.h"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/magic.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sstream>
#include <stdexcept>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>

namespace spillway::lab {

namespace {

namespace fs = std::filesystem;

constexpr const char *bpffs = "/sys/fs/bpf";
constexpr std::string_view prefix = "spw-"; // of all that we name: PREFIX PID - COUNTER

[[noreturn]] void give_up(const std::string &what) {
    throw std::runtime_error(what);
}
[[noreturn]] void give_up_errno(const std::string &what) {
    const int number = errno;
    give_up(fmt::format("{}: {}", what, std::strerror(number)));
}

std::string unique_name() {
    static int counter = 0;
    return fmt::format("{}{}-{}", prefix, ::getpid(), ++counter);
}

/// Whether the name is one of ours, made by a process that has ended.
bool is_left_over(std::string_view name) {
    if (!name.starts_with(prefix))
        return false;
    name.remove_prefix(prefix.size());
    pid_t owner = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), owner);
    return error == std::errc() && end != name.data() + name.size() && *end == '-' && ::kill(owner, 0) < 0 &&
           errno == ESRCH;
}

Words left_over_in(const fs::path &directory) {
    Words names;
    std::error_code missing; // then nothing is left over there
    for (const auto &entry : fs::directory_iterator(directory, missing))
        if (is_left_over(entry.path().filename().string()))
            names.push_back(entry.path().filename().string());
    return names;
}

void remove_left_overs() {
    for (const auto &name : left_over_in("/run/netns"))
        run({"ip", "netns", "del", name});
    for (const fs::path &directory : {fs::path(bpffs) / "spillway", fs::temp_directory_path()})
        for (const auto &name : left_over_in(directory)) {
            std::error_code ignored; // someone else may be sweeping too
            fs::remove_all(directory / name, ignored);
        }
}

void mount_bpffs() {
    // Two tests that mount at once would hide each other's pins.
    const Fd lock(::open("/run/lock/spillway-tests", O_CREAT | O_RDWR | O_CLOEXEC, 0600));
    if (!lock || ::flock(lock.get(), LOCK_EX) < 0)
        give_up_errno("lock /run/lock/spillway-tests");
    struct statfs info {};
    if (::statfs(bpffs, &info) == 0 && info.f_type == BPF_FS_MAGIC)
        return;
    if (::mount("bpf", bpffs, "bpf", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=0700") < 0)
        give_up_errno(fmt::format("mount the BPF file system at {}", bpffs));
}

/// Once a program, before anything is made.
void prepare_machine() {
    static const bool prepared = [] {
        if (::geteuid() != 0)
            give_up("tests in network namespaces need root");
        mount_bpffs();
        remove_left_overs();
        return true;
    }();
    static_cast<void>(prepared);
}

std::string read_all(const Fd &file) {
    std::string text;
    std::array<char, 65536> part;
    for (;;) { // pread: the writer's offset is not to move
        const ssize_t length = ::pread(file.get(), part.data(), part.size(), static_cast<off_t>(text.size()));
        if (length <= 0)
            return text;
        text.append(part.data(), static_cast<std::size_t>(length));
    }
}

/// A file in memory: unlike a pipe it takes any amount without a reader.
Fd memory_file(const char *name, std::string_view content = {}) {
    Fd file(::memfd_create(name, MFD_CLOEXEC));
    if (!file)
        give_up_errno("memfd_create");
    if (!content.empty() &&
        ::pwrite(file.get(), content.data(), content.size(), 0) != static_cast<ssize_t>(content.size()))
        give_up_errno("write standard input");
    return file;
}

/// In the child between fork and exec: only what is safe after a fork from a program with threads.
[[noreturn]] void become(char *const *argv, int netns, int in, int out, int err, pid_t parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() == parent && (netns < 0 || ::setns(netns, CLONE_NEWNET) == 0) && ::dup2(in, 0) >= 0 &&
        ::dup2(out, 1) >= 0 && ::dup2(err, 2) >= 0)
        ::execvp(argv[0], argv);
    const char *reason = std::strerror(errno);
    for (const char *part : {"cannot execute ", static_cast<const char *>(argv[0]), ": ", reason, "\n"})
        if (::write(err, part, std::strlen(part)) < 0)
            break;
    ::_exit(127);
}

int exit_code(int status) {
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// How many times slower than real hardware this machine is: set where the processor is emulated (tests/vm).
double slowness() {
    static const double factor = [] {
        const char *text = std::getenv("SPILLWAY_TEST_SLOWNESS");
        return text != nullptr ? std::strtod(text, nullptr) : 1;
    }();
    return factor;
}

/// The word with the number that begins it multiplied.
std::string times(const std::string &word, double factor) {
    std::size_t end = 0;
    const double number = std::stod(word, &end);
    return fmt::format("{}{}", number * factor, word.substr(end));
}

Output finish(Process &process, double bound) {
    const auto code = process.wait(bound * slowness());
    if (!code)
        give_up(fmt::format("{}: still running after {} s\n{}", process.text(), bound, process.err()));
    return {.code = *code, .out = process.out(), .err = process.err()};
}

int interface_index(const std::string &port) { // in the namespace of the calling thread
    const unsigned index = ::if_nametoindex(port.c_str());
    if (index == 0)
        give_up_errno(fmt::format("interface {}", port));
    return static_cast<int>(index);
}

Fd packet_socket(const Namespace &ns, const std::string &port, std::uint16_t protocol,
                 const std::function<void(const Fd &)> &before_bind) {
    Fd socket;
    ns.call([&] {
        socket = Fd(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0));
        if (!socket)
            give_up_errno("packet socket");
        before_bind(socket);
        sockaddr_ll address{};
        address.sll_family = AF_PACKET;
        address.sll_protocol = htons(protocol);
        address.sll_ifindex = interface_index(port);
        if (::bind(socket.get(), reinterpret_cast<const sockaddr *>(&address), sizeof address) < 0)
            give_up_errno(fmt::format("bind packet socket to {}", port));
    });
    return socket;
}

template <class T>
void set_option(const Fd &socket, int level, int name, const T &value) {
    if (::setsockopt(socket.get(), level, name, &value, sizeof value) < 0)
        give_up_errno(fmt::format("socket option {}", name));
}

std::int64_t to_ns(const timespec &time) {
    return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

std::string bare(const std::string &address) {
    return address.substr(0, address.find('/'));
}

nlohmann::json parse_json(const std::string &text, const std::string &origin) {
    auto json = nlohmann::json::parse(text, nullptr, false);
    if (json.is_discarded())
        give_up(fmt::format("{}: not JSON: {}", origin, text));
    return json;
}

} // namespace

Words words(std::string_view text) {
    std::istringstream stream{std::string(text)};
    Words list;
    for (std::string word; stream >> word;)
        list.push_back(word);
    return list;
}

std::uint64_t now_ns() {
    timespec time{};
    ::clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<std::uint64_t>(to_ns(time));
}

bool eventually(double bound, const std::function<bool()> &predicate) {
    const std::uint64_t deadline = now_ns() + static_cast<std::uint64_t>(bound * slowness() * 1e9);
    for (;;) {
        const bool last = now_ns() >= deadline;
        if (predicate())
            return true;
        if (last)
            return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
}

std::uint64_t within_ns(double seconds) {
    return static_cast<std::uint64_t>(seconds * slowness() * 1e9);
}

std::uint64_t scaled(std::uint64_t count) {
    return static_cast<std::uint64_t>(static_cast<double>(count) / slowness());
}

// Namespace

Namespace::Namespace(std::string_view role) {
    prepare_machine();
    name_ = fmt::format("{}-{}", unique_name(), role);
    if (const Output made = run({"ip", "netns", "add", name_}); made.code != 0)
        give_up("ip netns add: " + made.err);
    fd_ = Fd(::open(("/run/netns/" + name_).c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd_)
        give_up_errno("open network namespace " + name_);
    ip("link set lo up");
    for (const char *scope : {"all", "default"}) {
        sysctl(fmt::format("ipv4/conf/{}/rp_filter", scope), "0");
        sysctl(fmt::format("ipv4/conf/{}/forwarding", scope), "1");
        sysctl(fmt::format("ipv6/conf/{}/accept_dad", scope), "0");
        sysctl(fmt::format("ipv6/conf/{}/router_solicitations", scope), "0");
        sysctl(fmt::format("ipv6/conf/{}/forwarding", scope), "1");
    }
    sysctl("ipv4/tcp_no_metrics_save", "1"); // no TCP run is to learn from the one before
    call([] {
        for (const char *table : {"iptables", "ip6tables", "arptables"}) {
            // Only there when the kernel has bridge netfilter.
            std::ofstream(fmt::format("/proc/sys/net/bridge/bridge-nf-call-{}", table)) << '0';
        }
    });
}

Namespace::~Namespace() {
    run({"ip", "netns", "del", name_});
}

void Namespace::ip(std::string_view arguments) const {
    Words argv = words(arguments);
    argv.insert(argv.begin(), "ip");
    must(*this, std::move(argv));
}

void Namespace::tc(std::string_view arguments) const {
    Words argv = words(arguments);
    argv.insert(argv.begin(), "tc");
    must(*this, std::move(argv));
}

void Namespace::sysctl(std::string_view key, std::string_view value) const {
    call([&] { // /proc/sys/net shows the namespace of the thread that looks
        std::ofstream file(fmt::format("/proc/sys/net/{}", key));
        file << value << std::flush;
        if (!file)
            give_up(fmt::format("{}: cannot set net/{} to {}", name_, key, value));
    });
}

void Namespace::call(const std::function<void()> &work) const {
    std::exception_ptr thrown;
    std::thread([&] {
        try {
            if (::setns(fd_.get(), CLONE_NEWNET) < 0)
                give_up_errno("enter network namespace " + name_);
            work();
        } catch (...) {
            thrown = std::current_exception();
        }
    }).join();
    if (thrown)
        std::rethrow_exception(thrown);
}

// Process

Process::Process(const Namespace &ns, Words argv, std::string_view input)
    : Process(ns.fd(), std::move(argv), input) {}

Process::Process(Words argv, std::string_view input) : Process(-1, std::move(argv), input) {}

Process::Process(int netns, Words argv, std::string_view input)
    : argv_(std::move(argv)), out_(memory_file("stdout")), err_(memory_file("stderr")) {
    const Fd in = memory_file("stdin", input);
    std::vector<char *> pointers;
    for (std::string &word : argv_)
        pointers.push_back(word.data());
    pointers.push_back(nullptr);
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ < 0)
        give_up_errno("fork");
    if (pid_ == 0)
        become(pointers.data(), netns, in.get(), out_.get(), err_.get(), parent);
    pidfd_ = Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
    if (!pidfd_)
        give_up_errno("pidfd_open");
}

Process::~Process() {
    if (pidfd_)
        kill();
}

std::optional<int> Process::wait(double bound) {
    if (!pidfd_)
        return code_;
    pollfd poll{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
    if (::poll(&poll, 1, static_cast<int>(bound * 1000)) <= 0)
        return std::nullopt;
    int status = 0;
    ::waitpid(pid_, &status, 0);
    code_ = exit_code(status);
    pidfd_.reset();
    return code_;
}

void Process::signal(int number) {
    if (pidfd_)
        ::kill(pid_, number);
}

int Process::kill() {
    signal(SIGKILL);
    while (running()) // returns at once after SIGKILL, but for a poll broken off by a signal
        wait(1);
    return code_;
}

std::string Process::out() const {
    return read_all(out_);
}
std::string Process::err() const {
    return read_all(err_);
}
std::string Process::text() const {
    return fmt::format("{}", fmt::join(argv_, " "));
}

Output run(const Namespace &ns, Words argv, std::string_view input, double bound) {
    Process process(ns, std::move(argv), input);
    return finish(process, bound);
}

Output run(Words argv, std::string_view input, double bound) {
    Process process(std::move(argv), input);
    return finish(process, bound);
}

Output must(const Namespace &ns, Words argv, std::string_view input) {
    Process process(ns, std::move(argv), input);
    Output output = finish(process, 60);
    if (output.code != 0)
        give_up(fmt::format("{}: {}: exit code {}\n{}{}", ns.name(), process.text(), output.code, output.out,
                            output.err));
    return output;
}

// Links

namespace {

void bring_up(const End &end, const LinkOptions &options) {
    const std::string &port = end.port;
    if (!options.offloads)
        must(end.ns, words(fmt::format("ethtool -K {} gso off tso off gro off tx off", port)));
    // sysfs belongs to the namespace that mounted it; `ip netns exec` mounts the right one.
    const Output one_cpu = run(
        {"ip", "netns", "exec", end.ns.name(), "sh", "-c",
         fmt::format("for queue in /sys/class/net/{}/queues/rx-*; do echo 1 >$queue/rps_cpus; done", port)});
    if (one_cpu.code != 0)
        give_up(fmt::format("rps_cpus of {} in {}: {}", port, end.ns.name(), one_cpu.err));
    end.ns.ip(fmt::format("link set {} addrgenmode none up", port));
    for (const std::string &address : end.addresses)
        end.ns.ip(
            fmt::format("address add {} dev {}{}", address, port, address.contains(':') ? " nodad" : ""));
}

} // namespace

void link(const End &a, const End &b, const LinkOptions &options) {
    const std::string common =
        fmt::format("mtu {} numtxqueues {} numrxqueues {}", options.mtu, options.queues, options.queues);
    a.ns.ip(fmt::format("link add {} address {} {} type veth peer name {} address {} {} netns {}", a.port,
                        a.mac, common, b.port, b.mac, common, b.ns.name()));
    bring_up(a, options);
    bring_up(b, options);
    for (const std::string &address : b.addresses)
        neighbour(a.ns, a.port, bare(address), b.mac);
    for (const std::string &address : a.addresses)
        neighbour(b.ns, b.port, bare(address), a.mac);
}

void neighbour(const Namespace &ns, const std::string &port, const std::string &address,
               const std::string &mac) {
    ns.ip(fmt::format("neighbour replace {} lladdr {} dev {} nud permanent", address, mac, port));
}

void bridge(const Namespace &ns, const std::string &name, const Words &ports) {
    ns.ip(fmt::format("link add {} type bridge stp_state 0 forward_delay 0 mcast_snooping 0", name));
    ns.sysctl(fmt::format("ipv6/conf/{}/disable_ipv6", name), "1");
    for (const std::string &port : ports) {
        ns.sysctl(fmt::format("ipv6/conf/{}/disable_ipv6", port), "1");
        ns.ip(fmt::format("link set {} master {}", port, name));
    }
    ns.ip(fmt::format("link set {} up", name));
}

// Chain

namespace {

std::string chain_mac(unsigned node, bool towards_receiver) {
    return fmt::format("02:00:00:00:{:02x}:{:02x}", node, towards_receiver ? 1 : 0);
}

std::string chain_address(int family, unsigned stretch, bool right_end) {
    return family == 4 ? fmt::format("10.0.{}.{}", stretch, right_end ? 2 : 1)
                       : fmt::format("fd00:{:x}::{}", stretch, right_end ? 2 : 1);
}

Words chain_addresses(unsigned stretch, bool right_end) {
    return {chain_address(4, stretch, right_end) + "/24", chain_address(6, stretch, right_end) + "/64"};
}

} // namespace

Chain::Chain(unsigned switches, ChainOptions options) : options_(std::move(options)) {
    nodes_.push_back(std::make_unique<Namespace>("host"));
    for (unsigned number = 1; number <= switches; ++number)
        nodes_.push_back(std::make_unique<Namespace>(fmt::format("sw{}", number)));
    nodes_.push_back(std::make_unique<Namespace>("receiver"));
    for (unsigned left = 0; left + 1 < nodes_.size(); ++left)
        connect(left);
    for (const unsigned number : options_.bridged)
        bridge(node(number), "br0", {options_.to_host, options_.to_receiver});
    join_stretches();
    route();
}

std::string Chain::host_address(int family) const {
    return chain_address(family, 1, false);
}

std::string Chain::receiver_address(int family) const {
    return chain_address(family, stretch_right_of(static_cast<unsigned>(nodes_.size()) - 2), true);
}

bool Chain::is_bridged(unsigned node) const {
    return std::ranges::find(options_.bridged, node) != options_.bridged.end();
}

unsigned Chain::stretch_right_of(unsigned node) const {
    unsigned stretch = 1;
    for (unsigned number = 1; number <= node; ++number)
        if (!is_bridged(number))
            ++stretch;
    return stretch;
}

void Chain::connect(unsigned left) {
    const unsigned right = left + 1;
    const unsigned stretch = stretch_right_of(left);
    link({.ns = node(left),
          .port = options_.to_receiver,
          .mac = chain_mac(left, true),
          .addresses = is_bridged(left) ? Words{} : chain_addresses(stretch, false)},
         {.ns = node(right),
          .port = options_.to_host,
          .mac = chain_mac(right, false),
          .addresses = is_bridged(right) ? Words{} : chain_addresses(stretch, true)},
         options_.link);
}

// The two ends of a stretch with bridges in it do not share a link: they learn of each other here.
void Chain::join_stretches() {
    for (unsigned left = 0; left + 1 < nodes_.size();) {
        unsigned right = left + 1;
        while (is_bridged(right))
            ++right;
        for (const int family : {4, 6}) {
            const unsigned stretch = stretch_right_of(left);
            neighbour(node(left), options_.to_receiver, chain_address(family, stretch, true),
                      chain_mac(right, false));
            neighbour(node(right), options_.to_host, chain_address(family, stretch, false),
                      chain_mac(left, true));
        }
        left = right;
    }
}

void Chain::route() {
    const unsigned last = static_cast<unsigned>(nodes_.size()) - 1;
    const unsigned stretches = stretch_right_of(last - 1);
    for (unsigned number = 0; number <= last; ++number) {
        if (is_bridged(number))
            continue;
        const unsigned right = stretch_right_of(number); // the one on the left is right - 1
        for (unsigned stretch = 1; stretch <= stretches; ++stretch) {
            const bool is_right = number < last && stretch > right;
            const bool is_left = number > 0 && stretch + 1 < right;
            if (!is_right && !is_left)
                continue; // its own nets have routes already
            const unsigned via = is_right ? right : right - 1;
            node(number).ip(
                fmt::format("route add 10.0.{}.0/24 via {}", stretch, chain_address(4, via, is_right)));
            node(number).ip(
                fmt::format("route add fd00:{:x}::/64 via {}", stretch, chain_address(6, via, is_right)));
        }
    }
}

// Frames

Capture::Capture(const Namespace &ns, const std::string &port, CaptureOptions options)
    : options_(options), stop_(::eventfd(0, EFD_CLOEXEC)) {
    if (!stop_)
        give_up_errno("eventfd");
    timespec real{};
    ::clock_gettime(CLOCK_REALTIME, &real);
    clock_offset_ns_ = to_ns(real) - static_cast<std::int64_t>(now_ns());
    socket_ = packet_socket(ns, port, ETH_P_ALL, [&](const Fd &socket) {
        if (options_.ethertype != 0) {
            std::array<sock_filter, 4> code = {
                sock_filter BPF_STMT(BPF_LD | BPF_H | BPF_ABS,
                                     static_cast<unsigned>(SKF_AD_OFF) + SKF_AD_PROTOCOL),
                sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, options_.ethertype, 0, 1),
                sock_filter BPF_STMT(BPF_RET | BPF_K, 0xffff),
                sock_filter BPF_STMT(BPF_RET | BPF_K, 0),
            };
            set_option(socket, SOL_SOCKET, SO_ATTACH_FILTER, sock_fprog{.len = 4, .filter = code.data()});
        }
        set_option(socket, SOL_PACKET, PACKET_IGNORE_OUTGOING, options_.outgoing ? 0 : 1);
        set_option(socket, SOL_PACKET, PACKET_AUXDATA, 1);
        set_option(socket, SOL_SOCKET, SO_TIMESTAMPNS, 1);
        set_option(socket, SOL_SOCKET, SO_RCVBUFFORCE, 32 << 20);
    });
    thread_ = std::thread([this] { record(); });
}

Capture::~Capture() {
    const std::uint64_t one = 1;
    static_cast<void>(::write(stop_.get(), &one, sizeof one) == sizeof one); // cannot fail: the counter is 0
    thread_.join();
}

void Capture::record() {
    std::array<pollfd, 2> polls = {pollfd{.fd = socket_.get(), .events = POLLIN, .revents = 0},
                                   pollfd{.fd = stop_.get(), .events = POLLIN, .revents = 0}};
    std::vector<std::uint8_t> buffer(65536 + ETH_HLEN);
    alignas(cmsghdr) std::array<char, 256> control;
    while (::poll(polls.data(), polls.size(), -1) < 0 || polls[1].revents == 0) {
        sockaddr_ll from{};
        iovec part{.iov_base = buffer.data(), .iov_len = buffer.size()};
        msghdr message{};
        message.msg_name = &from;
        message.msg_namelen = sizeof from;
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_control = control.data();
        message.msg_controllen = control.size();
        const ssize_t length = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
        if (length < 0)
            continue;
        Frame frame{.bytes = {buffer.begin(), buffer.begin() + length}, .vlan_tci = {}};
        frame.outgoing = from.sll_pkttype == PACKET_OUTGOING;
        for (cmsghdr *header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
            if (header->cmsg_level == SOL_PACKET && header->cmsg_type == PACKET_AUXDATA) {
                tpacket_auxdata aux{};
                std::memcpy(&aux, CMSG_DATA(header), sizeof aux);
                if (aux.tp_status & TP_STATUS_VLAN_VALID)
                    frame.vlan_tci = aux.tp_vlan_tci;
            } else if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SO_TIMESTAMPNS) {
                timespec stamp{};
                std::memcpy(&stamp, CMSG_DATA(header), sizeof stamp);
                frame.time_ns = static_cast<std::uint64_t>(to_ns(stamp) - clock_offset_ns_);
            }
        }
        take(frame);
    }
}

void Capture::take(const Frame &frame) {
    const std::scoped_lock lock(mutex_);
    if (frames_.size() < options_.limit)
        frames_.push_back(frame);
    else
        ++lost_;
}

std::vector<Frame> Capture::frames() const {
    const std::scoped_lock lock(mutex_);
    return frames_;
}

std::size_t Capture::lost() {
    const std::scoped_lock lock(mutex_);
    tpacket_stats stats{}; // the kernel clears them when they are read
    socklen_t length = sizeof stats;
    if (::getsockopt(socket_.get(), SOL_PACKET, PACKET_STATISTICS, &stats, &length) == 0)
        lost_ += stats.tp_drops;
    return lost_;
}

void inject(const Namespace &ns, const std::string &port, const std::vector<std::uint8_t> &bytes) {
    const Fd socket = packet_socket(ns, port, 0, [](const Fd &) {});
    if (::send(socket.get(), bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
        give_up_errno(fmt::format("inject {} bytes into {}", bytes.size(), port));
}

// Traffic

namespace {

Words traffic_command(std::string_view role_and_options) {
    const double longer = slowness() > 1 ? 3 : 1; // long enough to be looked at
    Words argv = words(role_and_options);
    std::string option;
    for (std::string &word : argv) {
        if (word.starts_with("--"))
            option = word;
        else if (option == "--mbit")
            word = times(word, 1 / slowness());
        else if (option == "--seconds")
            word = times(word, longer);
        else if (option == "--then") { // MBIT:SECONDS
            const std::size_t colon = word.find(':') + 1;
            word = times(word.substr(0, colon), 1 / slowness()) + times(word.substr(colon), longer);
        }
    }
    argv.insert(argv.begin(), SPILLWAY_TRAFFIC);
    return argv;
}

} // namespace

Traffic::Traffic(const Namespace &ns, std::string_view role_and_options)
    : process_(ns, traffic_command(role_and_options)) {
    const bool ready =
        eventually(10, [&] { return process_.err().contains("ready\n") || !process_.running(); });
    if (!ready || !process_.err().contains("ready\n"))
        give_up(fmt::format("{}: not ready: {}", process_.text(), process_.err()));
}

nlohmann::json Traffic::result() {
    const Output output = finish(process_, 90);
    if (output.code != 0)
        give_up(fmt::format("{}: exit code {}: {}", process_.text(), output.code, output.err));
    return parse_json(output.out, process_.text());
}

nlohmann::json Traffic::stop() {
    process_.signal(SIGTERM);
    return result();
}

ClassStats class_stats(const Namespace &ns, const std::string &port, const std::string &classid) {
    // tc has no JSON for the classes of HTB.
    const std::string shown = must(ns, {"tc", "-s", "class", "show", "dev", port, "classid", classid}).out;
    unsigned long bytes = 0, packets = 0, dropped = 0, backlog = 0;
    const auto sent = shown.find("Sent "), waiting = shown.find("backlog ");
    if (sent == std::string::npos || waiting == std::string::npos ||
        std::sscanf(shown.c_str() + sent, "Sent %lu bytes %lu pkt (dropped %lu", &bytes, &packets,
                    &dropped) != 3 ||
        std::sscanf(shown.c_str() + waiting, "backlog %*s %lup", &backlog) != 1)
        give_up(fmt::format("{}: no class {} on {}: {}", ns.name(), classid, port, shown));
    return {.bytes = bytes, .packets = packets, .dropped = dropped, .backlog = backlog};
}

// The program under test

const std::string &spillway_program() {
    static const std::string path = SPILLWAY_PROGRAM;
    return path;
}

void setup(const Namespace &ns, const std::string &port, const std::string &rate) {
    const std::string slower = times(rate, 1 / slowness());
    const bool too_slow = slower.ends_with("mbit") && std::stod(slower) < 1; // `setup` takes no less
    must(ns, {spillway_program(), "setup", port, "--rate", too_slow ? "1mbit" : slower});
}

// The inner constructor has returned when start() throws: the destructor runs, and cleans up.
Agent::Agent(const Namespace &ns, const nlohmann::json &config, bool wait_for_ports)
    : Agent(ns, config, unique_name()) {
    start(wait_for_ports);
}

Agent::Agent(const Namespace &ns, const nlohmann::json &config, std::string instance)
    : ns_(ns), instance_(std::move(instance)), directory_(fs::temp_directory_path() / instance_),
      config_file_(directory_ + "/spillway.json"), exceptions_(std::uncaught_exceptions()) {
    if (!fs::create_directory(directory_))
        give_up(directory_ + " exists already");
    write(config);
}

Agent::~Agent() {
    try {
        if (process_)
            stop();
        // 3: the test has purged it already, or it never got so far.
        const Output purged = command({"purge"});
        EXPECT_TRUE(purged.code == 0 || purged.code == 3) << "purge: " << purged.err;
    } catch (const std::exception &error) {
        ADD_FAILURE() << "end of agent " << instance_ << ": " << error.what();
    }
    if (testing::Test::HasFailure() || std::uncaught_exceptions() > exceptions_)
        fmt::print(stderr, "log of agent {}:\n{}\n", instance_, log());
    std::error_code ignored; // the next program sweeps what is left
    fs::remove_all(directory_, ignored);
}

std::string Agent::log() const {
    return process_ ? old_log_ + process_->out() + process_->err() : old_log_;
}

Output Agent::command(const Words &arguments) const {
    Words argv = {spillway_program(), "--instance", instance_};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    return run(ns_, std::move(argv));
}

nlohmann::json Agent::status() const {
    const Output shown = command({"status", "--json"});
    if (shown.code != 0)
        give_up(fmt::format("status: exit code {}: {}", shown.code, shown.err));
    return parse_json(shown.out, "status --json");
}

nlohmann::json Agent::flows(bool all) const {
    const Output shown = command(all ? Words{"flows", "--json", "--all"} : Words{"flows", "--json"});
    if (shown.code != 0)
        give_up(fmt::format("flows: exit code {}: {}", shown.code, shown.err));
    return parse_json(shown.out, "flows --json").at("flows");
}

void Agent::start(bool wait_for_ports) {
    if (process_ && process_->running())
        give_up("the agent runs already");
    old_log_ = log();
    process_.reset();
    process_.emplace(ns_,
                     Words{spillway_program(), "--instance", instance_, "agent", "--config", config_file_});
    const bool up = eventually(10, [&] { return !process_->running() || serving(wait_for_ports); });
    if (!process_->running())
        give_up(fmt::format("the agent ended with exit code {}:\n{}", *process_->wait(0), log()));
    if (!up)
        give_up(fmt::format("the agent is not ready after 10 s: {}\n{}", command({"status", "--json"}).out,
                            log()));
}

bool Agent::serving(bool ports_too) const {
    const Output shown = command({"status", "--json"});
    if (shown.code != 0)
        return false;
    const auto status = parse_json(shown.out, "status --json");
    if (!status.at("agent").at("running").get<bool>() || status.at("agent").at("pid") != process_->pid())
        return false; // a predecessor's state
    const auto waits = [](const nlohmann::json &port) { return !port.at("waiting").is_null(); };
    return !ports_too || std::ranges::none_of(status.at("ports"), waits);
}

void Agent::kill() {
    process_->kill();
}

int Agent::stop() {
    process_->signal(SIGTERM);
    const auto code = process_->wait(10 * slowness());
    if (!code)
        give_up("the agent still runs 10 s after SIGTERM");
    return *code;
}

void Agent::reload(const nlohmann::json &config) {
    write(config);
    process_->signal(SIGHUP);
}

void Agent::write(const nlohmann::json &config) const {
    std::ofstream file(config_file_);
    file << config.dump(2) << '\n' << std::flush;
    if (!file)
        give_up("cannot write " + config_file_);
}

} // namespace spillway::lab
