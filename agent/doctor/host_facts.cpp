// SPDX-License-Identifier: Apache-2.0
#include "agent/doctor/host_facts.h"

#include "agent/doctor/bpf_facts.h"

#include <algorithm>
#include <fstream>
#include <linux/magic.h>
#include <sys/vfs.h>

namespace spillway {
namespace {

std::string first_line(const std::string &file) {
    std::ifstream stream(file);
    std::string line;
    std::getline(stream, line);
    return line;
}

/// The word in brackets of "none [integrity] confidentiality".
std::string lockdown() {
    const std::string line = first_line("/sys/kernel/security/lockdown");
    const auto begin = line.find('[');
    const auto end = line.find(']');
    return begin == std::string::npos || end == std::string::npos ? std::string()
                                                                  : line.substr(begin + 1, end - begin - 1);
}

/// A switch below /proc/sys/net, of the current network namespace; off when there is none.
bool is_set(const std::string &key) {
    const std::string line = first_line("/proc/sys/net/" + key);
    return !line.empty() && line != "0";
}

SystemFacts system_facts(const std::vector<LinkInfo> &links) {
    SystemFacts facts;
    facts.lockdown = lockdown();
    struct statfs system {};
    facts.bpf_filesystem = ::statfs("/sys/fs/bpf", &system) == 0 && system.f_type == BPF_FS_MAGIC;
    facts.forwards_ipv4 = std::ranges::any_of(
        links, [](const LinkInfo &link) { return is_set("ipv4/conf/" + link.name + "/forwarding"); });
    facts.forwarding_sets_priority = is_set("ipv4/ip_forward_update_priority");
    for (const char *table : {"iptables", "ip6tables", "arptables"})
        if (is_set(std::string("bridge/bridge-nf-call-") + table))
            facts.bridge_netfilter.emplace_back(table);
    return facts;
}

/// A configuration that does no more than name the Ethernet ports in which packets can wait.
Result<Config> name_queued_ports() {
    auto netlink = Netlink::open();
    if (!netlink)
        return fail(std::move(netlink.error()));
    const auto links = netlink->links();
    if (!links)
        return fail(links.error());
    Config config;
    for (const LinkInfo &link : *links) {
        if (!link.ethernet())
            continue;
        const auto tree = netlink->tree(link.ifindex);
        if (!tree)
            return fail(tree.error());
        const Qdisc *root = find_root(*tree);
        if (root == nullptr || root->kind == "noqueue")
            continue;
        PortConfig port;
        port.name = link.name;
        config.ports.push_back(std::move(port));
    }
    return config;
}

Result<ConfigFacts> config_facts(const std::filesystem::path &file) {
    ConfigFacts facts;
    facts.file = file;
    std::error_code ignored; // what cannot be looked at is there, and load_config() says what is wrong
    facts.absent = !std::filesystem::exists(file, ignored) && !ignored;
    auto config = load_config(file);
    if (!config) {
        facts.fault = std::move(config.error());
        config = name_queued_ports();
        if (!config)
            return fail(std::move(config.error()));
    }
    facts.config = std::move(*config);
    return facts;
}

} // namespace

Result<HostFacts> gather_host_facts(const std::filesystem::path &config_file, const Paths &paths) {
    auto config = config_facts(config_file);
    if (!config)
        return fail(std::move(config.error()));
    auto host = read_host(config->config, paths);
    if (!host)
        return fail(std::move(host.error()));
    HostFacts facts{
        .config = std::move(*config), .host = std::move(*host), .bpf = try_bpf(), .system = {}, .ports = {}};
    facts.system = system_facts(facts.host.links);
    auto questions = PortQuestions::open(paths.instance);
    if (!questions)
        return fail(std::move(questions.error()));
    for (const LinkInfo *link : named_ports(facts.config.config, facts.host)) {
        auto port = questions->ask(*link, facts.host.trees.at(link->ifindex));
        if (!port)
            return fail(std::move(port.error()));
        facts.ports.emplace(link->ifindex, std::move(*port));
    }
    return facts;
}

} // namespace spillway
