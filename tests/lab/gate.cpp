// SPDX-License-Identifier: Apache-2.0
#include "tests/lab/gate.h"

#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <netlink/msg.h>
#include <netlink/netlink.h>
#include <netlink/socket.h>
#include <stdexcept>

namespace spillway::lab {

namespace {

constexpr std::uint32_t kick_class = 0x10005;

std::runtime_error failure(const std::string &node, const char *what, const char *why) {
    return std::runtime_error(fmt::format("{}: {}: {}", node, what, why));
}

} // namespace

Gates::Gates(const Node &node) : node_(node.name), kick_(node) {
    node.ns->call([this] {
        netlink_.reset(nl_socket_alloc());
        if (!netlink_ || nl_connect(netlink_.get(), NETLINK_ROUTE) < 0)
            throw failure(node_, "open netlink", std::strerror(errno));
    });
}

void Gates::close(const Port &port, Priority priority) {
    set_rate(port, priority, closed_rate, closed_burst);
}

void Gates::open(const Port &port, Priority priority) {
    set_rate(port, priority, open_rate, open_burst);
    kick_.send(port, kick_class, 60);
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
