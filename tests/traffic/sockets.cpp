// SPDX-License-Identifier: Apache-2.0
#include "tests/traffic/sockets.h"

#include <arpa/inet.h>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <netinet/in.h>
#include <random>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>

namespace spillway::traffic {

namespace {

constexpr int socket_buffer = 64 << 20; // bytes; holds more than a second of the traffic we make

volatile std::sig_atomic_t stop_signal = 0;

void on_stop_signal(int number) {
    stop_signal = number;
}

const sockaddr_in &as_v4(const Address &address) {
    return reinterpret_cast<const sockaddr_in &>(address.storage);
}
const sockaddr_in6 &as_v6(const Address &address) {
    return reinterpret_cast<const sockaddr_in6 &>(address.storage);
}

bool is_v4(const Address &address) {
    return address.family() == AF_INET || IN6_IS_ADDR_V4MAPPED(&as_v6(address).sin6_addr);
}

// The buffers only have to be big; without the privilege they are as big as allowed.
void grow_buffers(const Fd &socket) {
    for (const int name : {SO_RCVBUFFORCE, SO_SNDBUFFORCE})
        ::setsockopt(socket.get(), SOL_SOCKET, name, &socket_buffer, sizeof socket_buffer);
}

Address any_address(int family, std::uint16_t port) {
    Address address;
    if (family == AF_INET) {
        auto &v4 = reinterpret_cast<sockaddr_in &>(address.storage);
        v4.sin_family = AF_INET;
        v4.sin_port = htons(port);
        address.length = sizeof v4;
    } else {
        auto &v6 = reinterpret_cast<sockaddr_in6 &>(address.storage);
        v6.sin6_family = AF_INET6;
        v6.sin6_port = htons(port);
        address.length = sizeof v6;
    }
    return address;
}

// TCP buffers stay with the kernel's own tuning: a fixed one would change what is measured.
Result<Fd> open_bound(int family, int type, std::uint16_t port) {
    Fd socket(::socket(family, type | SOCK_CLOEXEC, 0));
    if (!socket)
        return fail(socket_error("open socket", ""));
    const int on = 1;
    if (type == SOCK_STREAM)
        ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    else
        grow_buffers(socket);
    const Address any = any_address(family, port);
    if (::bind(socket.get(), any.get(), any.length) < 0)
        return fail(socket_error("bind", "port " + std::to_string(port)));
    return socket;
}

} // namespace

std::uint16_t Address::port() const {
    return ntohs(family() == AF_INET ? as_v4(*this).sin_port : as_v6(*this).sin6_port);
}

std::size_t Address::udp_overhead() const {
    return is_v4(*this) ? 28 : 48;
}

std::string Address::text() const {
    char buffer[INET6_ADDRSTRLEN] = "";
    if (family() == AF_INET)
        ::inet_ntop(AF_INET, &as_v4(*this).sin_addr, buffer, sizeof buffer);
    else if (is_v4(*this))
        ::inet_ntop(AF_INET, &as_v6(*this).sin6_addr.s6_addr[12], buffer, sizeof buffer);
    else
        ::inet_ntop(AF_INET6, &as_v6(*this).sin6_addr, buffer, sizeof buffer);
    return buffer;
}

Result<Address> parse_address(const std::string &text, std::uint16_t port) {
    Address v4 = any_address(AF_INET, port);
    if (::inet_pton(AF_INET, text.c_str(), &reinterpret_cast<sockaddr_in &>(v4.storage).sin_addr) == 1)
        return v4;
    Address v6 = any_address(AF_INET6, port);
    if (::inet_pton(AF_INET6, text.c_str(), &reinterpret_cast<sockaddr_in6 &>(v6.storage).sin6_addr) == 1)
        return v6;
    return fail({.operation = "--to",
                 .object = text,
                 .detail = "not an IPv4 or IPv6 address",
                 .hint = "write it like 10.0.0.2 or fd00::2; names are not looked up",
                 .kind = ErrorKind::usage});
}

Result<Fd> bind_any(int type, std::uint16_t port) {
    Result<Fd> both = open_bound(AF_INET6, type, port);
    if (!both && both.error().number == EAFNOSUPPORT) // IPv6 is switched off on this host
        return open_bound(AF_INET, type, port);
    return both;
}

Result<Fd> open_sender(int type, const Address &to, std::uint16_t from_port) {
    return open_bound(to.family(), type, from_port);
}

Result<> set_dscp(const Fd &socket, const Address &to, unsigned dscp) {
    const int traffic_class = static_cast<int>(dscp << 2U); // the lower two bits are ECN's
    const bool v4 = to.family() == AF_INET;
    if (::setsockopt(socket.get(), v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_TOS : IPV6_TCLASS, &traffic_class,
                     sizeof traffic_class) < 0)
        return fail(socket_error("--dscp", std::to_string(dscp)));
    return {};
}

std::uint16_t local_port(const Fd &socket) {
    Address address;
    address.length = sizeof address.storage;
    if (::getsockname(socket.get(), address.get(), &address.length) < 0)
        return 0;
    return address.port();
}

Error socket_error(const char *operation, const std::string &object) {
    return {.operation = operation, .object = object, .number = errno, .detail = {}, .hint = {}};
}

std::uint64_t now_ns() {
    timespec time{};
    ::clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000U +
           static_cast<std::uint64_t>(time.tv_nsec);
}

void sleep_until(std::uint64_t deadline_ns) {
    const timespec deadline{.tv_sec = static_cast<std::time_t>(deadline_ns / 1'000'000'000U),
                            .tv_nsec = static_cast<long>(deadline_ns % 1'000'000'000U)};
    ::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &deadline, nullptr);
}

void catch_stop_signals() {
    struct sigaction action {};
    action.sa_handler = on_stop_signal; // no SA_RESTART: a blocked call is to return
    ::sigaction(SIGTERM, &action, nullptr);
    ::sigaction(SIGINT, &action, nullptr);
    ::signal(SIGPIPE, SIG_IGN);
}

bool stop_requested() {
    return stop_signal != 0;
}

void ask_for_prompt_wakeups(Urgency urgency) {
    ::prctl(PR_SET_TIMERSLACK, 1UL);
    const sched_param priority{.sched_priority = static_cast<int>(urgency)};
    ::sched_setscheduler(0, SCHED_FIFO, &priority);
}

void keep_off_forwarding_cpu() {
    cpu_set_t allowed;
    if (::sched_getaffinity(0, sizeof allowed, &allowed) < 0)
        return;
    CPU_CLR(0, &allowed);
    if (CPU_COUNT(&allowed) > 0)
        ::sched_setaffinity(0, sizeof allowed, &allowed);
}

void report_ready() {
    std::fputs("ready\n", stderr);
}

std::uint32_t random_run() {
    return std::random_device{}();
}

void raise_file_limit() {
    rlimit files{};
    if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        ::setrlimit(RLIMIT_NOFILE, &files);
    }
}

} // namespace spillway::traffic
