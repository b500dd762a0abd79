// SPDX-License-Identifier: Apache-2.0
#include "tests/lab/filler.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <linux/if_packet.h>
#include <stdexcept>
#include <sys/socket.h>
#include <vector>

namespace spillway::lab {

namespace {

constexpr std::uint16_t ethertype = 0x88B6; // local experimental: nobody takes it

[[noreturn]] void give_up(const std::string &what) {
    const int number = errno;
    throw std::runtime_error(fmt::format("{}: {}", what, std::strerror(number)));
}

} // namespace

Filler::Filler(const Node &node) {
    node.ns->call([&] {
        socket_ = Fd(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0)); // protocol 0: it receives nothing
        if (!socket_)
            give_up(fmt::format("open a packet socket in {}", node.name));
    });
}

void Filler::send(const Port &port, std::uint32_t classid, std::size_t size) const {
    std::vector<std::uint8_t> frame(size);
    const auto destination = port.peer->mac(), source = port.mac();
    std::ranges::copy(destination, frame.begin());
    std::ranges::copy(source, frame.begin() + destination.size());
    frame[12] = ethertype >> 8U;
    frame[13] = ethertype & 0xFFU;
    sockaddr_ll to{};
    to.sll_family = AF_PACKET;
    to.sll_protocol = htons(ethertype);
    to.sll_ifindex = port.ifindex;
    if (::setsockopt(socket_.get(), SOL_SOCKET, SO_PRIORITY, &classid, sizeof classid) < 0 ||
        ::sendto(socket_.get(), frame.data(), frame.size(), 0, reinterpret_cast<const sockaddr *>(&to),
                 sizeof to) < 0)
        give_up(fmt::format("send a frame {}", port.label()));
}

} // namespace spillway::lab
