// SPDX-License-Identifier: Apache-2.0
#include "tests/lab/gate.h"

#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <linux/if_packet.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <netlink/msg.h>
#include <netlink/netlink.h>
#include <netlink/socket.h>
#include <stdexcept>
#include <sys/socket.h>

namespace spillway::lab {

namespace {

constexpr std::uint32_t kick_class = 0x10005;

std::runtime_error failure(const std::string &node, const char *what, const char *why) {
    return std::runtime_error(fmt::format("{}: {}: {}", node, what, why));
}

} // namespace

Gates::Gates(const Node &node) : node_(node.name) {
    node.ns->call([this] {
        netlink_.reset(nl_socket_alloc());
        if (!netlink_ || nl_connect(netlink_.get(), NETLINK_ROUTE) < 0)
            throw failure(node_, "open netlink", std::strerror(errno));
        kick_ = Fd(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0)); // protocol 0: it receives nothing
        if (!kick_)
            throw failure(node_, "open packet socket", std::strerror(errno));
        if (::setsockopt(kick_.get(), SOL_SOCKET, SO_PRIORITY, &kick_class, sizeof kick_class) < 0)
            throw failure(node_, "set priority of packet socket", std::strerror(errno));
    });
}

void Gates::close(const Port &port, Priority priority) {
    set_rate(port, priority, closed_rate, closed_burst);
}

void Gates::open(const Port &port, Priority priority) {
    set_rate(port, priority, open_rate, open_burst);
    std::array<std::uint8_t, 60> frame{};
    const auto source = port.mac(), destination = port.peer->mac();
    std::memcpy(frame.data(), destination.data(), destination.size());
    std::memcpy(frame.data() + destination.size(), source.data(), source.size());
    frame[12] = kick_ethertype >> 8U;
    frame[13] = kick_ethertype & 0xFFU;
    sockaddr_ll to{};
    to.sll_family = AF_PACKET;
    to.sll_protocol = htons(kick_ethertype);
    to.sll_ifindex = port.ifindex;
    if (::sendto(kick_.get(), frame.data(), frame.size(), 0, reinterpret_cast<const sockaddr *>(&to),
                 sizeof to) < 0)
        throw failure(node_, "send a frame", std::strerror(errno));
}

void Gates::set_rate(const Port &port, Priority priority, std::uint32_t rate, std::uint32_t burst) {
    const QueueIds &ids = queue_ids(priority);
    tcmsg header{};
    header.tcm_family = AF_UNSPEC;
    header.tcm_ifindex = port.ifindex;
    header.tcm_handle = ids.handle;
    header.tcm_parent = ids.classid;
    tc_tbf_qopt options{};
    options.rate.rate = rate;
    options.rate.linklayer = TC_LINKLAYER_ETHERNET;
    options.limit = static_cast<std::uint32_t>(port.limit);

    const detail::NlMessage message(nlmsg_alloc_simple(RTM_NEWQDISC, 0)); // without NLM_F_CREATE: change
    nlmsg_append(message.get(), &header, sizeof header, NLMSG_ALIGNTO);
    nla_put_string(message.get(), TCA_KIND, "tbf");
    nlattr *nested = nla_nest_start(message.get(), TCA_OPTIONS);
    nla_put(message.get(), TCA_TBF_PARMS, sizeof options, &options);
    nla_put_u32(message.get(), TCA_TBF_BURST, burst);
    nla_nest_end(message.get(), nested);
    int error = nl_send_auto(netlink_.get(), message.get());
    if (error >= 0)
        error = nl_wait_for_ack(netlink_.get());
    if (error < 0)
        throw failure(node_, "change the rate of a queue", nl_geterror(error));
}

} // namespace spillway::lab
