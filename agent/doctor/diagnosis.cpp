// SPDX-License-Identifier: Apache-2.0
#include "agent/doctor/diagnosis.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <iterator>
#include <linux/pkt_sched.h>
#include <numeric>
#include <span>
#include <tuple>

namespace spillway {
namespace {

using Names = std::vector<std::string>;

std::string list(const Names &names) {
    return fmt::format("{}", fmt::join(names, ", "));
}

void add_once(Names &names, std::string name) {
    if (std::ranges::find(names, name) == names.end())
        names.push_back(std::move(name));
}

/// Adds checks of one port, or of the host.
class Sheet {
  public:
    explicit Sheet(std::vector<Check> &checks, std::string port = {})
        : checks_(checks), port_(std::move(port)) {}

    void fine(std::string_view id, std::string_view text) const { add(Level::fine, id, text, {}); }
    void note(std::string_view id, std::string_view text, std::string_view remedy = {}) const {
        add(Level::note, id, text, remedy);
    }
    void problem(std::string_view id, std::string_view text, std::string_view remedy) const {
        add(Level::problem, id, text, remedy);
    }
    /// It was judged already, with the judgments that `check` makes.
    [[nodiscard]] bool has(std::string_view id) const {
        return std::ranges::any_of(checks_,
                                   [&](const Check &check) { return check.id == id && check.port == port_; });
    }

  private:
    void add(Level level, std::string_view id, std::string_view text, std::string_view remedy) const {
        checks_.push_back({.id = std::string(id),
                           .level = level,
                           .port = port_,
                           .text = port_.empty() ? std::string(text) : fmt::format("{}: {}", port_, text),
                           .remedy = std::string(remedy)});
    }

    std::vector<Check> &checks_;
    std::string port_;
};

// ---- the host

void judge_bpf(const BpfFacts &bpf, const Config &config, const Sheet &sheet) {
    if (bpf.refusal != 0) {
        const bool privilege = bpf.refusal == EPERM || bpf.refusal == EACCES;
        sheet.problem("bpf",
                      fmt::format("the kernel refuses every BPF program: {}", std::strerror(bpf.refusal)),
                      privilege ? "run as root on the host itself: a container, seccomp or lockdown may "
                                  "forbid it too"
                                : "use a kernel built with CONFIG_BPF_SYSCALL=y");
        return;
    }
    sheet.fine("bpf", "the kernel takes BPF programs");
    if (bpf.programs)
        sheet.problem("programs",
                      fmt::format("the kernel refuses spillway's programs: {}", bpf.programs->message()),
                      bpf.programs->hint.empty() ? "use Linux 5.10 or later" : bpf.programs->hint);
    else
        sheet.fine("programs", "the kernel takes spillway's programs");
    if (bpf.queue_read == true)
        sheet.fine("kernel_read", "programs can read queues themselves");
    else if (bpf.queue_read == false && config.detection.source == DetectionSource::kernel)
        sheet.problem("kernel_read", "the kernel does not let programs read queues, as detection.source asks",
                      "set detection.source to auto");
    else if (bpf.queue_read == false)
        sheet.note("kernel_read", "the kernel does not let programs read queues, so the agent polls them",
                   "use a newer kernel, and capability PERFMON");
    if (bpf.ring_buffer == true)
        sheet.fine("ring_buffer", "the kernel has BPF ring buffers");
    else if (bpf.ring_buffer == false)
        sheet.problem("ring_buffer", "the kernel has no BPF ring buffers", "use Linux 5.8 or later");
    if (bpf.tc_hook == TcHook::tcx)
        sheet.fine("tc_hook", "TC programs hang on ports as tcx links");
    else if (bpf.tc_hook == TcHook::clsact)
        sheet.note("tc_hook", "the kernel has no tcx links, so TC programs are filters of a clsact qdisc",
                   "use Linux 6.6 or later");
    else if (bpf.tc_hook == TcHook::none)
        sheet.problem("tc_hook", "the kernel has neither tcx links nor the clsact qdisc",
                      "load its module: modprobe sch_ingress; or use Linux 6.6 or later");
}

void judge_system(const HostFacts &facts, const Sheet &sheet) {
    const SystemFacts &system = facts.system;
    if (system.lockdown != "confidentiality")
        sheet.fine("lockdown", system.lockdown.empty() ? std::string("the kernel has no lockdown")
                                                       : fmt::format("lockdown is {}", system.lockdown));
    else if (facts.bpf.queue_read == true)
        sheet.fine("lockdown", "lockdown is confidentiality, and programs can read queues all the same");
    else
        sheet.note("lockdown", "lockdown is confidentiality: programs may not read the kernel's memory",
                   "boot with lockdown=integrity, or without; else queues are polled");
    if (system.bpf_filesystem)
        sheet.fine("bpffs", "the BPF file system is mounted at /sys/fs/bpf");
    else
        sheet.note("bpffs", "no BPF file system is mounted at /sys/fs/bpf; the agent mounts one if it may",
                   "mount -t bpf bpf /sys/fs/bpf");
}

void judge_configuration(const HostFacts &facts, const Sheet &sheet) {
    const ConfigFacts &config = facts.config;
    Names ports;
    for (const auto *link : named_ports(config.config, facts.host))
        ports.push_back(link->name);
    const std::string looked_at =
        ports.empty() ? "no port is looked at" : fmt::format("looked at instead: {}", list(ports));
    if (config.absent)
        sheet.note("configuration",
                   fmt::format("there is no configuration {}; {}", config.file.string(), looked_at),
                   "write one, see man spillway.json; or name one with --config");
    else if (config.fault)
        sheet.problem("configuration", fmt::format("{}; {}", config.fault->message(), looked_at),
                      config.fault->hint);
    else
        sheet.fine("configuration", fmt::format("{} names these ports of the host: {}", config.file.string(),
                                                ports.empty() ? "none" : list(ports)));
}

/// The qdiscs that sort packets by the low bits of their priority, which IPv4 forwarding sets.
bool sorts_by_priority(std::string_view kind) {
    constexpr std::array kinds{"prio", "ets", "pfifo_fast", "mqprio"};
    return std::ranges::find(kinds, kind) != kinds.end();
}

void judge_forwarding(const HostFacts &facts, const Sheet &sheet) {
    Names sorting;
    for (const auto *link : named_ports(facts.config.config, facts.host))
        if (const auto tree = facts.host.trees.find(link->ifindex); tree != facts.host.trees.end())
            if (const Qdisc *root = find_root(tree->second); root && sorts_by_priority(root->kind))
                sorting.push_back(fmt::format("{} ({})", link->name, root->kind));
    if (!facts.system.forwards_ipv4)
        sheet.fine("forward_priority", "this host does not forward IPv4");
    else if (!facts.system.forwarding_sets_priority)
        sheet.fine("forward_priority", "IPv4 forwarding leaves packets their priority");
    else if (sorting.empty())
        sheet.fine("forward_priority", "IPv4 forwarding sets packets' priority by their TOS; no qdisc here "
                                       "sorts by it");
    else
        sheet.note(
            "forward_priority",
            fmt::format("IPv4 forwarding sets packets' priority by their TOS, and by it they are sorted "
                        "into queues of {}; spillway counts them in the port's first queue",
                        list(sorting)),
            "sysctl -w net.ipv4.ip_forward_update_priority=0");
}

void judge_bridge_netfilter(const HostFacts &facts, const Sheet &sheet) {
    const bool bridge =
        std::ranges::any_of(facts.host.links, [](const LinkInfo &link) { return link.kind == "bridge"; });
    if (!bridge || facts.system.bridge_netfilter.empty()) {
        sheet.fine("bridge_netfilter", "no bridged packet passes through iptables");
        return;
    }
    Names settings;
    for (const auto &table : facts.system.bridge_netfilter)
        settings.push_back(fmt::format("net.bridge.bridge-nf-call-{}=0", table));
    sheet.note("bridge_netfilter",
               fmt::format("bridged packets pass through {}, whose rules may drop or delay them; spillway "
                           "works all the same",
                           list(facts.system.bridge_netfilter)),
               fmt::format("unless a firewall needs it: sysctl -w {}", fmt::join(settings, " ")));
}

// ---- a port

/// A port with all that is known of it.
struct Port {
    const HostFacts &all;
    const PortConfig &config;
    const LinkInfo &link;
    const TcTree &tree;
    const PortFacts &facts;

    [[nodiscard]] const LinkInfo *link_of(int ifindex) const {
        const auto found = std::ranges::find(all.host.links, ifindex, &LinkInfo::ifindex);
        return found == all.host.links.end() ? nullptr : &*found;
    }
    [[nodiscard]] bool served(const LinkInfo &other) const {
        return find_port(all.config.config, other.name) != nullptr;
    }
    [[nodiscard]] std::string_view root_kind() const {
        const Qdisc *root = find_root(tree);
        return root == nullptr ? std::string_view{} : std::string_view(root->kind);
    }
    [[nodiscard]] std::string setup() const {
        return fmt::format("spillway setup {} --rate RATE", link.name);
    }
};

/// A queue and one of its isolation classes, both there and in the right order.
struct Pair {
    ClassId queue;
    ClassId isolate;
};

std::vector<Pair> isolating_pairs(const Port &port) {
    std::vector<Pair> pairs;
    for (const auto &queue : port.config.queues)
        for (const ClassId isolate : queue.isolate_class)
            if (resolve_leaf(port.tree, isolate.handle) &&
                check_below(port.tree, isolate.handle, queue.queue_class.handle))
                pairs.push_back({queue.queue_class, isolate});
    return pairs;
}

void judge_link(const Port &port, const Sheet &sheet) {
    if (!sheet.has("port"))
        sheet.fine("port", port.facts.driver.empty() ? std::string("it is up")
                                                     : fmt::format("it is up, driver {}", port.facts.driver));
    if (port.facts.switch_chip)
        sheet.problem(
            "switchdev",
            "a switch chip forwards for it: packets that it forwards by itself never meet the CPU, "
            "and are neither detected nor isolated",
            "let the kernel forward what matters (for filters: ethtool -K DEV hw-tc-offload off), or "
            "isolate at the hosts");
    else
        sheet.fine("switchdev", "no switch chip forwards for it");
}

void judge_queues(const Port &port, const Sheet &sheet) {
    if (sheet.has("noqueue"))
        return;
    const std::string_view root = port.root_kind();
    if (root.empty() || root == "noqueue")
        sheet.fine("noqueue", "no packet ever waits here, and no queue is configured");
    else
        sheet.fine("noqueue", fmt::format("packets wait in its {} qdisc", root));
    if (port.config.queues.empty() || sheet.has("classes"))
        return;
    Names classes;
    for (const auto &queue : port.config.queues)
        add_once(classes, queue.queue_class.text());
    sheet.fine("classes", fmt::format("its queues are there: {}", list(classes)));
}

/// Without a configuration: whether any two leaves could be queue and isolation class.
void judge_possible_isolation(const Port &port, const Sheet &sheet) {
    for (const auto &queue : port.tree.classes)
        for (const auto &isolate : port.tree.classes)
            if (resolve_leaf(port.tree, queue.handle) && resolve_leaf(port.tree, isolate.handle) &&
                check_below(port.tree, isolate.handle, queue.handle)) {
                sheet.fine("isolation_class", fmt::format("class {} is served after {}: it can isolate",
                                                          tc_name(isolate.handle), tc_name(queue.handle)));
                return;
            }
    sheet.note("isolation_class", "it has no class that is served after another, to isolate flows in",
               port.setup());
}

void judge_isolation(const Port &port, const Sheet &sheet) {
    const RewriteConfig &rewrite = port.config.rewrite;
    const bool rewrites = rewrite.pcp || rewrite.dscp;
    const auto pairs = isolating_pairs(port);
    for (const auto &[queue, isolate] : pairs)
        sheet.fine("isolation_class",
                   fmt::format("class {} is served after {}", isolate.text(), queue.text()));
    for (const auto &queue : port.config.queues) {
        if (!queue.isolate_class.empty())
            continue;
        if (rewrites)
            sheet.fine("isolation_class", fmt::format("isolated packets of {} keep their queue, and carry a "
                                                      "lower priority to the next node",
                                                      queue.queue_class.text()));
        else
            sheet.note(
                "isolation_class",
                fmt::format("flows of {} are isolated at upstream nodes only", queue.queue_class.text()),
                "name an isolate_class, or a rewrite");
    }
    for (const auto &[queue, isolate] : pairs) {
        const auto leaf = resolve_leaf(port.tree, isolate.handle);
        if (fifo_like(leaf->kind))
            sheet.fine("drain", fmt::format("class {} is a FIFO: flows get their priority back in order",
                                            isolate.text()));
        else
            sheet.note(
                "drain",
                fmt::format("class {} holds a {}, of which it cannot be known when a flow's last packet "
                            "has left: flows get their priority back clear_timeout_ms after their mark",
                            isolate.text(), leaf->kind),
                fmt::format("tc qdisc replace dev {} parent {} pfifo limit 1000", port.link.name,
                            isolate.text()));
    }
}

constexpr double rate_floor = 0.001;         // of the port: below, isolated packets wait for seconds
constexpr double rate_ceiling = 0.1;         // of the port: above, isolated packets overtake many others
constexpr double packet_bits = 1514.0 * 8;   // one full packet
constexpr double longest_wait_seconds = 1.0; // for one such packet

std::string percent(double part) {
    return fmt::format("{:.3g} %", 100 * part);
}

void judge_htb_share(const Pair &pair, const HtbClass &isolate, const HtbClass &queue, const Sheet &sheet) {
    const std::string name = pair.isolate.text();
    const double part =
        static_cast<double>(isolate.rate) / static_cast<double>(std::max<uint64_t>(queue.ceil, 1));
    const std::string remedy = "give it 0.1 to 1 % of the port's rate, as spillway setup does";
    if (static_cast<double>(isolate.rate) * longest_wait_seconds < packet_bits)
        sheet.problem("share",
                      fmt::format("class {} has {} bit/s for itself: while others fill the port, one packet "
                                  "waits for more than a second",
                                  name, isolate.rate),
                      remedy);
    else if (isolate.ceil < queue.ceil)
        sheet.note("share",
                   fmt::format("class {} may use {} of what class {} may, even while the port is idle", name,
                               percent(static_cast<double>(isolate.ceil) / static_cast<double>(queue.ceil)),
                               pair.queue.text()),
                   fmt::format("give it the same ceil as class {}", pair.queue.text()));
    else if (part < rate_floor)
        sheet.note("share", fmt::format("class {} has only {} of the port for itself", name, percent(part)),
                   remedy);
    else if (part > rate_ceiling)
        sheet.note(
            "share",
            fmt::format("class {} has {} of the port for itself, in which a flow's isolated packets may "
                        "overtake those it sent before",
                        name, percent(part)),
            remedy);
    else
        sheet.fine("share", fmt::format("class {} has {} of the port for itself", name, percent(part)));
}

/// prio, or a band of ets.
void judge_band_share(const Pair &pair, const Bands &bands, const std::string &setup, const Sheet &sheet) {
    const std::string name = pair.isolate.text();
    const std::uint32_t band = tc_minor(pair.isolate.handle) - 1;
    const std::uint64_t sum = std::accumulate(bands.quanta.begin(), bands.quanta.end(), std::uint64_t{0});
    if (band >= bands.strict && band - bands.strict < bands.quanta.size() && sum > 0)
        sheet.fine("share", fmt::format("class {} has {} of what the strict bands leave", name,
                                        percent(static_cast<double>(bands.quanta[band - bands.strict]) /
                                                static_cast<double>(sum))));
    else
        sheet.note(
            "share",
            fmt::format("class {} is served only while the bands before it are empty: isolated flows get "
                        "nothing when other traffic fills the port",
                        name),
            fmt::format("take a tree that keeps them a share: {}", setup));
}

void judge_shares(const Port &port, const Sheet &sheet) {
    for (const Pair &pair : isolating_pairs(port)) {
        const auto found = [&port](ClassId id) {
            return std::ranges::find(port.tree.classes, id.handle, &TcClass::handle);
        };
        const auto isolate = found(pair.isolate);
        const auto queue = found(pair.queue);
        if (isolate->htb && queue->htb) {
            judge_htb_share(pair, *isolate->htb, *queue->htb, sheet);
            continue;
        }
        const auto qdisc = std::ranges::find(port.tree.qdiscs, tc_major(pair.isolate.handle), &Qdisc::handle);
        if (qdisc != port.tree.qdiscs.end() && qdisc->bands)
            judge_band_share(pair, *qdisc->bands, port.setup(), sheet);
    }
}

void judge_transmit_queues(const Port &port, const Sheet &sheet) {
    const std::string_view root = port.root_kind();
    if (root != "mq" && root != "mqprio") {
        sheet.fine("xps", "one qdisc tree takes the packets of all CPUs");
        return;
    }
    const std::string text = fmt::format(
        "{} one of {} transmit queues for each packet, before its class counts",
        port.facts.xps == true ? "XPS lets the sending CPU choose" : "a hash chooses", port.link.tx_queues);
    if (port.config.queues.empty() && port.all.config.usable())
        sheet.fine("xps", fmt::format("{}; no queue is configured", text));
    else
        sheet.note("xps", text, fmt::format("one tree for all of them: {}", port.setup()));
}

void judge_filters(const Port &port, const Sheet &sheet) {
    Names steering;
    for (const PortFilter &one : port.facts.filters)
        if (!one.at_clsact())
            add_once(steering, fmt::format("{} at {}", one.filter.kind, tc_name(one.parent)));
    if (steering.empty())
        sheet.fine("filters", "no filter of its qdiscs sorts packets into classes");
    else
        sheet.note(
            "filters",
            fmt::format("filters of its qdiscs sort packets after spillway has judged them: {}; a packet "
                        "counts in the queue that its priority names, else in the port's first one",
                        list(steering)),
            "sort by priority before the qdisc: nftables 'meta priority set', or action skbedit priority "
            "at clsact");
}

/// What `doctor` calls a program: "name (id 7)".
std::string program_text(const std::string &name, std::uint32_t id) {
    if (id == 0)
        return name.empty() ? "a program" : name;
    return name.empty() ? fmt::format("id {}", id) : fmt::format("{} (id {})", name, id);
}

bool is_spillways(const std::string &name) {
    return name.starts_with("spillway_");
}

void judge_tc_programs(const Port &port, const Sheet &sheet) {
    Names foreign;
    Names instances;
    Names raising;
    for (const auto &program : port.facts.tcx) {
        if (port.all.host.own_programs.contains(program.id))
            continue;
        (is_spillways(program.name) ? instances : foreign)
            .push_back(fmt::format("{} at tcx {}", program_text(program.name, program.id),
                                   program.egress ? "egress" : "ingress"));
    }
    for (const PortFilter &one : port.facts.filters) {
        if (!one.at_clsact() || one.own)
            continue;
        const bool egress = tc_minor(one.parent) == TC_H_MIN_EGRESS;
        const std::string text =
            fmt::format("{}{}{} at clsact {}", one.filter.kind, one.filter.program.empty() ? "" : " ",
                        one.filter.program, egress ? "egress" : "ingress");
        if (egress && one.filter.sets_priority)
            add_once(raising, text);
        else
            add_once(is_spillways(one.filter.program) ? instances : foreign, text);
    }
    const std::string look =
        fmt::format("bpftool net show dev {0}; tc filter show dev {0} egress", port.link.name);
    const bool another_instance = sheet.has("tc_programs"); // check names it
    if (!raising.empty())
        sheet.problem(
            "tc_programs",
            fmt::format("filters set packets' priority after spillway has: {}; isolated packets may "
                        "lose their class",
                        list(raising)),
            fmt::format("take action skbedit priority off clsact egress: {}", look));
    if (!instances.empty() && !another_instance)
        sheet.problem("tc_programs",
                      fmt::format("another instance of spillway serves it: {}", list(instances)),
                      "give the port to one instance; spillway --instance NAME purge removes another");
    if (!foreign.empty())
        sheet.note(
            "tc_programs",
            fmt::format("programs of others run here: {}; one that ends the chain or sets the priority "
                        "keeps flows from being isolated",
                        list(foreign)),
            fmt::format("look at them: {}", look));
    if (!sheet.has("tc_programs"))
        sheet.fine("tc_programs", "no TC program of others runs here");
}

void judge_xdp(const Port &port, const Sheet &sheet) {
    if (sheet.has("xdp"))
        return;
    const TrapMode trap = port.config.trap;
    const bool attached = port.link.xdp == XdpMode::native;
    const auto &offered = port.facts.xdp_features;
    const std::string at_tc = "CIPs are taken at TC ingress";
    if (foreign_xdp(port.link, port.all.host))
        sheet.note("xdp",
                   fmt::format("the XDP program {} of somebody else runs here: {}, if it lets them pass",
                               program_text(port.facts.xdp_program, port.link.xdp_program), at_tc),
                   fmt::format("it must pass EtherType {:#06x}: ip link show dev {}",
                               port.all.config.config.cip.ethertype, port.link.name));
    else if (trap == TrapMode::tc)
        sheet.fine("xdp", fmt::format("{}, as configured", at_tc));
    else if (trap == TrapMode::generic)
        sheet.note("xdp", "generic XDP costs every packet a copy, and sees those that GRO has put together",
                   "set trap to auto");
    else if (trap == TrapMode::automatic && port.link.kind == "veth")
        sheet.fine("xdp", fmt::format("{}: native XDP on veth would turn off its peer's TSO", at_tc));
    else if (attached || (offered && (*offered & xdp_basic) != 0))
        sheet.fine("xdp", "the driver runs XDP programs itself");
    else if (offered && trap == TrapMode::native)
        sheet.problem("xdp", "the driver runs no XDP programs, as trap asks", "set trap to auto");
    else if (offered)
        sheet.note("xdp", fmt::format("the driver runs no XDP programs: {}", at_tc));
    else
        sheet.fine("xdp",
                   fmt::format("whether the driver runs XDP programs shows when the agent attaches one{}",
                               trap == TrapMode::native ? "" : "; if it does not, " + at_tc));
}

void judge_offloads(const Port &port, const Sheet &sheet) {
    const PortFacts &facts = port.facts;
    const std::string &name = port.link.name;
    if (!facts.features)
        return;
    if (facts.on("rx-lro"))
        sheet.note(
            "lro",
            "LRO puts arriving packets together beyond repair: forwarded flows suffer, and drivers refuse "
            "native XDP",
            fmt::format("ethtool -K {} lro off", name));
    else
        sheet.fine("lro", "LRO is off");

    const bool together = facts.on("rx-gro") || facts.on("tx-tcp-segmentation");
    const bool packets = std::ranges::any_of(port.config.queues, [](const QueueConfig &queue) {
        return queue.waterline && queue.waterline->unit == WaterlineUnit::packets;
    });
    if (packets && together)
        sheet.note("gro",
                   "GRO or TSO is on, and a waterline counts packets: what waits as one packet may be up to "
                   "64 KB",
                   fmt::format("count bytes; or ethtool -K {} gro off gso off tso off", name));
    else
        sheet.fine("gro", together ? "GRO or TSO is on; waterlines count bytes" : "GRO and TSO are off");

    if (facts.on("hw-tc-offload"))
        sheet.note(
            "offloads",
            "hw-tc-offload is on: packets that the device matches to a filter and forwards never meet the "
            "CPU",
            fmt::format("ethtool -K {} hw-tc-offload off", name));
    else if (facts.on("l2-fwd-offload"))
        sheet.note("offloads",
                   "l2-fwd-offload is on: packets of macvlan devices leave by queues of their own",
                   fmt::format("ethtool -K {} l2-fwd-offload off", name));
    else
        sheet.fine("offloads", facts.on("rx-vlan-filter")
                                   ? "rx-vlan-filter is on: CIPs with a tag arrive for VLANs of the port only"
                                   : "no offload keeps packets from the CPU");
}

void judge_company(const Port &port, const Sheet &sheet) {
    const LinkInfo &link = port.link;
    const LinkInfo *master = link.master == 0 ? nullptr : port.link_of(link.master);
    Names members;
    Names uppers;
    Names served_uppers;
    for (const auto &other : port.all.host.links) {
        if (other.master == link.ifindex)
            members.push_back(other.name);
        if (has_upper(std::span(&other, 1), link.ifindex)) {
            uppers.push_back(other.name);
            if (port.served(other))
                served_uppers.push_back(other.name);
        }
    }
    if (!members.empty())
        sheet.note(
            "master",
            link.kind == "bridge"
                ? fmt::format("it is a bridge: what it forwards passes its ports {} only", list(members))
                : fmt::format("it is a {}: what it sends waits again at its members {}", link.kind,
                              list(members)),
            fmt::format("name these as ports instead: {}", list(members)));
    else if (link.master != 0) {
        const std::string whose = master == nullptr ? fmt::format("interface {}", link.master)
                                                    : fmt::format("the {} {}", master->kind, master->name);
        const bool twice = master != nullptr && port.served(*master);
        sheet.note("master",
                   fmt::format("it belongs to {}: CIPs to any unicast address are taken here{}", whose,
                               twice ? "; both are served, so that packets are judged twice" : ""),
                   twice ? fmt::format("name one of the two, best {}", link.name) : "");
    } else
        sheet.fine("master", "it belongs to no bridge or bond");

    if (!served_uppers.empty())
        sheet.note("upper",
                   fmt::format("devices that stand on it are served too: {}; their packets are judged twice",
                               list(served_uppers)),
                   fmt::format("name {} only", link.name));
    else if (!uppers.empty())
        sheet.fine("upper",
                   fmt::format("on it stand {}: CIPs to any unicast address are taken", list(uppers)));
    else
        sheet.fine("upper", "no other device stands on it");
}

void judge_flow_control(const Port &port, const Sheet &sheet) {
    const auto &dcb = port.facts.dcb;
    if (!dcb || dcb->pfc_enabled == 0) {
        sheet.fine("flow_control", "no priority flow control is on");
        return;
    }
    Names paused;
    for (unsigned priority = 0; priority < dcb->prio_tc.size(); priority++)
        if ((dcb->pfc_enabled >> priority & 1U) != 0)
            paused.push_back(fmt::to_string(priority));
    const auto &pcp = port.config.rewrite.pcp;
    if (!pcp) {
        sheet.note(
            "flow_control",
            fmt::format("priority flow control is on for {}: isolated packets keep their priority, and a "
                        "pause holds back both",
                        list(paused)),
            "give isolated packets a lower one: rewrite.pcp");
        return;
    }
    Names shared;
    for (unsigned priority = 0; priority < dcb->prio_tc.size(); priority++)
        if (priority != *pcp && (dcb->pfc_enabled >> priority & 1U) != 0 &&
            dcb->prio_tc[priority] == dcb->prio_tc[*pcp])
            shared.push_back(fmt::to_string(priority));
    if (!shared.empty())
        sheet.problem(
            "flow_control",
            fmt::format("priority {} of isolated packets shares traffic class {} with priority {}: one "
                        "pause holds back both",
                        *pcp, dcb->prio_tc[*pcp], list(shared)),
            fmt::format("give it one of its own: dcb ets set dev {} prio-tc {}:TC", port.link.name, *pcp));
    else if ((dcb->pfc_enabled >> *pcp & 1U) == 0)
        sheet.note(
            "flow_control",
            fmt::format("priority flow control is on for {}, and not for priority {} of isolated packets: "
                        "the next node may drop them",
                        list(paused), *pcp),
            fmt::format("unless that is wanted: dcb pfc set dev {} prio-pfc {}:on", port.link.name, *pcp));
    else
        sheet.fine(
            "flow_control",
            fmt::format("priority flow control is on for {}; isolated packets have priority {} and traffic "
                        "class {} to themselves",
                        list(paused), *pcp, dcb->prio_tc[*pcp]));
}

void judge_port(const Port &port, const Sheet &sheet) {
    judge_link(port, sheet);
    judge_queues(port, sheet);
    if (port.all.config.usable())
        judge_isolation(port, sheet);
    else
        judge_possible_isolation(port, sheet);
    judge_shares(port, sheet);
    judge_transmit_queues(port, sheet);
    judge_filters(port, sheet);
    judge_tc_programs(port, sheet);
    judge_xdp(port, sheet);
    judge_offloads(port, sheet);
    judge_company(port, sheet);
    judge_flow_control(port, sheet);
}

/// What `check` finds too.
void take_over_problems(const HostFacts &facts, std::vector<Check> &checks) {
    for (const auto &[check, port, error] : host_problems(facts.config.config, facts.host)) {
        const Sheet sheet(checks, port);
        if (port.empty())
            sheet.problem(check, error.message(), error.hint);
        else
            sheet.problem(check,
                          error.object.empty() ? error.detail
                                               : fmt::format("{}: {}", error.object, error.detail),
                          error.hint);
    }
}

} // namespace

std::string_view to_string(Level level) {
    switch (level) {
    case Level::problem:
        return "problem";
    case Level::note:
        return "note";
    case Level::fine:
        return "fine";
    }
    return "unknown";
}

std::vector<Check> diagnose(const HostFacts &facts) {
    std::vector<Check> checks;
    take_over_problems(facts, checks);
    const Sheet host(checks);
    if (!host.has("privilege"))
        host.fine("privilege", "it has all capabilities that it needs");
    judge_bpf(facts.bpf, facts.config.config, host);
    if (!host.has("btf"))
        host.fine("btf", "the kernel has type information");
    judge_system(facts, host);
    judge_configuration(facts, host);
    judge_forwarding(facts, host);
    judge_bridge_netfilter(facts, host);
    for (const auto *link : named_ports(facts.config.config, facts.host)) {
        const auto tree = facts.host.trees.find(link->ifindex);
        const auto known = facts.ports.find(link->ifindex);
        if (link->ethernet() && tree != facts.host.trees.end() && known != facts.ports.end())
            judge_port({.all = facts,
                        .config = *find_port(facts.config.config, link->name),
                        .link = *link,
                        .tree = tree->second,
                        .facts = known->second},
                       Sheet(checks, link->name));
    }
    std::ranges::stable_sort(checks, {}, [](const Check &check) {
        return std::tuple(check.level, !check.port.empty(), check.port);
    });
    return checks;
}

} // namespace spillway
