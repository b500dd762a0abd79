// SPDX-License-Identifier: Apache-2.0
#include "agent/doctor/port_facts.h"

#include "agent/kernel/filters.h"
#include "agent/kernel/links.h"

#include <algorithm>
#include <bpf/bpf.h>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <functional>
#include <linux/dcbnl.h>
#include <linux/ethtool.h>
#include <linux/genetlink.h>
#include <linux/if.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <memory>
#include <netlink/attr.h>
#include <netlink/msg.h>
#include <netlink/netlink.h>
#include <netlink/socket.h>
#include <span>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <type_traits>

namespace spillway {
namespace {

// ---- netlink questions that the agent never asks

using Names = std::vector<std::string>;
using Visit = std::function<void(nlmsghdr *)>;

/// Sends a request and shows the messages of its answer. An answer that does not come is no answer.
void ask_netlink(int protocol, const detail::NlMessage &request, const Visit &visit) {
    const detail::NlSocket socket{nl_socket_alloc()};
    if (!socket || !request)
        return;
    nl_socket_disable_auto_ack(socket.get());
    nl_socket_modify_cb(
        socket.get(), NL_CB_VALID, NL_CB_CUSTOM,
        [](nl_msg *message, void *visit) {
            (*static_cast<const Visit *>(visit))(nlmsg_hdr(message));
            return static_cast<int>(NL_OK);
        },
        const_cast<Visit *>(&visit));
    if (nl_connect(socket.get(), protocol) == 0 && nl_send_auto(socket.get(), request.get()) >= 0)
        nl_recvmsgs_default(socket.get());
}

template <class Header>
detail::NlMessage request(int type, int flags, const Header &header) {
    detail::NlMessage message{nlmsg_alloc_simple(type, NLM_F_REQUEST | flags)};
    if (message)
        nlmsg_append(message.get(), const_cast<Header *>(&header), sizeof(header), NLMSG_ALIGNTO);
    return message;
}

/// The value that `attribute` begins with; none when it is absent or shorter.
template <class T>
std::optional<T> value(const nlattr *attribute) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (attribute == nullptr || nla_len(attribute) < static_cast<int>(sizeof(T)))
        return std::nullopt;
    T copy{};
    std::memcpy(&copy, nla_data(attribute), sizeof(T));
    return copy;
}

const nlattr *inner(const nlattr *outer, int type) {
    return outer == nullptr ? nullptr
                            : nla_find(static_cast<nlattr *>(nla_data(outer)), nla_len(outer), type);
}

bool has_switch_chip(int ifindex) {
    ifinfomsg header{};
    header.ifi_index = ifindex;
    bool found = false;
    ask_netlink(NETLINK_ROUTE, request(RTM_GETLINK, 0, header), [&found](nlmsghdr *answer) {
        found = nlmsg_find_attr(answer, sizeof(ifinfomsg), IFLA_PHYS_SWITCH_ID) != nullptr;
    });
    return found;
}

std::optional<DcbFacts> dcb_of(const std::string &port) {
    const dcbmsg header{.dcb_family = AF_UNSPEC, .cmd = DCB_CMD_IEEE_GET, .dcb_pad = 0};
    const auto question = request(RTM_GETDCB, 0, header);
    if (question)
        nla_put_string(question.get(), DCB_ATTR_IFNAME, port.c_str());
    std::optional<DcbFacts> facts;
    ask_netlink(NETLINK_ROUTE, question, [&facts](nlmsghdr *answer) {
        const nlattr *ieee = nlmsg_find_attr(answer, sizeof(dcbmsg), DCB_ATTR_IEEE);
        const auto pfc = value<ieee_pfc>(inner(ieee, DCB_ATTR_IEEE_PFC));
        const auto ets = value<ieee_ets>(inner(ieee, DCB_ATTR_IEEE_ETS));
        if (!pfc)
            return;
        facts.emplace();
        facts->pfc_enabled = pfc->pfc_en;
        if (ets)
            std::ranges::copy(ets->prio_tc, facts->prio_tc.begin());
    });
    return facts;
}

/// Number of a family of generic netlink; 0 when the kernel has none of that name.
std::uint16_t netlink_family(const char *name) {
    const genlmsghdr header{.cmd = CTRL_CMD_GETFAMILY, .version = 1, .reserved = 0};
    const auto question = request(GENL_ID_CTRL, 0, header);
    if (question)
        nla_put_string(question.get(), CTRL_ATTR_FAMILY_NAME, name);
    std::uint16_t family = 0;
    ask_netlink(NETLINK_GENERIC, question, [&family](nlmsghdr *answer) {
        family = value<std::uint16_t>(nlmsg_find_attr(answer, sizeof(genlmsghdr), CTRL_ATTR_FAMILY_ID))
                     .value_or(0);
    });
    return family;
}

std::optional<std::uint64_t> xdp_features_of(int ifindex) {
    constexpr std::uint8_t get_device = 1; // NETDEV_CMD_DEV_GET and its attributes, newer than our headers
    constexpr int attribute_ifindex = 1;
    constexpr int attribute_xdp_features = 3;
    const std::uint16_t family = netlink_family("netdev");
    if (family == 0)
        return std::nullopt;
    const genlmsghdr header{.cmd = get_device, .version = 1, .reserved = 0};
    const auto question = request(family, 0, header);
    if (question)
        nla_put_u32(question.get(), attribute_ifindex, static_cast<std::uint32_t>(ifindex));
    std::optional<std::uint64_t> features;
    ask_netlink(NETLINK_GENERIC, question, [&features](nlmsghdr *answer) {
        features = value<std::uint64_t>(nlmsg_find_attr(answer, sizeof(genlmsghdr), attribute_xdp_features));
    });
    return features;
}

// ---- ethtool

template <class T>
bool ethtool(int socket, const std::string &port, T &command) {
    ifreq request{};
    port.copy(request.ifr_name, IFNAMSIZ - 1);
    request.ifr_data = reinterpret_cast<char *>(&command);
    return ::ioctl(socket, SIOCETHTOOL, &request) == 0;
}

struct FreeMemory {
    void operator()(void *memory) const { std::free(memory); }
};

/// A command of ethtool that ends in an array of `count` `Element`s.
template <class Command, class Element>
std::unique_ptr<Command, FreeMemory> with_array(std::size_t count) {
    return std::unique_ptr<Command, FreeMemory>(
        static_cast<Command *>(std::calloc(1, sizeof(Command) + count * sizeof(Element))));
}

std::string driver_of(int socket, const std::string &port) {
    ethtool_drvinfo info{};
    info.cmd = ETHTOOL_GDRVINFO;
    return ethtool(socket, port, info) ? std::string(info.driver, strnlen(info.driver, sizeof(info.driver)))
                                       : std::string();
}

std::optional<std::set<std::string>> features_of(int socket, const std::string &port) {
    const auto sizes = with_array<ethtool_sset_info, std::uint32_t>(1);
    sizes->cmd = ETHTOOL_GSSET_INFO;
    sizes->sset_mask = 1ULL << ETH_SS_FEATURES;
    if (!ethtool(socket, port, *sizes) || sizes->sset_mask == 0)
        return std::nullopt;
    const std::uint32_t count = sizes->data[0];

    struct Name {
        std::array<char, ETH_GSTRING_LEN> text;
    };
    const auto names = with_array<ethtool_gstrings, Name>(count);
    names->cmd = ETHTOOL_GSTRINGS;
    names->string_set = ETH_SS_FEATURES;
    names->len = count;
    constexpr std::uint32_t bits = 32;
    const std::uint32_t blocks = (count + bits - 1) / bits;
    const auto values = with_array<ethtool_gfeatures, ethtool_get_features_block>(blocks);
    values->cmd = ETHTOOL_GFEATURES;
    values->size = blocks;
    if (!ethtool(socket, port, *names) || !ethtool(socket, port, *values))
        return std::nullopt;

    const std::span texts(reinterpret_cast<const Name *>(names->data), count);
    std::set<std::string> on;
    for (std::uint32_t i = 0; i < count; i++)
        if ((values->features[i / bits].active >> i % bits & 1U) != 0)
            on.insert({texts[i].text.data(), strnlen(texts[i].text.data(), ETH_GSTRING_LEN)});
    return on;
}

// ---- /sys

/// /sys as the current network namespace has it: the one that is mounted may show another's interfaces.
Fd network_sysfs() {
    const Fd context(::fsopen("sysfs", FSOPEN_CLOEXEC));
    if (!context || ::fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0)
        return {};
    return Fd(::fsmount(context.get(), FSMOUNT_CLOEXEC, MOUNT_ATTR_RDONLY));
}

struct CloseFolder {
    void operator()(DIR *folder) const { ::closedir(folder); }
};

Names entries_of(int directory) {
    const std::unique_ptr<DIR, CloseFolder> open(::fdopendir(directory));
    Names names;
    while (const dirent *entry = open ? ::readdir(open.get()) : nullptr)
        names.emplace_back(entry->d_name);
    return names;
}

/// Whether a mask as sysfs writes it ("0,00000003") has a bit set. One that cannot be read has none: the
/// device has one queue.
bool any_bit(int directory, const std::string &file) {
    const Fd mask(::openat(directory, file.c_str(), O_RDONLY | O_CLOEXEC));
    std::array<char, 4096> text{};
    const ssize_t length = mask ? ::read(mask.get(), text.data(), text.size()) : 0;
    return std::any_of(text.begin(), text.begin() + std::max<ssize_t>(length, 0),
                       [](char c) { return std::strchr("0,\n", c) == nullptr; });
}

std::optional<bool> xps_of(int sysfs, const std::string &port) {
    const std::string folder = "class/net/" + port + "/queues";
    const Fd queues(::openat(sysfs, folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!queues)
        return std::nullopt;
    return std::ranges::any_of(entries_of(::dup(queues.get())), [&queues](const std::string &queue) {
        return queue.starts_with("tx-") &&
               (any_bit(queues.get(), queue + "/xps_cpus") || any_bit(queues.get(), queue + "/xps_rxqs"));
    });
}

// ---- BPF

std::string program_name(std::uint32_t id) {
    const Fd program(::bpf_prog_get_fd_by_id(id));
    bpf_prog_info info{};
    std::uint32_t size = sizeof(info);
    if (!program || ::bpf_obj_get_info_by_fd(program.get(), &info, &size) != 0)
        return {};
    return {info.name, strnlen(info.name, sizeof(info.name))};
}

std::vector<TcxProgram> named_tcx_programs(int ifindex) {
    std::vector<TcxProgram> programs;
    for (const Hook hook : {Hook::ingress, Hook::egress})
        for (const std::uint32_t id : tcx_programs(ifindex, hook))
            programs.push_back({hook == Hook::egress, id, program_name(id)});
    return programs;
}

} // namespace

Result<PortQuestions> PortQuestions::open(std::string_view instance) {
    auto netlink = Netlink::open();
    if (!netlink)
        return fail(std::move(netlink.error()));
    Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!socket)
        return fail({.operation = "open socket for ethtool", .number = errno});
    return PortQuestions(instance, std::move(*netlink), network_sysfs(), std::move(socket));
}

Result<PortFacts> PortQuestions::ask(const LinkInfo &link, const TcTree &tree) {
    PortFacts facts;
    facts.driver = driver_of(socket_.get(), link.name);
    facts.features = features_of(socket_.get(), link.name);
    facts.xdp_features = xdp_features_of(link.ifindex);
    if (link.xdp_program != 0)
        facts.xdp_program = program_name(link.xdp_program);
    facts.tcx = named_tcx_programs(link.ifindex);
    facts.xps = xps_of(sysfs_.get(), link.name);
    facts.dcb = dcb_of(link.name);
    facts.switch_chip = has_switch_chip(link.ifindex);

    std::vector<TcHandle> parents;
    for (const Qdisc &qdisc : tree.qdiscs) {
        if (qdisc.kind == "clsact" || qdisc.kind == "ingress")
            parents.insert(parents.end(), {clsact_hook(Hook::ingress), clsact_hook(Hook::egress)});
        else if (qdisc.handle != 0)
            parents.push_back(qdisc.handle);
    }
    for (const TcClass &one : tree.classes)
        if (tc_major(one.handle) != 0)
            parents.push_back(one.handle);
    for (const TcHandle parent : parents) {
        auto filters = netlink_.filters(link.ifindex, parent);
        if (!filters)
            return fail(std::move(filters.error()));
        for (TcFilter &filter : *filters) {
            const bool own = is_filter_of(filter, instance_);
            facts.filters.push_back({parent, std::move(filter), own});
        }
    }
    return facts;
}

} // namespace spillway
