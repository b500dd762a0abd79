// SPDX-License-Identifier: Apache-2.0
/// TCP elephants and their sink.
#include "tests/traffic/roles.h"
#include "tests/traffic/sockets.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <vector>

namespace spillway::traffic {

namespace {

constexpr int look_ms = 50;              // longest wait between two looks at clock and stop signal
constexpr std::size_t chunk = 256 << 10; // bytes a system call
constexpr int connect_patience_ms = 5000;

/// How a connection did, from the kernel.
tcp_info information(const Fd &socket) {
    tcp_info info{};
    socklen_t length = sizeof info;
    ::getsockopt(socket.get(), IPPROTO_TCP, TCP_INFO, &info, &length);
    return info;
}

Result<Fd> connect_flow(const TcpOptions &options, const Address &to, unsigned flow) {
    const auto port = static_cast<std::uint16_t>(options.end.from_port ? options.end.from_port + flow : 0);
    Result<Fd> socket = open_sender(SOCK_STREAM, to, port);
    if (!socket)
        return fail(socket.error());
    const std::string &algorithm = options.congestion;
    if (::setsockopt(socket->get(), IPPROTO_TCP, TCP_CONGESTION, algorithm.data(),
                     static_cast<socklen_t>(algorithm.size())) < 0)
        return fail(socket_error("--congestion", algorithm));
    if (options.mbit > 0) {
        const auto rate =
            static_cast<std::uint64_t>(options.mbit * 125'000 / options.flows); // bytes a second
        ::setsockopt(socket->get(), SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate);
    }
    if (Result<> set = set_dscp(*socket, to, options.dscp); !set)
        return fail(set.error());
    const int patience = connect_patience_ms;
    ::setsockopt(socket->get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &patience, sizeof patience);
    // The end of the run is the end of the traffic: drop what still waits to be sent.
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(socket->get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    if (::connect(socket->get(), to.get(), to.length) < 0)
        return fail(socket_error("connect", options.end.to));
    return socket;
}

/// One accepted connection.
struct Arrival {
    Fd socket;
    Address from;
    std::uint64_t bytes = 0;
    std::uint64_t first_ns = 0;
    std::uint64_t last_ns = 0;

    /// Takes what waits; false when the connection is over.
    bool take() {
        for (;;) {
            // MSG_TRUNC drops the bytes in the kernel: nobody looks at them.
            const ssize_t length = ::recv(socket.get(), nullptr, chunk, MSG_TRUNC | MSG_DONTWAIT);
            if (length <= 0)
                return length < 0 && (errno == EAGAIN || errno == EINTR);
            last_ns = now_ns();
            if (bytes == 0)
                first_ns = last_ns;
            bytes += static_cast<std::uint64_t>(length);
        }
    }
};

double mbit(std::uint64_t bytes, std::uint64_t ns) {
    return ns == 0 ? 0 : static_cast<double>(bytes) * 8000.0 / static_cast<double>(ns);
}

nlohmann::json report(const std::vector<Arrival> &arrivals) {
    std::uint64_t bytes = 0;
    std::uint64_t first = ~0ULL;
    std::uint64_t last = 0;
    nlohmann::json list = nlohmann::json::array();
    for (const Arrival &arrival : arrivals) {
        list.push_back({{"from", arrival.from.text()},
                        {"from_port", arrival.from.port()},
                        {"bytes", arrival.bytes},
                        {"mbit", mbit(arrival.bytes, arrival.last_ns - arrival.first_ns)}});
        if (arrival.bytes == 0)
            continue;
        bytes += arrival.bytes;
        first = std::min(first, arrival.first_ns);
        last = std::max(last, arrival.last_ns);
    }
    return {{"role", "tcp-sink"},
            {"bytes", bytes},
            {"mbit", bytes > 0 ? mbit(bytes, last - first) : 0.0},
            {"connections", std::move(list)}};
}

} // namespace

Result<nlohmann::json> tcp_send(const TcpOptions &options) {
    const Result<Address> to = parse_address(options.end.to, options.end.port);
    if (!to)
        return fail(to.error());
    raise_file_limit();
    std::vector<Fd> sockets;
    std::vector<pollfd> polls;
    for (unsigned flow = 0; flow < options.flows; ++flow) {
        Result<Fd> socket = connect_flow(options, *to, flow);
        if (!socket)
            return fail(socket.error());
        polls.push_back({.fd = socket->get(), .events = POLLOUT, .revents = 0});
        sockets.push_back(std::move(*socket));
    }
    report_ready();

    const std::vector<char> data(chunk);
    const std::uint64_t start = now_ns();
    const std::uint64_t end = start + static_cast<std::uint64_t>(options.end.seconds * 1e9);
    while (now_ns() < end && !stop_requested()) {
        if (::poll(polls.data(), polls.size(), look_ms) <= 0)
            continue;
        for (pollfd &poll : polls) {
            if (poll.revents == 0)
                continue;
            if (::send(poll.fd, data.data(), data.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0 &&
                errno != EAGAIN && errno != EINTR)
                return fail(socket_error("send", options.end.to));
        }
    }

    const double seconds = static_cast<double>(now_ns() - start) / 1e9;
    std::uint64_t acked = 0;
    std::uint64_t retransmits = 0;
    nlohmann::json list = nlohmann::json::array();
    for (const Fd &socket : sockets) {
        const tcp_info info = information(socket);
        acked += info.tcpi_bytes_acked;
        retransmits += info.tcpi_total_retrans;
        list.push_back({{"from_port", local_port(socket)},
                        {"bytes_acked", info.tcpi_bytes_acked},
                        {"retransmits", info.tcpi_total_retrans},
                        {"rtt_us", info.tcpi_rtt}});
    }
    return nlohmann::json{{"role", "tcp-send"},
                          {"bytes_acked", acked},
                          {"mbit", static_cast<double>(acked) * 8e-6 / seconds},
                          {"retransmits", retransmits},
                          {"seconds", seconds},
                          {"flows", std::move(list)}};
}

Result<nlohmann::json> tcp_sink(const Endpoint &end) {
    raise_file_limit();
    const Result<Fd> listener = bind_any(SOCK_STREAM, end.port);
    if (!listener)
        return fail(listener.error());
    if (::listen(listener->get(), SOMAXCONN) < 0)
        return fail(socket_error("listen", "port " + std::to_string(end.port)));
    report_ready();

    std::vector<Arrival> arrivals;
    std::vector<pollfd> polls{{.fd = listener->get(), .events = POLLIN, .revents = 0}};
    const std::uint64_t until =
        end.seconds > 0 ? now_ns() + static_cast<std::uint64_t>(end.seconds * 1e9) : ~0ULL;
    while (!stop_requested() && now_ns() < until) {
        if (::poll(polls.data(), polls.size(), look_ms) <= 0)
            continue;
        for (std::size_t i = 0; i < arrivals.size(); ++i)
            if (polls[i + 1].revents != 0 && !arrivals[i].take())
                polls[i + 1].fd = -1; // over: poll passes it by from now on
        if (polls[0].revents == 0)
            continue;
        Arrival arrival;
        arrival.from.length = sizeof arrival.from.storage;
        arrival.socket = Fd(::accept4(listener->get(), arrival.from.get(), &arrival.from.length,
                                      SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!arrival.socket)
            continue;
        polls.push_back({.fd = arrival.socket.get(), .events = POLLIN, .revents = 0});
        arrivals.push_back(std::move(arrival));
    }
    return report(arrivals);
}

} // namespace spillway::traffic
