// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/agent.h"

#include "agent/config/config.h"
#include "agent/core/clock.h"
#include "agent/core/flow_text.h"
#include "agent/core/line_budget.h"
#include "agent/daemon/cip_engine.h"
#include "agent/daemon/event_loop.h"
#include "agent/daemon/port_table.h"
#include "agent/daemon/publish.h"
#include "agent/daemon/sweeper.h"
#include "agent/kernel/instance.h"
#include "agent/kernel/maps.h"
#include "agent/kernel/netlink.h"
#include "agent/kernel/packet_socket.h"
#include "agent/kernel/programs.h"

#include <bpf/libbpf.h>
#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/signalfd.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <optional>

namespace spillway {
namespace {

constexpr std::uint64_t turn_ns = ms_to_ns(10);         ///< CIPs put off, changes of the host, heartbeat
constexpr std::uint64_t telemetry_ns = ms_to_ns(50);    ///< reading queues that the program reads itself
constexpr std::uint64_t look_again_ns = ms_to_ns(1000); ///< at ports that another instance has
constexpr std::uint32_t flow_lines_a_second = 20;
constexpr std::uint64_t smallest_margin = 64UL * 1024; ///< one GSO packet

/// Programs for a configuration, and what they cannot do.
struct Chosen {
    Programs programs;
    bool kernel_read = false;
    bool poll_only = false; ///< automatic, but the kernel cannot be read
};

/// What of a configuration is compiled into the programs.
ProgramOptions options_of(const Config &config) {
    return {.kernel_read = config.detection.source != DetectionSource::poll,
            .ethertype = config.cip.ethertype,
            .flow_capacity = config.flows.capacity,
            .table_full = config.flows.table == FlowTable::full,
            .vxlan_ports = config.tunnels.vxlan_ports};
}

Result<Chosen> choose_programs(const Paths &paths, const Config &config) {
    ProgramOptions options = options_of(config);
    auto programs = Programs::load(paths, options);
    const bool fall_back = !programs && config.detection.source == DetectionSource::automatic;
    if (fall_back) {
        const std::string why = programs.error().text();
        options.kernel_read = false;
        programs = Programs::load(paths, options);
        if (programs)
            spdlog::warn("queues are polled, since the program cannot read them: {}", why);
    }
    if (!programs)
        return std::unexpected(programs.error());
    return Chosen{std::move(*programs), options.kernel_read, fall_back};
}

struct FreeRing {
    void operator()(ring_buffer *ring) const { ring_buffer__free(ring); }
};

class Agent {
  public:
    Agent(const AgentOptions &options, const Paths &paths, Config config, Chosen chosen, Maps maps,
          Netlink netlink, NetlinkEvents events, PacketSocket socket, EventLoop loop, int signals)
        : options_(options), paths_(paths), config_(std::move(config)), chosen_(std::move(chosen)),
          maps_(std::move(maps)), netlink_(std::move(netlink)), events_(std::move(events)),
          socket_(std::move(socket)), loop_(std::move(loop)), ports_(maps_, paths_, netlink_),
          cips_(maps_, ports_, socket_), sweeper_(maps_, ports_), signals_(signals) {}
    Agent(const Agent &) = delete;
    Agent &operator=(const Agent &) = delete;

    Result<> run();

  private:
    Result<> start();
    Result<> watch_signals();
    void share_table(std::size_t ports);
    void write_settings();
    void apply();
    void reload();
    void turn();
    void follow_panic();
    void sweep();
    void read_queues();
    void on_event(const spillway_event &event);
    void on_cip(const spillway_event &event);
    [[nodiscard]] std::string port_name(std::uint32_t ifindex) const;
    [[nodiscard]] const char *unit_of(std::uint32_t queue) const;
    template <class... Arguments>
    void log_flow(fmt::format_string<Arguments...> format, Arguments &&...arguments) {
        if (flow_lines_.take(now_ns()))
            spdlog::info(format, std::forward<Arguments>(arguments)...);
    }
    /// `spillway panic` and `resume` write it at any time, this agent running or not.
    [[nodiscard]] bool panic() const { return observe(maps_.settings()->panic) != 0; }
    [[nodiscard]] std::uint64_t poll_period() const {
        return chosen_.kernel_read ? telemetry_ns : std::uint64_t{config_.detection.poll_interval_us} * 1000;
    }

    const AgentOptions &options_;
    const Paths &paths_;
    Config config_;
    Chosen chosen_;
    Maps maps_;
    Netlink netlink_;
    NetlinkEvents events_;
    PacketSocket socket_;
    EventLoop loop_;
    PortTable ports_;
    CipEngine cips_;
    Sweeper sweeper_;
    std::unique_ptr<ring_buffer, FreeRing> ring_;
    int signals_;
    std::vector<QueueReading> readings_;
    LineBudget flow_lines_{flow_lines_a_second};
    std::uint64_t margin_ = 0;
    int poll_timer_ = -1;
    bool changed_ = true;         ///< the host's ports or qdiscs changed since the last reconcile
    std::uint64_t looked_ns_ = 0; ///< when it was last seen whether another instance left a port
    bool panic_ = false;          ///< as the log says
};

/// Each port may have an equal share of the flow table, and at least 64 entries. Marks have a quarter of it
/// for themselves, whatever the shares of other ports.
void Agent::share_table(std::size_t ports) {
    constexpr std::uint32_t least = 64;
    const std::uint32_t share =
        config_.flows.capacity / static_cast<std::uint32_t>(std::max<std::size_t>(ports, 1));
    publish(maps_.settings()->quota, std::max(least, share));
    publish(maps_.settings()->unmarked_quota, share - share / 4);
}

void Agent::write_settings() {
    spillway_settings &set = *maps_.settings();
    const DetectionConfig &detection = config_.detection;
    const int cpus = libbpf_num_possible_cpus();
    std::uint64_t gso = smallest_margin;
    if (const auto links = netlink_.links())
        for (const LinkInfo &link : *links)
            gso = std::max<std::uint64_t>(gso, link.gso_max_size);
    // TC runs outside the qdisc's lock: as many packets as there are CPUs may be between the two. One CPU is
    // exact.
    margin_ = cpus > 1 ? static_cast<std::uint64_t>(cpus) * gso : 0;
    // Before any port is served: without a quota every mark would be refused.
    share_table(std::max(ports_.served(), config_.ports.size()));
    publish(set.drain_margin, margin_);
    publish(set.stale_ns, ms_to_ns(detection.stale_ms));
    publish(set.stale_agent_ns, ms_to_ns(detection.stale_agent_ms));
    publish(set.idle_ns, ms_to_ns(config_.flows.idle_timeout_ms));
    publish(set.clear_ns, ms_to_ns(config_.flows.clear_timeout_ms));
    publish(set.life_ns, ms_to_ns(config_.flows.max_flow_life_ms));
    const GuardConfig guard = detection.guard.value_or(GuardConfig{});
    publish(set.window_ns, ms_to_ns(guard.window_ms));
    publish(set.guard_min_bytes, guard.min_bytes);
    publish(set.guard_min_ratio,
            static_cast<std::uint32_t>(std::lround(guard.min_ratio * SPILLWAY_RATIO_ONE)));
    publish(set.guard, detection.guard ? 1U : 0U);
    publish(set.observe, config_.mode == Mode::observe ? 1U : 0U);
    publish(set.table_full, config_.flows.table == FlowTable::full ? 1U : 0U);
    publish(set.source,
            static_cast<std::uint32_t>(chosen_.kernel_read ? SPILLWAY_SOURCE_KERNEL : SPILLWAY_SOURCE_POLL));
    cips_.configure(config_, ms_to_ns(guard.window_ms));
}

/// Makes the kernel's side agree with config_ and chosen_.
void Agent::apply() {
    static constexpr std::array levels{spdlog::level::err, spdlog::level::warn, spdlog::level::info,
                                       spdlog::level::debug};
    spdlog::set_level(levels.at(static_cast<std::size_t>(config_.log_level)));
    write_settings();
    if (config_.mode == Mode::observe)
        cips_.drop();
    changed_ = true;
    turn();
}

Result<> Agent::watch_signals() {
    return loop_.watch(signals_, [this] {
        signalfd_siginfo info{};
        while (::read(signals_, &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
            if (info.ssi_signo == SIGHUP)
                reload();
            else
                loop_.stop();
        }
    });
}

Result<> Agent::start() {
    spillway_settings &set = *maps_.settings();
    publish(set.heartbeat_ns, now_ns());
    publish(set.agent_pid, 0U); // `status` says starting until the ports are served
    const std::string version = SPILLWAY_VERSION;
    std::fill(std::begin(set.version), std::end(set.version), '\0');
    version.copy(set.version, sizeof(set.version) - 1);
    set.started_ns = now_ns();
    apply();
    publish(set.agent_pid, static_cast<std::uint32_t>(::getpid()));

    ring_.reset(ring_buffer__new(
        maps_.events_fd(),
        [](void *agent, void *data, std::size_t size) {
            if (size >= sizeof(spillway_event))
                static_cast<Agent *>(agent)->on_event(*static_cast<const spillway_event *>(data));
            return 0;
        },
        this, nullptr));
    if (!ring_)
        return fail({.operation = "open event ring", .number = errno});
    if (auto done =
            loop_.watch(ring_buffer__epoll_fd(ring_.get()), [this] { ring_buffer__consume(ring_.get()); });
        !done)
        return done;
    if (auto done =
            loop_.watch(events_.fd(),
                        [this] {
                            const auto batch = events_.drain();
                            if (!batch || batch->resync || !batch->links.empty() || !batch->tc_ports.empty())
                                changed_ = true;
                        });
        !done)
        return done;
    auto poll = loop_.every(poll_period(), [this] { read_queues(); });
    if (!poll)
        return std::unexpected(poll.error());
    poll_timer_ = *poll;
    if (auto timer = loop_.every(turn_ns, [this] { turn(); }); !timer)
        return std::unexpected(timer.error());
    if (auto timer = loop_.every(sweep_period_ns, [this] { sweep(); }); !timer)
        return std::unexpected(timer.error());
    std::uint64_t watchdog_us = 0;
    if (::sd_watchdog_enabled(0, &watchdog_us) > 0) {
        auto timer = loop_.every(watchdog_us * 1000 / 2, [] { ::sd_notify(0, "WATCHDOG=1"); });
        if (!timer)
            return std::unexpected(timer.error());
    }
    return {};
}

Result<> Agent::run() {
    if (auto done = watch_signals(); !done)
        return done;
    if (auto done = start(); !done)
        return done;
    spdlog::info("spillway {}, {} port(s) of instance {}, queues read by {}", SPILLWAY_VERSION,
                 ports_.served(), paths_.instance, chosen_.kernel_read ? "the program" : "polling");
    ::sd_notify(0, "READY=1");
    auto ended = loop_.run();
    ::sd_notify(0, "STOPPING=1");
    if (options_.detach_on_exit) {
        ports_.detach_all();
        spdlog::info("stopped, programs detached");
    } else {
        spdlog::info("stopped, the data path stays");
    }
    return ended;
}

void Agent::reload() {
    ::sd_notify(0, fmt::format("RELOADING=1\nMONOTONIC_USEC={}", now_ns() / 1000).c_str());
    auto config = load_config(options_.config);
    std::optional<Result<Chosen>> chosen; // only what is compiled into the programs needs new ones
    if (config && config->flows.capacity != config_.flows.capacity)
        config = fail({.operation = "reload",
                       .detail = "flows.capacity cannot change while the table is in use",
                       .hint = fmt::format("stop the agent, `spillway --instance {} purge`, start it again",
                                           paths_.instance)});
    if (config &&
        (options_of(*config) != options_of(config_) || config->detection.source != config_.detection.source))
        chosen = choose_programs(paths_, *config);
    if (!config || (chosen && !*chosen)) {
        spdlog::error("configuration unchanged: {}", (config ? chosen->error() : config.error()).text());
    } else {
        config_ = std::move(*config);
        if (chosen)
            chosen_ = std::move(**chosen);
        apply();
        if (auto done = loop_.set_period(poll_timer_, poll_period()); !done)
            spdlog::error("{}", done.error().text());
        spdlog::info("configuration reloaded");
    }
    ::sd_notify(0, "READY=1");
}

void Agent::turn() {
    const std::uint64_t now = now_ns();
    publish(maps_.settings()->heartbeat_ns, now);
    follow_panic();
    if (ports_.waits_for_others() && now - looked_ns_ >= look_again_ns) { // no event tells
        looked_ns_ = now;
        changed_ = true;
    }
    if (changed_) {
        if (auto done = ports_.reconcile(config_, chosen_.programs, chosen_.poll_only); !done) {
            spdlog::warn("{}", done.error().text());
        } else {
            changed_ = false;
            share_table(ports_.served());
        }
    }
    if (cips_.busy() && !panic_)
        cips_.turn();
}

void Agent::follow_panic() {
    if (panic_ == panic())
        return;
    panic_ = !panic_;
    if (panic_) {
        cips_.drop();
        spdlog::warn("panic: every packet passes untouched and no CIP is sent, until `spillway --instance {} "
                     "resume`",
                     paths_.instance);
    } else {
        spdlog::info("resumed");
    }
}

std::string Agent::port_name(std::uint32_t ifindex) const {
    const spillway_port *port = ports_.port_of(static_cast<int>(ifindex));
    return port != nullptr ? std::string(port->name) : fmt::format("port {}", ifindex);
}

const char *Agent::unit_of(std::uint32_t queue) const {
    const auto queues = maps_.queues();
    return queue < queues.size() && queues[queue].waterline.unit == SPILLWAY_UNIT_PACKETS ? "packets"
                                                                                          : "bytes";
}

void Agent::sweep() {
    if (const auto more = flow_lines_.withheld(); more != 0)
        spdlog::info("{} more lines about flows were not written", more);
    const auto flows = sweeper_.sweep();
    if (!flows) {
        spdlog::warn("{}", flows.error().text());
        return;
    }
    if (!panic() && config_.mode == Mode::isolate)
        cips_.sweep(*flows);
}

void Agent::read_queues() {
    const std::uint64_t now = now_ns(); // before the reading: what it shows is at least as new
    publish(maps_.settings()->heartbeat_ns, now);
    if (ports_.served() == 0)
        return;
    if (auto done = netlink_.read_queues(readings_); !done) {
        spdlog::warn("{}", done.error().text());
        return;
    }
    for (const QueueReading &reading : readings_)
        ports_.publish_reading(reading, now, margin_);
}

void Agent::on_event(const spillway_event &event) {
    if (panic() && event.type != SPILLWAY_EVENT_RELEASED)
        return; // from before: nothing is marked now, and no CIP sent
    switch (event.type) {
    case SPILLWAY_EVENT_MARKED:
        log_flow("marked {} on {}, {} {} waiting", flow_text(event.key), port_name(event.key.port),
                 event.amount, unit_of(event.queue));
        cips_.marked(event.key,
                     std::span(event.bytes).first(std::min<std::size_t>(event.length, sizeof(event.bytes))));
        break;
    case SPILLWAY_EVENT_LEARNED:
        cips_.learned(event.key);
        break;
    case SPILLWAY_EVENT_CIP_RECEIVED:
        on_cip(event);
        break;
    case SPILLWAY_EVENT_RELEASED:
        log_flow("released {} on {}", flow_text(event.key), port_name(event.key.port));
        // Silent flows run out upstream by themselves.
        if (event.amount < ms_to_ns(config_.flows.idle_timeout_ms))
            cips_.released(event.key);
        break;
    case SPILLWAY_EVENT_WOULD_MARK:
        log_flow("would mark {} on {}, {} {} waiting", flow_text(event.key), port_name(event.key.port),
                 event.amount, unit_of(event.queue));
        break;
    case SPILLWAY_EVENT_SUSPECT:
    case SPILLWAY_EVENT_DRAINING:
    case SPILLWAY_EVENT_CIP_REJECTED:
        break;
    }
}

/// R8: the flow a CIP describes is isolated on the port the CIP came in by, and on no other (B7).
void Agent::on_cip(const spillway_event &event) {
    if (config_.mode == Mode::observe)
        return; // received and counted, not obeyed
    spillway_edit edit{};
    const bool restore = event.cip_type == SPILLWAY_CIP_RESTORE;
    edit.op = restore ? SPILLWAY_EDIT_END_CIP : SPILLWAY_EDIT_MARK_CIP;
    edit.key = event.key;
    edit.value = ms_to_ns(event.lifetime_ms);
    const auto result = maps_.edit(edit);
    if (!result) {
        spdlog::warn("{}", result.error().text());
        return;
    }
    spillway_counter counter = SPILLWAY_CIP_ACCEPTED;
    if (*result == SPILLWAY_EDIT_TABLE_FULL)
        counter = SPILLWAY_REJECTED_TABLE_FULL;
    else if (*result == SPILLWAY_EDIT_QUOTA)
        counter = SPILLWAY_REJECTED_QUOTA;
    else if (*result != SPILLWAY_EDIT_DONE && *result != SPILLWAY_EDIT_EXISTS)
        return; // the port went away meanwhile, or there is nothing to take back
    spillway_edit count{};
    count.op = SPILLWAY_EDIT_COUNT;
    count.counter = counter;
    count.key.port = event.key.port;
    count.value = 1;
    if (auto done = maps_.edit(count); !done)
        spdlog::warn("{}", done.error().text());
    if (counter != SPILLWAY_CIP_ACCEPTED || restore)
        return;
    if (*result == SPILLWAY_EDIT_DONE)
        log_flow("marked {} on {} by a CIP", flow_text(event.key), port_name(event.key.port));
    MacAddress sender{};
    std::copy(std::begin(event.mac), std::end(event.mac), sender.begin());
    cips_.accepted(event.key, sender);
}

/// A descriptor of the signals that the agent heeds.
Result<Fd> block_signals() {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGTERM, SIGINT, SIGHUP})
        sigaddset(&set, signal);
    ::sigprocmask(SIG_BLOCK, &set, nullptr);
    Fd signals(::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
    if (!signals)
        return fail({.operation = "watch signals", .number = errno});
    return signals;
}

} // namespace

Result<> run_agent(const AgentOptions &options) {
    auto logger = spdlog::stderr_logger_st("spillway");
    logger->set_pattern(std::getenv("JOURNAL_STREAM") != nullptr ? "%l: %v" : "%H:%M:%S.%e %l: %v");
    spdlog::set_default_logger(logger);

    // First: a signal that comes while the agent starts is heeded when it has started.
    const auto signals = block_signals();
    if (!signals)
        return std::unexpected(signals.error());
    const Paths paths(options.instance);
    auto config = load_config(options.config);
    if (!config)
        return std::unexpected(config.error());
    // What may be refused comes before what stays: programs and maps are pinned.
    auto netlink = Netlink::open();
    if (!netlink)
        return std::unexpected(netlink.error());
    auto events = NetlinkEvents::open();
    if (!events)
        return std::unexpected(events.error());
    auto socket = PacketSocket::open();
    if (!socket)
        return std::unexpected(socket.error());
    if (auto mounted = ensure_bpffs(); !mounted)
        return mounted;
    const auto lock = lock_instance(paths);
    if (!lock)
        return std::unexpected(lock.error());
    const auto refuse = [&paths](const Error &error) -> Result<> {
        // Nothing half-made: rmdir() leaves what holds anything.
        for (const auto &folder :
             {paths.links, paths.progs, paths.maps, paths.root, paths.root.parent_path()})
            ::rmdir(folder.c_str());
        return std::unexpected(error);
    };
    const auto name = claim_name(paths);
    if (!name)
        return refuse(name.error());
    auto chosen = choose_programs(paths, *config);
    if (!chosen)
        return refuse(chosen.error());
    auto maps = Maps::open(paths);
    if (!maps)
        return std::unexpected(maps.error());
    auto loop = EventLoop::create();
    if (!loop)
        return std::unexpected(loop.error());
    Agent agent(options, paths, std::move(*config), std::move(*chosen), std::move(*maps), std::move(*netlink),
                std::move(*events), std::move(*socket), std::move(*loop), signals->get());
    return agent.run();
}

} // namespace spillway
