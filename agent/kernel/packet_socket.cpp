// SPDX-License-Identifier: Apache-2.0
#include "agent/kernel/packet_socket.h"

#include "agent/kernel/instance.h"

#include <linux/if_packet.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace spillway {
namespace {

Result<Fd> open_socket(bool bypass) {
    Fd socket(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket)
        return fail({.operation = "open packet socket",
                     .number = errno,
                     .hint = errno == EPERM ? std::string(privilege_hint) : std::string()});
    const int one = 1;
    if (bypass && ::setsockopt(socket.get(), SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof(one)) != 0)
        return fail({.operation = "set PACKET_QDISC_BYPASS", .number = errno});
    ::setsockopt(socket.get(), SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof(one));
    return socket;
}

bool send_one(int socket, int ifindex, std::span<const std::uint8_t> frame) {
    sockaddr_ll to{};
    to.sll_family = AF_PACKET;
    to.sll_ifindex = ifindex;
    to.sll_halen = 6;
    std::memcpy(to.sll_addr, frame.data(), 6);
    return ::sendto(socket, frame.data(), frame.size(), MSG_DONTWAIT, reinterpret_cast<const sockaddr *>(&to),
                    sizeof(to)) == static_cast<ssize_t>(frame.size());
}

} // namespace

Result<PacketSocket> PacketSocket::open() {
    auto bypass = open_socket(true);
    if (!bypass)
        return std::unexpected(bypass.error());
    auto queued = open_socket(false);
    if (!queued)
        return std::unexpected(queued.error());
    return PacketSocket(std::move(*bypass), std::move(*queued));
}

Result<> PacketSocket::send(int ifindex, std::span<const std::uint8_t> frame, std::uint32_t priority) const {
    if (send_one(bypass_.get(), ifindex, frame))
        return {};
    if (errno == ENOBUFS || errno == EAGAIN) {
        ::setsockopt(queued_.get(), SOL_SOCKET, SO_PRIORITY, &priority, sizeof(priority));
        if (send_one(queued_.get(), ifindex, frame))
            return {};
    }
    return fail({.operation = "send frame", .number = errno});
}

} // namespace spillway
