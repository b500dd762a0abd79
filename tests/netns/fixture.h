// SPDX-License-Identifier: Apache-2.0
/// The network namespace laboratory of the tests: nodes, links, traffic, captures and the agent under test.
///
///     Chain chain(1);                                              // host - sw1 - receiver, routed
///     setup(chain.node(1), "eth1", "200mbit");                     // `spillway setup` in sw1
///     Agent agent(chain.node(1), config);                          // runs when this returns
///     Traffic sink(chain.receiver(), "sink --port 9000");
///     Traffic flood(chain.host(), fmt::format("flood --to {} --port 9000 --mbit 300 --seconds 5", …));
///     EXPECT_TRUE(eventually(2, [&] { return agent.flows().size() == 1; }));
///     EXPECT_EQ(sink.stop()["late"], 0);
///
/// Everything is owned by scope: what a test makes is gone when the test ends, passed or failed. What a
/// killed test left behind is swept when the next one starts. What cannot be made throws std::runtime_error
/// with the failed command and its output; GoogleTest turns that into a failure. Times are in seconds unless
/// the name says otherwise. SPILLWAY_TEST_SLOWNESS in the environment tells of a machine that is so many
/// times slower than real hardware: rates of traffic and of `setup` are lower by it, waits longer, and
/// traffic lasts three times as long. Needs root.
#pragma once

#include "agent/core/fd.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <thread>
#include <vector>

namespace spillway::lab {

using Words = std::vector<std::string>;

/// Splits at blanks: `words("link set eth0 up")`.
Words words(std::string_view text);

/// CLOCK_MONOTONIC, nanoseconds: the clock of every timestamp here and in the program under test.
std::uint64_t now_ns();

/// Polls until the predicate holds or the time is over; tells whether it held.
bool eventually(double bound, const std::function<bool()> &predicate);

/// What a machine as slow as this one makes of a count that follows from a rate.
std::uint64_t scaled(std::uint64_t count);

/// What a machine as slow as this one may take for what takes so many seconds elsewhere.
std::uint64_t within_ns(double seconds);

/// A network namespace of a name unique on this machine, with loopback up, IPv4 and IPv6 forwarding on, and
/// reverse path filter, duplicate address detection, router solicitation and bridge netfilter off. Only the
/// network namespace is its own: /sys/fs/bpf is the machine's.
class Namespace {
  public:
    explicit Namespace(std::string_view role); ///< role: a word for the name, e.g. "sw1"
    ~Namespace();
    Namespace(const Namespace &) = delete;
    Namespace &operator=(const Namespace &) = delete;

    [[nodiscard]] const std::string &name() const { return name_; } ///< as in /run/netns, for `--netns`
    [[nodiscard]] int fd() const { return fd_.get(); }              ///< for setns

    void ip(std::string_view arguments) const; ///< `ip ARGUMENTS` inside; throws unless it succeeds
    void tc(std::string_view arguments) const; ///< `tc ARGUMENTS` inside; throws unless it succeeds
    /// Writes below /proc/sys/net; the key with slashes: "ipv4/ip_forward".
    void sysctl(std::string_view key, std::string_view value) const;
    /// Runs work on a thread of its own inside the namespace and waits for it; what it throws comes out here.
    /// A socket opened there stays in the namespace. Do not start a Process there: it ends with the thread.
    void call(const std::function<void()> &work) const;

  private:
    std::string name_;
    Fd fd_;
};

/// What a finished command left.
struct Output {
    int code = 0; ///< exit code; 128 + signal number if a signal ended it; 127 if it could not be executed
    std::string out;
    std::string err;
};

/// A program running inside a namespace; killed, by its pid, when the object goes.
class Process {
  public:
    Process(const Namespace &ns, Words argv, std::string_view input = {});
    explicit Process(Words argv, std::string_view input = {}); ///< in the namespace of the test itself
    ~Process();
    Process(Process &&) noexcept = default;
    Process &operator=(Process &&) = delete;

    [[nodiscard]] pid_t pid() const { return pid_; }
    /// The exit code (as in Output) once it has ended; nothing when it still runs after `bound`.
    std::optional<int> wait(double bound);
    [[nodiscard]] bool running() { return !wait(0); }
    void signal(int number);                ///< does nothing once it has ended
    int kill();                             ///< SIGKILL, waits; returns the exit code
    [[nodiscard]] std::string out() const;  ///< standard output so far
    [[nodiscard]] std::string err() const;  ///< standard error so far
    [[nodiscard]] std::string text() const; ///< the command line, for messages

  private:
    Process(int netns, Words argv, std::string_view input); // netns: descriptor, or -1 to stay

    Words argv_;
    Fd out_;
    Fd err_;
    Fd pidfd_; // valid until the exit code is known
    pid_t pid_ = -1;
    int code_ = 0;
};

/// Runs a program inside the namespace and waits; throws if it takes longer than `bound`.
Output run(const Namespace &ns, Words argv, std::string_view input = {}, double bound = 60);
Output run(Words argv, std::string_view input = {}, double bound = 60); ///< in the test's own namespace
/// The same, and throws unless it exits with 0.
Output must(const Namespace &ns, Words argv, std::string_view input = {});

/// One end of a link.
struct End {
    const Namespace &ns;
    std::string port;     ///< interface name
    std::string mac;      ///< literal, "02:00:00:…"
    Words addresses = {}; ///< with prefix length: "10.0.1.1/24", "fd00:1::1/64"; none for a bridge port
};

struct LinkOptions {
    bool offloads =
        false;           ///< leave gso, tso, gro and transmit checksums to the device: one skb, many packets
    unsigned queues = 1; ///< transmit and receive queues of each end
    unsigned mtu = 1500;
};

/// A veth pair, up, with permanent neighbour entries for the addresses of the far end: no ARP or ND. Packets
/// are received on one CPU, so that only queues can reorder them.
void link(const End &a, const End &b, const LinkOptions &options = {});

/// A permanent neighbour entry, for two ends that a bridge joins.
void neighbour(const Namespace &ns, const std::string &port, const std::string &address,
               const std::string &mac);

/// A bridge over existing ports, without STP and snooping; bridge and ports have no IP of their own.
void bridge(const Namespace &ns, const std::string &name, const Words &ports);

struct ChainOptions {
    std::vector<unsigned> bridged = {}; ///< switches that bridge, by node number; the others route
    std::string to_host = "eth0";       ///< name of each node's port on the side of the host
    std::string to_receiver = "eth1";   ///< name of each node's port on the side of the receiver
    LinkOptions link = {};
};

/// host - sw1 - sw2 - … - receiver. Node 0 is the host, 1 … n the switches, n + 1 the receiver. The port of
/// node N towards the host has the MAC 02:00:00:00:0N:00, the one towards the receiver 02:00:00:00:0N:01.
/// Each stretch between two nodes with IP has a net 10.0.S.0/24 and fd00:S::/64, S counted from 1 at the
/// host; its end on the side of the host is .1, the other .2.
class Chain {
  public:
    explicit Chain(unsigned switches, ChainOptions options = {});

    [[nodiscard]] Namespace &node(unsigned number) const { return *nodes_.at(number); }
    [[nodiscard]] Namespace &host() const { return *nodes_.front(); }
    [[nodiscard]] Namespace &receiver() const { return *nodes_.back(); }
    [[nodiscard]] std::string host_address(int family = 4) const;     ///< family 4 or 6
    [[nodiscard]] std::string receiver_address(int family = 4) const; ///< family 4 or 6

  private:
    void connect(unsigned left);
    void join_stretches();
    void route();

    [[nodiscard]] bool is_bridged(unsigned node) const;
    [[nodiscard]] unsigned stretch_right_of(unsigned node) const; // number of the net behind its right port

    ChainOptions options_;
    std::vector<std::unique_ptr<Namespace>> nodes_;
};

/// A frame as seen on a port.
struct Frame {
    std::vector<std::uint8_t> bytes;       ///< from the destination MAC on, without an offloaded VLAN tag
    std::optional<std::uint16_t> vlan_tci; ///< the tag that the kernel keeps beside the packet
    std::uint64_t time_ns = 0;             ///< on the clock of now_ns()
    bool outgoing = false;
};

struct CaptureOptions {
    std::uint16_t ethertype = 0; ///< only this one (behind an offloaded tag); 0 = all
    bool outgoing = false;       ///< frames that the port sends, too
    std::size_t limit = 65536;   ///< frames kept; further ones are counted as lost
};

/// Records frames on a port from construction to destruction. It sees arriving frames after native XDP and
/// before TC ingress, and sent ones after the qdisc, except those of PACKET_QDISC_BYPASS senders: watch these
/// where they arrive.
class Capture {
  public:
    Capture(const Namespace &ns, const std::string &port, CaptureOptions options = {});
    ~Capture();
    Capture(const Capture &) = delete;
    Capture &operator=(const Capture &) = delete;

    [[nodiscard]] std::vector<Frame> frames() const;
    [[nodiscard]] std::size_t lost(); ///< above the limit, or dropped by the kernel

  private:
    void record();
    void take(const Frame &frame);

    CaptureOptions options_;
    std::int64_t clock_offset_ns_; // CLOCK_REALTIME, which stamps packets, over now_ns()
    Fd socket_;
    Fd stop_;
    mutable std::mutex mutex_;
    std::vector<Frame> frames_;
    std::size_t lost_ = 0;
    std::thread thread_;
};

/// Sends a raw frame, from the destination MAC on, out of the port.
void inject(const Namespace &ns, const std::string &port, const std::vector<std::uint8_t> &bytes);

/// One role of spillway-traffic (tests/traffic/roles.h), open for business when the constructor returns.
class Traffic {
  public:
    Traffic(const Namespace &ns, std::string_view role_and_options);

    nlohmann::json result(); ///< waits for its own end; what it measured
    nlohmann::json stop();   ///< ends it now; what it measured

  private:
    Process process_;
};

/// What one traffic class of a port has done.
struct ClassStats {
    std::uint64_t bytes = 0;   ///< sent
    std::uint64_t packets = 0; ///< sent
    std::uint64_t dropped = 0; ///< packets
    std::uint64_t backlog = 0; ///< packets waiting now
};
ClassStats class_stats(const Namespace &ns, const std::string &port, const std::string &classid);

/// Path of the program under test.
const std::string &spillway_program();

/// The recommended qdisc tree: `spillway setup PORT --rate RATE`.
void setup(const Namespace &ns, const std::string &port, const std::string &rate);

/// The agent under test, as an instance of its own.
class Agent {
  public:
    /// Starts it and returns when it runs and no port is waiting; `wait_for_ports` false: when it runs.
    Agent(const Namespace &ns, const nlohmann::json &config, bool wait_for_ports = true);
    /// Stops the agent, purges its instance, and prints its log if the test has failed.
    ~Agent();
    Agent(const Agent &) = delete;
    Agent &operator=(const Agent &) = delete;

    [[nodiscard]] const std::string &instance() const { return instance_; }
    [[nodiscard]] const std::string &config_file() const { return config_file_; }
    [[nodiscard]] std::string log() const;
    [[nodiscard]] Process &process() { return *process_; }

    /// `spillway --instance I ARGUMENTS…` inside the namespace.
    [[nodiscard]] Output command(const Words &arguments) const;
    [[nodiscard]] nlohmann::json status() const; ///< `status --json`
    [[nodiscard]] nlohmann::json
    flows(bool all = false) const; ///< the list in `flows --json`, `--all` if asked

    void start(bool wait_for_ports = true);         ///< again, after kill() or stop()
    void kill();                                    ///< SIGKILL
    int stop();                                     ///< SIGTERM, waits; the exit code
    void reload(const nlohmann::json &config);      ///< new configuration and SIGHUP
    void write(const nlohmann::json &config) const; ///< new configuration, for the next start

  private:
    Agent(const Namespace &ns, const nlohmann::json &config, std::string instance); // not yet started
    [[nodiscard]] bool serving(bool ports_too) const;

    const Namespace &ns_;
    std::string instance_;
    std::string directory_;
    std::string config_file_;
    std::string old_log_; // of earlier runs
    std::optional<Process> process_;
    int exceptions_; // in flight when this was made
};

} // namespace spillway::lab
