// SPDX-License-Identifier: Apache-2.0
#include "tests/lab/pause_engine.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <linux/if_packet.h>
#include <map>
#include <pthread.h>
#include <stdexcept>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <utility>

namespace spillway::lab {

namespace {

constexpr std::uint16_t longest_pause = 0xFFFF;              // quanta
constexpr std::uint64_t longest_turn = 20'000'000;           // ns between two looks at what waits
constexpr int thread_priority = 3;                           // above the traffic programs
constexpr std::uint64_t crossings_key = 0, stop_key = ~0ULL; // of epoll; a port has its number

[[noreturn]] void give_up(const std::string &what) {
    const int number = errno;
    throw std::runtime_error(fmt::format("{}: {}", what, std::strerror(number)));
}

Fd packet_socket(const Port &port, std::uint16_t protocol) {
    Fd socket;
    port.node->ns->call([&] {
        socket = Fd(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        sockaddr_ll address{};
        address.sll_family = AF_PACKET;
        address.sll_protocol = htons(protocol);
        address.sll_ifindex = port.ifindex;
        if (!socket || ::bind(socket.get(), reinterpret_cast<const sockaddr *>(&address), sizeof address) < 0)
            give_up(fmt::format("packet socket on {}", port.label()));
    });
    return socket;
}

void watch(const Fd &epoll, int fd, std::uint64_t key) {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = key}};
    if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) < 0)
        give_up("epoll");
}

} // namespace

PauseEngine::PauseEngine(const Topology &topology, Occupancy &occupancy)
    : occupancy_(occupancy), stations_(topology.ports().size() + 1), epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      stop_(::eventfd(0, EFD_CLOEXEC)) {
    if (!epoll_ || !stop_)
        give_up("epoll");
    std::map<const Node *, Gates *> gates;
    for (const auto &node : topology.nodes()) {
        gates_.push_back(std::make_unique<Gates>(*node));
        gates[node.get()] = gates_.back().get();
    }
    for (const auto &port : topology.ports()) {
        Station &station = stations_[port->number];
        station.port = port.get();
        station.gates = gates.at(port->node);
        senders_.push_back(packet_socket(*port, 0)); // protocol 0: it receives nothing
        station.sender = senders_.back().get();
        const int on = 1; // past the queues, which may be full
        if (::setsockopt(station.sender, SOL_PACKET, PACKET_QDISC_BYPASS, &on, sizeof on) < 0)
            give_up("packet socket past the queues");
        station.receiver = packet_socket(*port, pause_ethertype);
        watch(epoll_, station.receiver.get(), port->number);
    }
    watch(epoll_, occupancy_.crossings_fd(), crossings_key);
    watch(epoll_, stop_.get(), stop_key);
}

PauseEngine::~PauseEngine() {
    if (thread_.joinable()) {
        const std::uint64_t one = 1;
        static_cast<void>(::write(stop_.get(), &one, sizeof one) ==
                          sizeof one); // cannot fail: the counter is 0
        thread_.join();
    }
}

std::vector<std::uint64_t> PauseEngine::measure_reaction(unsigned rounds) {
    for (unsigned round = 0; round < rounds; ++round)
        for (Station &station : stations_) {
            if (station.port == nullptr || !station.port->node->is_switch)
                continue;
            const Side &far = stations_[station.port->peer->number].sides[0];
            ask(station, Priority::normal, now_ns());
            for (int i = 0; i < 50 && !far.closed; ++i)
                turn(longest_turn);
            if (!far.closed)
                throw std::runtime_error(
                    fmt::format("{} does not obey pause frames", station.port->peer->label()));
            stop_asking(station, Priority::normal);
            for (int i = 0; i < 50 && far.closed; ++i)
                turn(longest_turn);
        }
    return take_record().frame_to_gate_ns;
}

void PauseEngine::start() {
    thread_ = std::thread([this] { serve(); });
    const sched_param parameters{.sched_priority = thread_priority};
    ::pthread_setschedparam(thread_.native_handle(), SCHED_FIFO, &parameters); // else it is just slower
}

void PauseEngine::rethrow_failure() {
    const std::scoped_lock lock(mutex_);
    if (failure_)
        std::rethrow_exception(failure_);
}

PauseRecord PauseEngine::take_record() {
    rethrow_failure();
    const std::scoped_lock lock(mutex_);
    const std::uint64_t now = now_ns();
    for (Station &station : stations_)
        for (const Priority priority : priorities) {
            Side &side = station.sides[static_cast<std::size_t>(priority)];
            if (side.closed)
                record_.pauses.push_back({station.port, priority, std::exchange(side.since_ns, now), now});
        }
    return std::exchange(record_, {});
}

void PauseEngine::serve() {
    try {
        for (;;) {
            std::array<epoll_event, 1> ready{};
            const std::uint64_t now = now_ns();
            const std::uint64_t deadline = std::min(next_deadline(), now + longest_turn);
            const std::uint64_t wait = deadline > now ? deadline - now : 0;
            const timespec timeout{.tv_sec = 0, .tv_nsec = static_cast<long>(wait)};
            if (::epoll_pwait2(epoll_.get(), ready.data(), 1, &timeout, nullptr) == 1 &&
                ready[0].data.u64 == stop_key)
                return;
            const std::scoped_lock lock(mutex_);
            turn(0);
        }
    } catch (...) {
        const std::scoped_lock lock(mutex_);
        failure_ = std::current_exception();
    }
}

/// Serves all that is ready, or becomes so within that time, and what is due.
void PauseEngine::turn(std::uint64_t longest_ns) {
    std::array<epoll_event, 16> ready{};
    const timespec timeout{.tv_sec = 0, .tv_nsec = static_cast<long>(longest_ns)};
    const int count = ::epoll_pwait2(epoll_.get(), ready.data(), ready.size(), &timeout, nullptr);
    for (int i = 0; i < count; ++i) {
        const std::uint64_t key = ready[static_cast<std::size_t>(i)].data.u64;
        if (key == crossings_key)
            occupancy_.take_crossings([this](const lab_crossing &crossing) { cross(crossing); });
        else if (key != stop_key)
            receive(stations_[key]);
    }
    keep_times();
}

void PauseEngine::cross(const lab_crossing &crossing) {
    Station &station = stations_.at(crossing.index / LAB_PRIORITIES);
    const auto priority = static_cast<Priority>(crossing.index % LAB_PRIORITIES);
    if (crossing.pause != 0)
        ask(station, priority, crossing.time_ns);
    else
        stop_asking(station, priority);
}

void PauseEngine::ask(Station &station, Priority priority, std::uint64_t crossed_ns) {
    Side &side = station.sides[static_cast<std::size_t>(priority)];
    side.asking = true;
    side.crossed_ns = crossed_ns;
    side.sent_ns = now_ns();
    side.refresh_ns = side.sent_ns + pause_ns(longest_pause, station.port->rate) / 2;
    send(station, priority, longest_pause);
}

void PauseEngine::stop_asking(Station &station, Priority priority) {
    station.sides[static_cast<std::size_t>(priority)].asking = false;
    send(station, priority, 0);
}

void PauseEngine::send(const Station &station, Priority priority, std::uint16_t quanta) const {
    PauseFrame frame{.source = station.port->mac()};
    const auto number = static_cast<std::size_t>(priority);
    frame.enabled = static_cast<std::uint8_t>(1U << number);
    frame.quanta[number] = quanta;
    const auto bytes = encode(frame);
    if (::send(station.sender, bytes.data(), bytes.size(), 0) < 0)
        give_up(fmt::format("send a pause frame towards {}", station.port->peer->node->name));
}

void PauseEngine::receive(Station &station) {
    std::array<std::uint8_t, 2048> buffer;
    for (;;) {
        const ssize_t length = ::recv(station.receiver.get(), buffer.data(), buffer.size(), 0);
        if (length < 0)
            return;
        const std::span bytes(buffer.data(), static_cast<std::size_t>(length));
        const auto frame = decode_pause(bytes);
        if (!frame)
            continue;
        record_.frames.push_back({now_ns(), station.port, {bytes.begin(), bytes.end()}});
        for (const Priority priority : priorities) {
            const auto number = static_cast<std::size_t>(priority);
            if ((frame->enabled >> number & 1U) != 0)
                obey(station, priority, frame->quanta[number]);
        }
    }
}

void PauseEngine::obey(Station &station, Priority priority, std::uint16_t quanta) {
    Side &side = station.sides[static_cast<std::size_t>(priority)];
    if (quanta == 0) {
        if (side.closed)
            reopen(station, priority, now_ns());
        return;
    }
    if (!side.closed) {
        station.gates->close(*station.port, priority);
        side.closed = true;
        side.since_ns = now_ns();
        // Both ends of the link run on this machine's clock: how long it took can be told. Only measured.
        const Side &far = stations_[station.port->peer->number].sides[static_cast<std::size_t>(priority)];
        record_.frame_to_gate_ns.push_back(side.since_ns - far.sent_ns);
        record_.crossing_to_gate_ns.push_back(side.since_ns - far.crossed_ns);
    }
    side.until_ns = now_ns() + pause_ns(quanta, station.port->rate);
}

void PauseEngine::reopen(Station &station, Priority priority, std::uint64_t now) {
    Side &side = station.sides[static_cast<std::size_t>(priority)];
    station.gates->open(*station.port, priority);
    side.closed = false;
    record_.pauses.push_back({station.port, priority, side.since_ns, now});
}

/// Repeats pause frames, and ends pauses that ran out.
void PauseEngine::keep_times() {
    const std::uint64_t now = now_ns();
    for (Station &station : stations_) {
        if (station.port == nullptr)
            continue;
        for (const Priority priority : priorities) {
            Side &side = station.sides[static_cast<std::size_t>(priority)];
            if (side.closed && now >= side.until_ns)
                reopen(station, priority, now);
            if (side.asking && now >= side.refresh_ns) {
                send(station, priority, longest_pause);
                side.refresh_ns = now + pause_ns(longest_pause, station.port->rate) / 2;
            }
        }
    }
}

std::uint64_t PauseEngine::next_deadline() const {
    std::uint64_t next = ~0ULL;
    for (const Station &station : stations_)
        for (const Side &side : station.sides) {
            if (side.closed)
                next = std::min(next, side.until_ns);
            if (side.asking)
                next = std::min(next, side.refresh_ns);
        }
    return next;
}

} // namespace spillway::lab
