// SPDX-License-Identifier: Apache-2.0
#include "agent/kernel/netlink.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <linux/gen_stats.h>
#include <linux/if_ether.h>
#include <linux/if_link.h>
#include <linux/neighbour.h>
#include <linux/pkt_cls.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <linux/tc_act/tc_skbedit.h>
#include <net/if.h>
#include <netlink/attr.h>
#include <netlink/msg.h>
#include <netlink/netlink.h>
#include <netlink/socket.h>
#include <sys/socket.h>
#include <type_traits>

namespace spillway {
namespace {

constexpr int attempts = 8;                 // of a request that the kernel could not answer in one piece
constexpr int events_buffer = 1 << 20;      // bytes asked of the kernel at first …
constexpr int events_buffer_max = 16 << 20; // … doubled up to this whenever events were dropped
constexpr int events_per_drain = 1000;      // datagrams; the rest keeps the descriptor readable

// ---- attributes

/// The number in `attribute`, or `fallback` when it is absent or too short for it.
template <class T>
T value(const nlattr *attribute, T fallback) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (attribute == nullptr || nla_len(attribute) < static_cast<int>(sizeof(T)))
        return fallback;
    std::memcpy(&fallback, nla_data(attribute), sizeof(T));
    return fallback;
}

std::string text(const nlattr *attribute) {
    if (attribute == nullptr || nla_len(attribute) <= 0)
        return {};
    const auto *data = static_cast<const char *>(nla_data(attribute));
    return {data, strnlen(data, static_cast<size_t>(nla_len(attribute)))};
}

/// Attributes by type; those that are absent, or nested in an absent one, are null.
template <int max>
std::array<nlattr *, max + 1> attributes(nlattr *first, int length) {
    std::array<nlattr *, max + 1> table{};
    nla_parse(table.data(), max, first, length, nullptr);
    return table;
}

template <int max>
std::array<nlattr *, max + 1> nested(const nlattr *outer) {
    if (outer == nullptr)
        return {};
    return attributes<max>(static_cast<nlattr *>(nla_data(outer)), nla_len(outer));
}

template <class Header>
const Header *header_of(nlmsghdr *message) {
    if (nlmsg_datalen(message) < static_cast<int>(sizeof(Header)))
        return nullptr;
    return static_cast<const Header *>(nlmsg_data(message));
}

template <int max, class Header>
std::array<nlattr *, max + 1> attributes_after(nlmsghdr *message) {
    return attributes<max>(nlmsg_attrdata(message, sizeof(Header)), nlmsg_attrlen(message, sizeof(Header)));
}

// ---- messages to values

XdpMode xdp_mode(uint8_t attached) {
    switch (attached) {
    case XDP_ATTACHED_NONE:
        return XdpMode::none;
    case XDP_ATTACHED_DRV:
        return XdpMode::native;
    case XDP_ATTACHED_SKB:
        return XdpMode::generic;
    case XDP_ATTACHED_HW:
        return XdpMode::offload;
    default:
        return XdpMode::multiple;
    }
}

void read_link(nlmsghdr *message, std::vector<LinkInfo> &out) {
    const auto *header = header_of<ifinfomsg>(message);
    if (message->nlmsg_type != RTM_NEWLINK || header == nullptr)
        return;
    const auto attrs = attributes_after<IFLA_MAX, ifinfomsg>(message);
    LinkInfo link;
    link.ifindex = header->ifi_index;
    link.name = text(attrs[IFLA_IFNAME]);
    if (attrs[IFLA_ADDRESS] != nullptr && nla_len(attrs[IFLA_ADDRESS]) == static_cast<int>(link.mac.size()))
        link.mac = value(attrs[IFLA_ADDRESS], link.mac);
    link.arp_type = header->ifi_type;
    link.up = (header->ifi_flags & IFF_UP) != 0;
    link.running = (header->ifi_flags & IFF_RUNNING) != 0;
    link.mtu = value<uint32_t>(attrs[IFLA_MTU], 0);
    link.master = value<int>(attrs[IFLA_MASTER], 0);
    link.lower = value<int>(attrs[IFLA_LINK], 0);
    link.lower_foreign = attrs[IFLA_LINK_NETNSID] != nullptr;
    const auto info = nested<IFLA_INFO_MAX>(attrs[IFLA_LINKINFO]);
    link.kind = text(info[IFLA_INFO_KIND]);
    if (link.kind == "vxlan") {
        const auto vxlan = nested<IFLA_VXLAN_MAX>(info[IFLA_INFO_DATA]);
        if (vxlan[IFLA_VXLAN_ID] != nullptr && value<uint8_t>(vxlan[IFLA_VXLAN_COLLECT_METADATA], 0) == 0)
            link.vni = value<uint32_t>(vxlan[IFLA_VXLAN_ID], 0);
    }
    const auto xdp = nested<IFLA_XDP_MAX>(attrs[IFLA_XDP]);
    link.xdp = xdp_mode(value<uint8_t>(xdp[IFLA_XDP_ATTACHED], XDP_ATTACHED_NONE));
    link.xdp_program = value<uint32_t>(xdp[IFLA_XDP_PROG_ID], 0);
    link.tx_queues = value<uint32_t>(attrs[IFLA_NUM_TX_QUEUES], 0);
    link.gso_max_size = value<uint32_t>(attrs[IFLA_GSO_MAX_SIZE], 0);
    out.push_back(std::move(link));
}

TcCounters read_counters(const nlattr *stats2) {
    const auto stats = nested<TCA_STATS_MAX>(stats2);
    const auto basic = value<gnet_stats_basic>(stats[TCA_STATS_BASIC], {});
    const auto queue = value<gnet_stats_queue>(stats[TCA_STATS_QUEUE], {});
    return {.sent_bytes = basic.bytes,
            .sent_packets = value<uint64_t>(stats[TCA_STATS_PKT64], basic.packets),
            .backlog_bytes = queue.backlog,
            .backlog_packets = queue.qlen,
            .drops = queue.drops};
}

Bands read_prio(const nlattr *options) {
    const auto parameters = value<tc_prio_qopt>(options, {});
    const auto count = static_cast<uint32_t>(parameters.bands);
    Bands bands{.count = count, .strict = count};
    std::ranges::copy(parameters.priomap, bands.priomap.begin());
    return bands;
}

/// Visits the nested attributes of `outer`, of whatever type, in their order.
template <class Visit>
void for_each_nested(const nlattr *outer, Visit visit) {
    if (outer == nullptr)
        return;
    auto *inner = static_cast<nlattr *>(nla_data(outer));
    for (int rest = nla_len(outer); nla_ok(inner, rest) != 0; inner = nla_next(inner, &rest))
        visit(inner);
}

Bands read_ets(const nlattr *options) {
    const auto attrs = nested<TCA_ETS_MAX>(options);
    Bands bands{.count = value<uint8_t>(attrs[TCA_ETS_NBANDS], 0),
                .strict = value<uint8_t>(attrs[TCA_ETS_NSTRICT], 0)};
    for_each_nested(attrs[TCA_ETS_QUANTA],
                    [&bands](const nlattr *one) { bands.quanta.push_back(value<uint32_t>(one, 0)); });
    size_t priority = 0;
    for_each_nested(attrs[TCA_ETS_PRIOMAP], [&](const nlattr *one) {
        if (priority < bands.priomap.size())
            bands.priomap[priority++] = value<uint8_t>(one, 0);
    });
    return bands;
}

void read_qdisc(nlmsghdr *message, int ifindex, std::vector<Qdisc> &out) {
    const auto *header = header_of<tcmsg>(message);
    if (message->nlmsg_type != RTM_NEWQDISC || header == nullptr || header->tcm_ifindex != ifindex)
        return;
    const auto attrs = attributes_after<TCA_MAX, tcmsg>(message);
    Qdisc qdisc;
    qdisc.kind = text(attrs[TCA_KIND]);
    qdisc.handle = header->tcm_handle;
    qdisc.parent = header->tcm_parent;
    qdisc.counters = read_counters(attrs[TCA_STATS2]);
    if (qdisc.kind == "htb") {
        const nlattr *global = nested<TCA_HTB_MAX>(attrs[TCA_OPTIONS])[TCA_HTB_INIT];
        qdisc.htb_default = value<tc_htb_glob>(global, {}).defcls;
    } else if (qdisc.kind == "pfifo" || qdisc.kind == "bfifo" || qdisc.kind == "pfifo_head_drop") {
        qdisc.fifo_limit = value<tc_fifo_qopt>(attrs[TCA_OPTIONS], {}).limit;
    } else if (qdisc.kind == "prio") {
        qdisc.bands = read_prio(attrs[TCA_OPTIONS]);
    } else if (qdisc.kind == "ets") {
        qdisc.bands = read_ets(attrs[TCA_OPTIONS]);
    }
    out.push_back(std::move(qdisc));
}

HtbClass read_htb(const nlattr *options) {
    const auto attrs = nested<TCA_HTB_MAX>(options);
    const auto parameters = value<tc_htb_opt>(attrs[TCA_HTB_PARMS], {});
    constexpr uint64_t bits = 8; // the kernel counts bytes; 32 bits of them end at 34 Gbit/s
    return {.prio = parameters.prio,
            .rate = bits * value<uint64_t>(attrs[TCA_HTB_RATE64], parameters.rate.rate),
            .ceil = bits * value<uint64_t>(attrs[TCA_HTB_CEIL64], parameters.ceil.rate),
            .quantum = parameters.quantum};
}

void read_class(nlmsghdr *message, int ifindex, std::vector<TcClass> &out) {
    const auto *header = header_of<tcmsg>(message);
    if (message->nlmsg_type != RTM_NEWTCLASS || header == nullptr || header->tcm_ifindex != ifindex)
        return;
    const auto attrs = attributes_after<TCA_MAX, tcmsg>(message);
    TcClass tc_class;
    tc_class.kind = text(attrs[TCA_KIND]);
    tc_class.handle = header->tcm_handle;
    tc_class.parent = header->tcm_parent;
    tc_class.leaf = header->tcm_info;
    tc_class.counters = read_counters(attrs[TCA_STATS2]);
    if (tc_class.kind == "htb")
        tc_class.htb = read_htb(attrs[TCA_OPTIONS]);
    out.push_back(std::move(tc_class));
}

/// Attribute of a filter's options that lists its actions; 0 for kinds that we do not know.
int actions_attribute(std::string_view kind) {
    constexpr std::array<std::pair<std::string_view, int>, 6> known{{{"basic", TCA_BASIC_ACT},
                                                                     {"bpf", TCA_BPF_ACT},
                                                                     {"flower", TCA_FLOWER_ACT},
                                                                     {"fw", TCA_FW_ACT},
                                                                     {"matchall", TCA_MATCHALL_ACT},
                                                                     {"u32", TCA_U32_ACT}}};
    const auto *found = std::ranges::find(known, kind, &std::pair<std::string_view, int>::first);
    return found == known.end() ? 0 : found->second;
}

bool has_priority_action(std::string_view kind, const nlattr *options) {
    const int type = actions_attribute(kind);
    if (options == nullptr || type == 0)
        return false;
    bool sets = false;
    for_each_nested(
        nla_find(static_cast<nlattr *>(nla_data(options)), nla_len(options), type),
        [&sets](const nlattr *action) {
            const auto attrs = nested<TCA_ACT_OPTIONS>(action);
            sets = sets || (text(attrs[TCA_ACT_KIND]) == "skbedit" &&
                            nested<TCA_SKBEDIT_MAX>(attrs[TCA_ACT_OPTIONS])[TCA_SKBEDIT_PRIORITY] != nullptr);
        });
    return sets;
}

void read_filter(nlmsghdr *message, std::vector<TcFilter> &out) {
    const auto *header = header_of<tcmsg>(message);
    if (message->nlmsg_type != RTM_NEWTFILTER || header == nullptr || header->tcm_handle == 0)
        return; // without a handle: the chain that filters of one priority form
    const auto attrs = attributes_after<TCA_MAX, tcmsg>(message);
    TcFilter filter{.kind = text(attrs[TCA_KIND]),
                    .handle = header->tcm_handle,
                    .priority = TC_H_MAJ(header->tcm_info) >> 16U};
    if (filter.kind == "bpf")
        filter.program = text(nested<TCA_BPF_MAX>(attrs[TCA_OPTIONS])[TCA_BPF_NAME]);
    filter.sets_priority = has_priority_action(filter.kind, attrs[TCA_OPTIONS]);
    out.push_back(std::move(filter));
}

void read_reading(nlmsghdr *message, std::vector<QueueReading> &out) {
    const auto *header = header_of<tcmsg>(message);
    if (message->nlmsg_type != RTM_NEWQDISC || header == nullptr)
        return;
    const auto attrs = attributes_after<TCA_MAX, tcmsg>(message);
    out.push_back(
        {header->tcm_ifindex, header->tcm_handle, header->tcm_parent, read_counters(attrs[TCA_STATS2])});
}

// ---- sockets

Result<detail::NlSocket> connect(const char *purpose) {
    detail::NlSocket socket{nl_socket_alloc()};
    const int error = socket ? nl_connect(socket.get(), NETLINK_ROUTE) : -NLE_NOMEM;
    if (error < 0)
        return fail({.operation = purpose, .detail = nl_geterror(error)});
    return socket;
}

/// Receives one datagram from the kernel, growing `buffer` to hold it. Its length, or −errno.
ssize_t receive(int fd, std::vector<std::byte> &buffer, int flags) {
    for (;;) {
        ssize_t length = ::recv(fd, nullptr, 0, MSG_PEEK | MSG_TRUNC | flags);
        if (length > static_cast<ssize_t>(buffer.size()))
            buffer.resize(static_cast<size_t>(length));
        sockaddr_nl sender{};
        socklen_t size = sizeof(sender);
        if (length >= 0)
            length = ::recvfrom(fd, buffer.data(), buffer.size(), flags,
                                reinterpret_cast<sockaddr *>(&sender), &size);
        if (length >= 0 && sender.nl_pid == 0)
            return length;
        if (length < 0 && errno != EINTR)
            return -errno;
    }
}

enum class Answer { complete, again };

/// Sends `request` and hands the messages of its answer to `read`.
/// `again`: the answer is torn because things changed meanwhile. Errors are errno values.
template <class Read>
std::expected<Answer, int> exchange(int fd, nl_msg &request, std::vector<std::byte> &buffer, Read &&read) {
    nlmsghdr *const asked = nlmsg_hdr(&request);
    while (::send(fd, asked, asked->nlmsg_len, 0) < 0)
        if (errno != EINTR)
            return std::unexpected(errno);

    const bool dump = (asked->nlmsg_flags & NLM_F_DUMP) == NLM_F_DUMP;
    bool torn = false;
    for (;;) {
        const ssize_t length = receive(fd, buffer, 0);
        if (length < 0)
            return std::unexpected(static_cast<int>(-length));
        auto *message = reinterpret_cast<nlmsghdr *>(buffer.data());
        int rest = static_cast<int>(length);
        for (; nlmsg_ok(message, rest) != 0; message = nlmsg_next(message, &rest)) {
            if (message->nlmsg_seq != asked->nlmsg_seq)
                continue;
            torn = torn || (message->nlmsg_flags & NLM_F_DUMP_INTR) != 0;
            if (message->nlmsg_type == NLMSG_DONE || message->nlmsg_type == NLMSG_ERROR) {
                // Both begin with an int: the negative errno with which a dump or a request ended.
                const int *code = header_of<int>(message);
                const int error = code == nullptr ? 0 : -*code;
                if (error == EINTR || error == EBUSY)
                    torn = true;
                else if (error != 0)
                    return std::unexpected(error);
                return torn ? Answer::again : Answer::complete;
            }
            read(message);
            if (!dump)
                return Answer::complete;
        }
    }
}

/// A request about ports; null when memory is short. `name` may be empty.
detail::NlMessage link_request(int flags, int ifindex, const std::string &name) {
    detail::NlMessage message{nlmsg_alloc_simple(RTM_GETLINK, NLM_F_REQUEST | flags)};
    if (!message)
        return message;
    ifinfomsg header{};
    header.ifi_index = ifindex;
    nlmsg_append(message.get(), &header, sizeof(header), NLMSG_ALIGNTO);
    // Statistics of every port are half of the answer, and nobody here reads them.
    nla_put_u32(message.get(), IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
    if (!name.empty())
        nla_put_string(message.get(), IFLA_IFNAME, name.c_str());
    return message;
}

/// A dump of qdiscs (the kernel gives those of all ports), classes (of one port) or filters (of one parent),
/// default children included.
detail::NlMessage tc_request(int type, int ifindex, TcHandle parent = 0) {
    detail::NlMessage message{nlmsg_alloc_simple(type, NLM_F_REQUEST | NLM_F_DUMP)};
    if (!message)
        return message;
    tcmsg header{};
    header.tcm_ifindex = ifindex;
    header.tcm_parent = parent;
    nlmsg_append(message.get(), &header, sizeof(header), NLMSG_ALIGNTO);
    nla_put_flag(message.get(), TCA_DUMP_INVISIBLE);
    return message;
}

std::string port_label(int ifindex) {
    std::array<char, IF_NAMESIZE> name{};
    if (::if_indextoname(static_cast<unsigned>(ifindex), name.data()) != nullptr)
        return name.data();
    return fmt::format("port {}", ifindex);
}

bool known_event(const EventBatch &batch, const LinkEvent &event) {
    const auto last = std::find_if(batch.links.rbegin(), batch.links.rend(),
                                   [&event](const LinkEvent &e) { return e.ifindex == event.ifindex; });
    return last != batch.links.rend() && last->name == event.name && last->deleted == event.deleted;
}

void add_event(nlmsghdr *message, EventBatch &batch) {
    switch (message->nlmsg_type) {
    case RTM_NEWLINK:
    case RTM_DELLINK: {
        const auto *header = header_of<ifinfomsg>(message);
        if (header == nullptr)
            return;
        // With family AF_BRIDGE, RTM_DELLINK tells that a port left its bridge: the port itself lives on.
        const bool deleted = message->nlmsg_type == RTM_DELLINK && header->ifi_family == AF_UNSPEC;
        LinkEvent event{header->ifi_index, text(attributes_after<IFLA_MAX, ifinfomsg>(message)[IFLA_IFNAME]),
                        deleted};
        if (!known_event(batch, event))
            batch.links.push_back(std::move(event));
        return;
    }
    case RTM_NEWQDISC:
    case RTM_DELQDISC:
    case RTM_NEWTCLASS:
    case RTM_DELTCLASS: {
        const auto *header = header_of<tcmsg>(message);
        if (header != nullptr &&
            std::ranges::find(batch.tc_ports, header->tcm_ifindex) == batch.tc_ports.end())
            batch.tc_ports.push_back(header->tcm_ifindex);
        return;
    }
    default:
        return;
    }
}

/// Asks for a receive buffer beyond the system's limit, or up to it where the privilege is missing.
void set_receive_buffer(int fd, int bytes) {
    if (::setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof(bytes)) != 0)
        ::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
}

} // namespace

void detail::NlFree::operator()(nl_sock *socket) const {
    nl_socket_free(socket);
}
void detail::NlFree::operator()(nl_msg *message) const {
    nlmsg_free(message);
}

bool has_upper(std::span<const LinkInfo> links, int ifindex) {
    // These name a peer, or the device their packets happen to be routed through.
    constexpr std::array not_upper{"veth", "netkit", "vxcan", "gretap", "ip6gretap", "erspan", "ip6erspan"};
    return std::ranges::any_of(links, [&](const LinkInfo &link) {
        return link.lower == ifindex && !link.lower_foreign && link.ethernet() &&
               std::ranges::find(not_upper, link.kind) == not_upper.end();
    });
}

// ---- Netlink

Netlink::Netlink(detail::NlSocket socket) : socket_(std::move(socket)), buffer_(32768) {}

Result<Netlink> Netlink::open() {
    auto socket = connect("open netlink");
    if (!socket)
        return fail(std::move(socket.error()));
    return Netlink(std::move(*socket));
}

template <class T, class Read>
Result<> Netlink::ask(const Question &question, const detail::NlMessage &request, std::vector<T> &out,
                      Read read) {
    if (!request)
        return fail({.operation = question.operation, .object = question.object, .number = ENOMEM});
    int error = EINTR;
    for (int attempt = 0; attempt < attempts; ++attempt) {
        nlmsg_hdr(request.get())->nlmsg_seq = ++sequence_;
        out.clear();
        const auto answer = exchange(nl_socket_get_fd(socket_.get()), *request, buffer_,
                                     [&](nlmsghdr *message) { read(message, out); });
        if (answer && *answer == Answer::complete)
            return {};
        if (!answer) {
            error = answer.error();
            break;
        }
    }
    return fail({.operation = question.operation, .object = question.object, .number = error});
}

Result<std::vector<LinkInfo>> Netlink::links() {
    std::vector<LinkInfo> out;
    auto done = ask({"list ports", {}}, link_request(NLM_F_DUMP, 0, {}), out, read_link);
    if (!done)
        return fail(std::move(done.error()));
    return out;
}

Result<std::optional<LinkInfo>> Netlink::one_link(std::string object, const detail::NlMessage &request) {
    std::vector<LinkInfo> out;
    auto done = ask({"look up port", std::move(object)}, request, out, read_link);
    if (!done && done.error().number == ENODEV)
        return std::nullopt;
    if (!done)
        return fail(std::move(done.error()));
    return out.empty() ? std::nullopt : std::optional(std::move(out.front()));
}

Result<std::optional<LinkInfo>> Netlink::link(std::string_view name) {
    if (name.empty() || name.size() >= IF_NAMESIZE)
        return std::nullopt; // no port can bear such a name
    const std::string text(name);
    return one_link(text, link_request(0, 0, text));
}

Result<std::optional<LinkInfo>> Netlink::link(int ifindex) {
    if (ifindex <= 0)
        return std::nullopt;
    return one_link(fmt::format("port {}", ifindex), link_request(0, ifindex, {}));
}

Result<bool> Netlink::takes_other_addresses(int ifindex) {
    detail::NlMessage message{nlmsg_alloc_simple(RTM_GETNEIGH, NLM_F_REQUEST | NLM_F_DUMP)};
    if (message) {
        ndmsg header{};
        header.ndm_family = AF_BRIDGE;
        header.ndm_ifindex = ifindex;
        nlmsg_append(message.get(), &header, sizeof(header), NLMSG_ALIGNTO);
    }
    std::vector<int> others;
    auto done =
        ask({"read addresses", port_label(ifindex)}, message, others, [ifindex](nlmsghdr *answer, auto &out) {
            const auto *header = header_of<ndmsg>(answer);
            if (answer->nlmsg_type != RTM_NEWNEIGH || header == nullptr || header->ndm_ifindex != ifindex ||
                (header->ndm_flags & NTF_SELF) == 0)
                return;
            const auto address = value<std::array<uint8_t, ETH_ALEN>>(
                attributes_after<NDA_MAX, ndmsg>(answer)[NDA_LLADDR], {1});
            if ((address[0] & 1U) == 0)
                out.push_back(ifindex);
        });
    if (!done)
        return fail(std::move(done.error()));
    return !others.empty();
}

Result<std::vector<Qdisc>> Netlink::qdiscs(int ifindex) {
    std::vector<Qdisc> out;
    auto done = ask({"read qdiscs", port_label(ifindex)}, tc_request(RTM_GETQDISC, ifindex), out,
                    [ifindex](nlmsghdr *message, auto &all) { read_qdisc(message, ifindex, all); });
    if (!done)
        return fail(std::move(done.error()));
    return out;
}

Result<std::vector<TcClass>> Netlink::classes(int ifindex) {
    std::vector<TcClass> out;
    auto done = ask({"read classes", port_label(ifindex)}, tc_request(RTM_GETTCLASS, ifindex), out,
                    [ifindex](nlmsghdr *message, auto &all) { read_class(message, ifindex, all); });
    if (!done)
        return fail(std::move(done.error()));
    return out;
}

Result<std::vector<TcFilter>> Netlink::filters(int ifindex, TcHandle parent) {
    std::vector<TcFilter> out;
    auto done = ask({"read filters", port_label(ifindex)}, tc_request(RTM_GETTFILTER, ifindex, parent), out,
                    read_filter);
    if (!done && done.error().number != EINVAL && done.error().number != ENODEV)
        return fail(std::move(done.error()));
    return out;
}

Result<TcTree> Netlink::tree(int ifindex) {
    auto qdiscs = this->qdiscs(ifindex);
    if (!qdiscs)
        return fail(std::move(qdiscs.error()));
    auto classes = this->classes(ifindex);
    if (!classes)
        return fail(std::move(classes.error()));
    return TcTree{ifindex, std::move(*qdiscs), std::move(*classes)};
}

Result<> Netlink::read_queues(std::vector<QueueReading> &out) {
    return ask({"read queues", {}}, tc_request(RTM_GETQDISC, 0), out, read_reading);
}

// ---- NetlinkEvents

NetlinkEvents::NetlinkEvents(detail::NlSocket socket)
    : socket_(std::move(socket)), buffer_(32768), receive_buffer_(events_buffer) {
    set_receive_buffer(fd(), receive_buffer_);
}

Result<NetlinkEvents> NetlinkEvents::open() {
    auto socket = connect("open netlink events");
    if (!socket)
        return fail(std::move(socket.error()));
    const int error = nl_socket_add_memberships(socket->get(), RTNLGRP_LINK, RTNLGRP_TC, 0);
    if (error < 0)
        return fail({.operation = "subscribe to netlink events", .detail = nl_geterror(error)});
    return NetlinkEvents(std::move(*socket));
}

int NetlinkEvents::fd() const {
    return nl_socket_get_fd(socket_.get());
}

Result<EventBatch> NetlinkEvents::drain() {
    EventBatch batch;
    for (int datagrams = 0; datagrams < events_per_drain; ++datagrams) {
        const ssize_t length = receive(fd(), buffer_, MSG_DONTWAIT);
        if (length == -EAGAIN)
            break;
        if (length == -ENOBUFS) {
            batch.resync = true;
            receive_buffer_ = std::min(2 * receive_buffer_, events_buffer_max);
            set_receive_buffer(fd(), receive_buffer_);
            continue;
        }
        if (length < 0)
            return fail({.operation = "read netlink events", .number = static_cast<int>(-length)});
        auto *message = reinterpret_cast<nlmsghdr *>(buffer_.data());
        int rest = static_cast<int>(length);
        for (; nlmsg_ok(message, rest) != 0; message = nlmsg_next(message, &rest))
            add_event(message, batch);
    }
    return batch;
}

} // namespace spillway
