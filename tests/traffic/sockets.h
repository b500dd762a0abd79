// SPDX-License-Identifier: Apache-2.0
/// Sockets, time and the stop signal: what the roles of spillway-traffic share.
#pragma once

#include "agent/core/fd.h"
#include "agent/core/result.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <sys/socket.h>

namespace spillway::traffic {

/// First bytes of every UDP payload. Both ends run on the same machine: host byte order.
struct Stamp {
    static constexpr std::uint32_t expected_magic = 0x73707731;

    std::uint32_t magic = expected_magic;
    std::uint32_t run = 0;      ///< random, one per sending process: a restarted sender is a new flow
    std::uint32_t flow = 0;     ///< index of the flow in that process
    std::uint32_t sequence = 0; ///< from 0, without holes at the sender
    std::uint64_t sent_ns = 0;  ///< now_ns() of the sender
};
static_assert(sizeof(Stamp) == 24);

inline constexpr std::size_t largest_datagram = 65000; ///< UDP payload bytes; above the MTU it is fragmented

/// A socket address of either family.
struct Address {
    sockaddr_storage storage{};
    socklen_t length = 0;

    [[nodiscard]] const sockaddr *get() const { return reinterpret_cast<const sockaddr *>(&storage); }
    [[nodiscard]] sockaddr *get() { return reinterpret_cast<sockaddr *>(&storage); }
    [[nodiscard]] int family() const { return storage.ss_family; }
    [[nodiscard]] std::uint16_t port() const; ///< host byte order
    /// IP and UDP header bytes of a datagram to or from here; a mapped IPv4 address counts as IPv4.
    [[nodiscard]] std::size_t udp_overhead() const;
    [[nodiscard]] std::string text() const; ///< address without the port; mapped IPv4 in dotted form
};

/// Reads a literal IPv4 or IPv6 address.
Result<Address> parse_address(const std::string &text, std::uint16_t port);

/// A socket of `type` bound to `port` on all addresses of both families.
Result<Fd> bind_any(int type, std::uint16_t port);

/// A socket of `type` with source port `from_port` (0 = any), for sending to the family of `to`; not yet
/// connected.
Result<Fd> open_sender(int type, const Address &to, std::uint16_t from_port);

/// Sets the DSCP of what the socket sends; the family of the socket is that of `to`.
Result<> set_dscp(const Fd &socket, const Address &to, unsigned dscp);

/// The local port of a bound or connected socket; 0 if it has none.
std::uint16_t local_port(const Fd &socket);

/// A socket failure in words: `fail(socket_error("bind", "port 9000"))`, errno taken at the call.
Error socket_error(const char *operation, const std::string &object);

/// CLOCK_MONOTONIC, nanoseconds.
std::uint64_t now_ns();

/// Sleeps until that time on now_ns()'s clock; returns early when a signal comes.
void sleep_until(std::uint64_t deadline_ns);

/// Makes SIGTERM and SIGINT end the role at its next look at stop_requested(), instead of killing it.
void catch_stop_signals();
bool stop_requested();

/// How urgent a role is: the measuring ones come before the load.
enum class Urgency : int { load = 1, measurement = 2 };

/// Asks for wake-ups on time: the tool is to measure queues, not the scheduler. Without the privilege it
/// goes on as it is.
void ask_for_prompt_wakeups(Urgency urgency);

/// Leaves CPU 0 to the forwarding, where there is another: the test links receive there, and a sender that
/// waits for it to finish loses its rate.
void keep_off_forwarding_cpu();

/// Tells whoever started the program that the sockets are open: `ready` on standard error.
void report_ready();

/// A number that differs from one process to the next.
std::uint32_t random_run();

/// Raises the limit on open files to what the hard limit allows.
void raise_file_limit();

} // namespace spillway::traffic
