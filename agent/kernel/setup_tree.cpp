// SPDX-License-Identifier: Apache-2.0
#include "agent/kernel/setup_tree.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <csignal>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <iterator>
#include <linux/capability.h>
#include <linux/pkt_sched.h>
#include <net/if_arp.h>
#include <ranges>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/core/fd.h"

namespace spillway {
namespace {

constexpr uint64_t rate_min = 1'000'000;          // bit/s: below, half a percent is less than a byte per tick
constexpr uint64_t rate_max = 10'000'000'000'000; // bit/s
constexpr uint32_t fifo_limit = 1000;             // packets in each leaf
// Bytes that HTB lets a class send in its turn. As large as the largest ordinary packet (GSO), and given
// explicitly: what the kernel derives from the rate is out of its own bounds for most rates, and it
// complains.
constexpr uint32_t quantum = 65536;

// What ets lets its bands send in a turn, in bytes: of 200 packets one is isolated.
constexpr uint32_t isolation_turn = 1514;
constexpr uint32_t normal_turn = 199 * isolation_turn;

constexpr TcHandle root_qdisc = tc_handle(1, 0);
constexpr TcHandle port_class = tc_handle(1, 1);
constexpr TcHandle cip_class = tc_handle(1, 0x5);
constexpr TcHandle normal_class = tc_handle(1, 0x10);
constexpr TcHandle isolation_class = tc_handle(1, 0x20);

struct HtbSpec {
    TcHandle handle;
    HtbClass htb;
};

/// The classes for a port of `rate` bit/s, parents first. Whole bytes per second, as HTB counts.
std::array<HtbSpec, 4> htb_specs(uint64_t rate) {
    const auto whole_bytes = [](uint64_t bits) { return bits / 8 * 8; };
    const uint64_t full = whole_bytes(rate);
    const uint64_t share = whole_bytes(rate / 200);
    const auto htb = [full](uint32_t prio, uint64_t guaranteed) {
        return HtbClass{.prio = prio, .rate = guaranteed, .ceil = full, .quantum = quantum};
    };
    return {{{port_class, htb(0, full)},
             {cip_class, htb(0, share)},
             {normal_class, htb(1, full - 2 * share)},
             {isolation_class, htb(2, share)}}};
}

/// The bands of prio and ets: CIPs, normal traffic, isolated flows. What names no class is normal.
Bands bands_of(SetupKind kind) {
    Bands bands{.count = 3};
    bands.strict = kind == SetupKind::ets ? 1 : bands.count;
    if (kind == SetupKind::ets)
        bands.quanta = {normal_turn, isolation_turn};
    bands.priomap.fill(1);
    return bands;
}

struct LeafSpec {
    TcHandle classid;
    TcHandle handle;
};

/// The FIFOs of a tree, the one served first in front.
std::array<LeafSpec, 3> leaf_specs(SetupKind kind) {
    if (kind == SetupKind::htb)
        return {{{cip_class, tc_handle(0x5, 0)},
                 {normal_class, tc_handle(0x10, 0)},
                 {isolation_class, tc_handle(0x20, 0)}}};
    return {{{tc_handle(1, 1), tc_handle(0x11, 0)},
             {tc_handle(1, 2), tc_handle(0x12, 0)},
             {tc_handle(1, 3), tc_handle(0x13, 0)}}};
}

constexpr std::array kind_names{std::pair{"htb", SetupKind::htb}, std::pair{"prio", SetupKind::prio},
                                std::pair{"ets", SetupKind::ets}};

std::string kind_name(SetupKind kind) {
    return std::ranges::find(kind_names, kind, &std::pair<const char *, SetupKind>::second)->first;
}

std::string rate_text(uint64_t bits) {
    for (const auto &[unit, name] :
         {std::pair{1'000'000'000ULL, "gbit"}, {1'000'000ULL, "mbit"}, {1'000ULL, "kbit"}})
        if (bits % unit == 0)
            return fmt::format("{}{}", bits / unit, name);
    return fmt::format("{}bit", bits);
}

Command class_command(const std::string &verb, const std::string &port, TcHandle handle,
                      const HtbClass &htb) {
    // What a class may send at once. A millisecond's worth covers late timers: with tc's default, one packet,
    // the port fell 1 % short at 200 Mbit/s and 22 % at 5 Gbit/s. The small classes keep one packet for their
    // own share, since what they send on it overtakes the normal class.
    constexpr uint64_t packet = 1600;
    const uint64_t millisecond = std::max(htb.ceil / 8 / 1000, packet);
    const bool small = handle == cip_class || handle == isolation_class;
    return {"tc",
            "class",
            verb,
            "dev",
            port,
            "parent",
            tc_name(handle == port_class ? root_qdisc : port_class),
            "classid",
            tc_name(handle),
            "htb",
            "rate",
            rate_text(htb.rate),
            "burst",
            fmt::to_string(small ? packet : millisecond),
            "ceil",
            rate_text(htb.ceil),
            "cburst",
            fmt::to_string(millisecond),
            "prio",
            fmt::to_string(htb.prio),
            "quantum",
            fmt::to_string(htb.quantum)};
}

bool on_egress(const Qdisc &qdisc) {
    return qdisc.parent != TC_H_INGRESS;
}

const TcClass *find_class(const TcTree &tree, TcHandle handle) {
    const auto found = std::ranges::find(tree.classes, handle, &TcClass::handle);
    return found == tree.classes.end() ? nullptr : &*found;
}

bool has_leaf(const TcTree &tree, const LeafSpec &spec) {
    return std::ranges::any_of(tree.qdiscs, [&spec](const Qdisc &leaf) {
        return leaf.parent == spec.classid && leaf.handle == spec.handle && leaf.kind == "pfifo" &&
               leaf.fifo_limit == fifo_limit;
    });
}

bool has_htb_class(const TcTree &tree, const HtbSpec &spec) {
    const TcClass *found = find_class(tree, spec.handle);
    return found != nullptr && found->parent == (spec.handle == port_class ? tc_root : port_class) &&
           found->htb && found->htb->prio == spec.htb.prio;
}

/// The tree that setup makes, whatever its rates.
bool has_shape(const TcTree &tree, SetupKind kind) {
    const Qdisc *root = find_root(tree);
    if (root == nullptr || root->kind != kind_name(kind) || root->handle != root_qdisc)
        return false;
    const auto leaves = leaf_specs(kind);
    if (std::ranges::count_if(tree.qdiscs, on_egress) != static_cast<long>(leaves.size() + 1) ||
        !std::ranges::all_of(leaves, [&tree](const LeafSpec &spec) { return has_leaf(tree, spec); }))
        return false;
    if (kind != SetupKind::htb)
        return root->bands == bands_of(kind);
    const auto classes = htb_specs(rate_min);
    return root->htb_default == tc_minor(normal_class) && tree.classes.size() == classes.size() &&
           std::ranges::all_of(classes, [&tree](const HtbSpec &spec) { return has_htb_class(tree, spec); });
}

/// The root qdisc's own words in `tc qdisc replace`.
Command root_words(SetupKind kind) {
    if (kind == SetupKind::htb)
        return {"htb", "default", fmt::format("{:x}", tc_minor(normal_class))};
    const Bands bands = bands_of(kind);
    Command words{kind_name(kind), "bands", fmt::to_string(bands.count)};
    if (kind == SetupKind::ets) {
        words.insert(words.end(), {"strict", fmt::to_string(bands.strict), "quanta"});
        for (const uint32_t turn : bands.quanta)
            words.push_back(fmt::to_string(turn));
    }
    words.emplace_back("priomap");
    for (const uint8_t band : bands.priomap)
        words.push_back(fmt::to_string(band));
    return words;
}

std::vector<SetupPlan::Step> creation(const std::string &port, const TcTree &tree, const SetupTree &wanted) {
    std::vector<SetupPlan::Step> steps;
    // 'replace' swaps trees in one go, but would change a qdisc that already bears the handle in place.
    if (std::ranges::find(tree.qdiscs, root_qdisc, &Qdisc::handle) != tree.qdiscs.end())
        steps.push_back({{"tc", "qdisc", "del", "dev", port, "root"}, {}});
    Command root{"tc", "qdisc", "replace", "dev", port, "root", "handle", tc_name(root_qdisc)};
    std::ranges::move(root_words(wanted.kind), std::back_inserter(root));
    steps.push_back({std::move(root), {"tc", "qdisc", "del", "dev", port, "root"}});
    if (wanted.kind == SetupKind::htb)
        for (const HtbSpec &spec : htb_specs(wanted.rate))
            steps.push_back({class_command("add", port, spec.handle, spec.htb), {}});
    for (const LeafSpec &spec : leaf_specs(wanted.kind))
        steps.push_back({{"tc", "qdisc", "add", "dev", port, "parent", tc_name(spec.classid), "handle",
                          tc_name(spec.handle), "pfifo", "limit", fmt::to_string(fifo_limit)},
                         {}});
    return steps;
}

std::vector<SetupPlan::Step> rate_change(const std::string &port, const TcTree &tree, uint64_t rate) {
    std::vector<SetupPlan::Step> steps;
    for (const HtbSpec &spec : htb_specs(rate)) {
        const HtbClass &now = *find_class(tree, spec.handle)->htb;
        if (now != spec.htb)
            steps.push_back({class_command("change", port, spec.handle, spec.htb),
                             class_command("change", port, spec.handle, now)});
    }
    return steps;
}

/// Holds back the signals that end a program until it leaves the scope, so that a tree is made whole or not
/// at all.
class SignalsHeld {
  public:
    SignalsHeld() {
        sigset_t ending;
        sigemptyset(&ending);
        for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT})
            sigaddset(&ending, signal);
        pthread_sigmask(SIG_BLOCK, &ending, &before_);
    }
    SignalsHeld(const SignalsHeld &) = delete;
    SignalsHeld &operator=(const SignalsHeld &) = delete;
    ~SignalsHeld() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  private:
    sigset_t before_{};
};

/// Runs a program in the current network namespace; no shell. On success what it said on standard error.
Result<std::string> run(const Command &command) {
    const auto failed = [&command](int number, std::string detail, std::string hint = {}) {
        return fail({.operation = "run",
                     .object = fmt::format("{}", fmt::join(command, " ")),
                     .number = number,
                     .detail = std::move(detail),
                     .hint = std::move(hint)});
    };
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0)
        return failed(errno, "");
    const Fd output(ends[0]);
    Fd child_end(ends[1]);

    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, child_end.get(), STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, child_end.get(), STDERR_FILENO);
    std::vector<char *> arguments;
    for (const std::string &argument : command)
        arguments.push_back(const_cast<char *>(argument.c_str()));
    arguments.push_back(nullptr);
    pid_t child = 0;
    const int error = ::posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error == ENOENT)
        return failed(0, fmt::format("there is no program {} in PATH", command.front()),
                      "install iproute2: apt install iproute2");
    if (error != 0)
        return failed(error, "");
    child_end.reset();

    std::string said;
    std::array<char, 512> piece{};
    for (;;) {
        const ssize_t length = ::read(output.get(), piece.data(), piece.size());
        if (length > 0)
            said.append(piece.data(), static_cast<size_t>(length));
        else if (length == 0 || errno != EINTR)
            break;
    }
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    while (!said.empty() && said.back() == '\n')
        said.pop_back();
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        std::ranges::replace(said, '\n', ' ');
        const bool no_module = said.find("kind is unknown") != std::string::npos;
        return failed(0, said.empty() ? "it failed without a word" : said,
                      no_module
                          ? "the kernel lacks this kind of qdisc; its module may be loaded by hand, e.g. "
                            "modprobe sch_htb"
                          : "");
    }
    return said;
}

/// Runs all steps; after a failure takes back those that were done.
Result<> run_all(const std::vector<SetupPlan::Step> &steps, std::ostream &out) {
    const SignalsHeld held;
    for (size_t i = 0; i < steps.size(); ++i) {
        auto said = run(steps[i].run);
        if (said) {
            if (!said->empty())
                out << *said << '\n';
            continue;
        }
        Error error = std::move(said.error());
        for (const auto &done : steps | std::views::take(i) | std::views::reverse)
            if (!done.undo.empty())
                if (const auto undone = run(done.undo); !undone)
                    error.detail += "; could not take back what was done: " + undone.error().message();
        return fail(std::move(error));
    }
    return {};
}

bool may_change_network() {
    __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> sets{};
    return ::syscall(SYS_capget, &header, sets.data()) == 0 && (sets[0].effective & 1U << CAP_NET_ADMIN) != 0;
}

Error setup_error(const std::string &port, std::string detail, std::string hint,
                  ErrorKind kind = ErrorKind::failed) {
    return {.operation = "setup",
            .object = port,
            .detail = std::move(detail),
            .hint = std::move(hint),
            .kind = kind};
}

} // namespace

Result<uint64_t> parse_rate(std::string_view text) {
    struct Unit {
        std::string_view name;
        double bits;
    };
    constexpr std::array units{Unit{"", 1},       Unit{"bit", 1},     Unit{"kbit", 1e3}, Unit{"mbit", 1e6},
                               Unit{"gbit", 1e9}, Unit{"tbit", 1e12}, Unit{"bps", 8},    Unit{"kbps", 8e3},
                               Unit{"mbps", 8e6}, Unit{"gbps", 8e9},  Unit{"tbps", 8e12}};
    const auto refused = [text](std::string detail) {
        return fail({.operation = "read rate",
                     .object = fmt::format("\"{}\"", text),
                     .detail = std::move(detail),
                     .hint = "write it as tc does, from 1mbit to 10tbit: --rate 200mbit",
                     .kind = ErrorKind::usage});
    };

    double number = 0;
    const auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
    // A digit first: from_chars also takes "-1" and "inf".
    if (text.empty() || text.front() < '0' || text.front() > '9')
        return refused("not a rate");
    if (error != std::errc{})
        return refused("out of range");
    std::string suffix(end, text.data() + text.size());
    std::ranges::transform(suffix, suffix.begin(), [](char c) {
        return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    const auto unit = std::ranges::find(units, suffix, &Unit::name);
    if (unit == units.end())
        return refused(
            fmt::format("unknown unit \"{}\"; allowed: bit, kbit, mbit, gbit, tbit, and with bps for "
                        "bytes per second",
                        suffix));
    const double bits = number * unit->bits;
    if (bits < static_cast<double>(rate_min))
        return refused("less than 1mbit");
    if (bits > static_cast<double>(rate_max))
        return refused("more than 10tbit");
    return static_cast<uint64_t>(std::llround(bits));
}

Result<SetupPlan> plan_setup(const LinkInfo &port, const TcTree &tree, const SetupTree &wanted, bool force) {
    if (!port.ethernet())
        return fail(setup_error(port.name,
                                port.arp_type == ARPHRD_LOOPBACK ? "the loopback device is no port"
                                                                 : "not an Ethernet port",
                                "name an Ethernet port; ip -br link lists them"));
    const Qdisc *root = find_root(tree);
    const bool kernel_default =
        root == nullptr || root->handle == 0; // whoever makes a qdisc gives it a handle
    if (kernel_default)
        return SetupPlan{SetupPlan::Action::create, creation(port.name, tree, wanted)};
    if (has_shape(tree, wanted.kind)) {
        if (wanted.kind != SetupKind::htb)
            return SetupPlan{};
        auto steps = rate_change(port.name, tree, wanted.rate);
        const auto action = steps.empty() ? SetupPlan::Action::nothing : SetupPlan::Action::change_rate;
        return SetupPlan{action, std::move(steps)};
    }
    if (force)
        return SetupPlan{SetupPlan::Action::create, creation(port.name, tree, wanted)};
    for (const auto &[name, kind] : kind_names)
        if (has_shape(tree, kind))
            return fail(
                setup_error(port.name, fmt::format("the port has the tree of --kind {} already", name),
                            "--force replaces it and drops what waits in it; its classes have other names"));
    return fail(setup_error(
        port.name,
        fmt::format("the port has a qdisc tree that setup did not make, or that was changed since: {} {}",
                    root->kind, tc_name(root->handle)),
        "look at it with tc qdisc show; --force replaces it and drops what waits in it"));
}

namespace {

Result<SetupTree> wanted_tree(const SetupOptions &options) {
    const auto refused = [&options](std::string detail, std::string hint) {
        return fail(setup_error(options.port, std::move(detail), std::move(hint), ErrorKind::usage));
    };
    const auto *const kind = std::ranges::find_if(
        kind_names, [&options](const auto &known) { return options.kind == known.first; });
    if (kind == kind_names.end())
        return refused(fmt::format("unknown kind \"{}\"", options.kind), "allowed: htb, prio, ets");
    if (kind->second != SetupKind::htb) {
        if (!options.rate.empty())
            return refused(fmt::format("{} has no rate: it sends what the device takes", options.kind),
                           "leave --rate out, or use --kind htb");
        return SetupTree{.kind = kind->second};
    }
    if (options.rate.empty())
        return refused("htb needs the rate of the port",
                       "give a rate a little below the link's: --rate 200mbit");
    auto rate = parse_rate(options.rate);
    if (!rate)
        return fail(std::move(rate.error()));
    return SetupTree{.kind = SetupKind::htb, .rate = *rate};
}

/// The command as a shell outside the network namespace takes it.
std::string shown(Command command, const std::string &netns) {
    if (!netns.empty())
        command.insert(command.begin() + 1, {"-n", netns});
    return fmt::format("{}", fmt::join(command, " "));
}

} // namespace

Result<> setup_port(const SetupOptions &options, std::ostream &out) {
    const auto wanted = wanted_tree(options);
    if (!wanted)
        return fail(wanted.error());
    auto netlink = Netlink::open();
    if (!netlink)
        return fail(netlink.error());
    const auto found = netlink->link(options.port);
    if (!found)
        return fail(found.error());
    const std::optional<LinkInfo> &port = *found;
    if (!port)
        return fail(setup_error(options.port, "there is no such port", "ip -br link lists the ports"));
    const auto tree = netlink->tree(port->ifindex);
    if (!tree)
        return fail(tree.error());
    const auto plan = plan_setup(*port, *tree, *wanted, options.force);
    if (!plan)
        return fail(plan.error());

    if (plan->action == SetupPlan::Action::nothing) {
        const std::string at =
            wanted->kind == SetupKind::htb ? fmt::format(" at {}", rate_text(wanted->rate)) : "";
        out << fmt::format("{}: has this tree{} already; nothing to do\n", options.port, at);
        return {};
    }
    for (const SetupPlan::Step &step : plan->steps)
        out << shown(step.run, options.netns) << '\n';
    if (options.dry_run)
        return {};
    if (!may_change_network())
        return fail(setup_error(options.port, "no privilege to change qdiscs",
                                "run as root, or with CAP_NET_ADMIN; --dry-run only prints the commands"));
    return run_all(plan->steps, out);
}

} // namespace spillway
