// SPDX-License-Identifier: Apache-2.0
/// UDP elephants and their sink.
#include "tests/traffic/roles.h"
#include "tests/traffic/sockets.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <map>
#include <poll.h>
#include <utility>
#include <vector>

namespace spillway::traffic {

namespace {

constexpr std::size_t batch = 64;                  // messages a system call
constexpr std::uint64_t quantum_ns = 500'000;      // shortest time between two bursts
constexpr std::uint64_t longest_nap = 100'000'000; // ns between two looks at the stop signal

/// Sends of which the next may succeed: a full queue or buffer, a link that flaps, a receiver not yet there.
bool passing_error(int number) {
    switch (number) {
    case EAGAIN:
    case EINTR:
    case ENOBUFS:
    case ENOMEM:
    case ECONNREFUSED:
    case ENETDOWN:
    case ENETUNREACH:
    case EHOSTDOWN:
    case EHOSTUNREACH:
        return true;
    default:
        return false;
    }
}

/// One elephant: a connected socket and the sequence of what it sent.
class Elephant {
  public:
    Elephant(Fd socket, std::uint32_t run, std::uint32_t flow) : socket_(std::move(socket)) {
        stamp_.run = run;
        stamp_.flow = flow;
    }

    /// Sends up to `count` datagrams (at most `batch`); returns how many the kernel took. A refused one
    /// uses no sequence number, so a hole at the sink is always a loss on the way.
    Result<unsigned> send(unsigned count, std::vector<char> &filler) {
        std::array<Stamp, batch> stamps;
        std::array<std::array<iovec, 2>, batch> parts;
        std::array<mmsghdr, batch> messages{};
        const std::uint64_t now = now_ns();
        for (unsigned i = 0; i < count; ++i) {
            stamps[i] = stamp_;
            stamps[i].sequence += i;
            stamps[i].sent_ns = now;
            parts[i] = {iovec{.iov_base = &stamps[i], .iov_len = sizeof(Stamp)},
                        iovec{.iov_base = filler.data(), .iov_len = filler.size()}};
            messages[i].msg_hdr.msg_iov = parts[i].data();
            messages[i].msg_hdr.msg_iovlen = parts[i].size();
        }
        const int sent = ::sendmmsg(socket_.get(), messages.data(), count, MSG_DONTWAIT);
        if (sent < 0 && !passing_error(errno))
            return fail(socket_error("send", "flow " + std::to_string(stamp_.flow)));
        const auto taken = static_cast<unsigned>(std::max(sent, 0));
        stamp_.sequence += taken;
        return taken;
    }

    [[nodiscard]] std::uint16_t port() const { return local_port(socket_); }

  private:
    Fd socket_;
    Stamp stamp_;
};

Result<std::vector<Elephant>> open_elephants(const FloodOptions &options, const Address &to) {
    raise_file_limit();
    std::vector<Elephant> herd;
    const std::uint32_t run = random_run();
    for (unsigned flow = 0; flow < options.flows; ++flow) {
        const auto port =
            static_cast<std::uint16_t>(options.end.from_port ? options.end.from_port + flow : 0);
        Result<Fd> socket = open_sender(SOCK_DGRAM, to, port);
        if (!socket)
            return fail(socket.error());
        if (Result<> set = set_dscp(*socket, to, options.dscp); !set)
            return fail(set.error());
        if (options.send_buffer > 0 && ::setsockopt(socket->get(), SOL_SOCKET, SO_SNDBUF,
                                                    &options.send_buffer, sizeof options.send_buffer) < 0)
            return fail(socket_error("--send-buffer", std::to_string(options.send_buffer)));
        if (::connect(socket->get(), to.get(), to.length) < 0)
            return fail(socket_error("connect", options.end.to));
        herd.emplace_back(std::move(*socket), run, flow);
    }
    return herd;
}

/// What one flow delivered.
struct Delivery {
    Address from;
    std::uint16_t port = 0;
    std::uint64_t received = 0;
    std::uint64_t bytes = 0; ///< IP layer
    std::uint64_t late = 0;  ///< arrived after one with a higher sequence
    std::uint64_t gaps = 0;  ///< times that the sequence jumped ahead
    std::uint32_t next = 0;  ///< highest sequence seen, plus one
    std::uint64_t first_ns = 0;
    std::uint64_t last_ns = 0;

    void take(const Stamp &stamp, std::size_t ip_bytes, std::uint64_t now) {
        if (received++ == 0)
            first_ns = now;
        last_ns = now;
        bytes += ip_bytes;
        if (stamp.sequence < next)
            ++late;
        else if (stamp.sequence > next)
            ++gaps;
        next = std::max(next, stamp.sequence + 1);
    }

    [[nodiscard]] std::uint64_t lost() const { return next > received ? next - received : 0; }
};

double mbit(std::uint64_t bytes, std::uint64_t ns) {
    return ns == 0 ? 0 : static_cast<double>(bytes) * 8000.0 / static_cast<double>(ns);
}

nlohmann::json to_json(const Delivery &flow) {
    return {{"received", flow.received},
            {"bytes", flow.bytes},
            {"mbit", mbit(flow.bytes, flow.last_ns - flow.first_ns)},
            {"late", flow.late},
            {"lost", flow.lost()},
            {"gaps", flow.gaps}};
}

/// All flows that reached the sink, by (run, flow index).
class Deliveries {
  public:
    /// Takes what waits on the socket, up to one batch; false when nothing waits.
    bool take_batch(const Fd &socket, std::uint16_t port) {
        std::array<Stamp, batch> stamps;
        std::array<Address, batch> from;
        std::array<iovec, batch> parts;
        std::array<mmsghdr, batch> messages{};
        for (std::size_t i = 0; i < batch; ++i) {
            parts[i] = {.iov_base = &stamps[i], .iov_len = sizeof(Stamp)};
            messages[i].msg_hdr.msg_name = &from[i].storage;
            messages[i].msg_hdr.msg_namelen = sizeof from[i].storage;
            messages[i].msg_hdr.msg_iov = &parts[i];
            messages[i].msg_hdr.msg_iovlen = 1;
        }
        // MSG_TRUNC: the stamp is all we need, msg_len still tells the real length.
        const int count = ::recvmmsg(socket.get(), messages.data(), batch, MSG_DONTWAIT | MSG_TRUNC, nullptr);
        const std::uint64_t now = now_ns();
        for (std::size_t i = 0; std::cmp_less(i, count); ++i) {
            if (messages[i].msg_len < sizeof(Stamp) || stamps[i].magic != Stamp::expected_magic) {
                ++foreign_;
                continue;
            }
            Delivery &flow = flows_[{stamps[i].run, stamps[i].flow}];
            if (flow.received == 0) {
                flow.from = from[i];
                flow.port = port;
            }
            flow.take(stamps[i], messages[i].msg_len + from[i].udp_overhead(), now);
        }
        return count > 0;
    }

    [[nodiscard]] nlohmann::json report() const {
        Delivery total;
        std::uint64_t lost = 0;
        nlohmann::json list = nlohmann::json::array();
        for (const auto &[key, flow] : flows_) {
            nlohmann::json one = to_json(flow);
            one["from"] = flow.from.text();
            one["from_port"] = flow.from.port();
            one["port"] = flow.port;
            list.push_back(std::move(one));

            total.first_ns = total.received ? std::min(total.first_ns, flow.first_ns) : flow.first_ns;
            total.last_ns = std::max(total.last_ns, flow.last_ns);
            total.received += flow.received;
            total.bytes += flow.bytes;
            total.late += flow.late;
            total.gaps += flow.gaps;
            lost += flow.lost();
        }
        nlohmann::json json = to_json(total);
        json["role"] = "sink";
        json["lost"] = lost;
        json["foreign"] = foreign_;
        json["flows"] = std::move(list);
        return json;
    }

  private:
    std::map<std::pair<std::uint32_t, std::uint32_t>, Delivery> flows_;
    std::uint64_t foreign_ = 0; // datagrams that no flood sent
};

/// What all phases of a flood have sent.
struct Sent {
    std::uint64_t done = 0;    ///< datagrams whose time has come and that were sent or refused
    std::uint64_t refused = 0; ///< of these
    std::size_t turn = 0;      ///< the flow whose datagram is next
};

/// Sends at the rate of one phase until its time is over.
Result<> play_phase(std::vector<Elephant> &herd, const Phase &phase, std::size_t ip_bytes, std::size_t size,
                    Sent &sent) {
    const std::uint64_t start = now_ns();
    const std::uint64_t end = start + static_cast<std::uint64_t>(phase.seconds * 1e9);
    const double per_ns = phase.mbit / 8000.0 / static_cast<double>(ip_bytes); // datagrams a nanosecond
    // After a delay we catch up by 2 ms of traffic at a time: a stall must not end in one huge burst.
    const auto burst_limit = static_cast<std::uint64_t>(std::ceil(4 * per_ns * quantum_ns));
    std::vector<char> filler(size - sizeof(Stamp));
    std::vector<unsigned> share(herd.size());
    std::uint64_t done = 0; // of this phase
    std::uint64_t now = start;
    while (now < end && !stop_requested()) {
        if (phase.mbit == 0) {
            sleep_until(std::min(now + longest_nap, end));
            now = now_ns();
            continue;
        }
        const auto due = static_cast<std::uint64_t>(static_cast<double>(now - start) * per_ns) + 1;
        const std::uint64_t burst = std::min(due - std::min(done, due), burst_limit);
        std::ranges::fill(share, 0U);
        for (std::uint64_t i = 0; i < burst; ++i)
            ++share[(sent.turn + i) % share.size()];
        for (std::size_t i = 0; i < std::min<std::uint64_t>(burst, share.size()); ++i) {
            const std::size_t flow = (sent.turn + i) % share.size();
            for (unsigned left = share[flow]; left > 0;) {
                const unsigned want = std::min<unsigned>(left, batch);
                const Result<unsigned> taken = herd[flow].send(want, filler);
                if (!taken)
                    return fail(taken.error());
                sent.refused += want - *taken;
                left -= want;
            }
        }
        sent.turn = (sent.turn + burst) % share.size();
        done += burst;
        sent.done += burst;

        const auto next_due = start + static_cast<std::uint64_t>(static_cast<double>(done) / per_ns);
        sleep_until(std::min({std::max(now + quantum_ns, next_due), now + longest_nap, end}));
        now = now_ns();
    }
    return {};
}

} // namespace

Result<nlohmann::json> flood(const FloodOptions &options) {
    const Result<Address> to = parse_address(options.end.to, options.end.port);
    if (!to)
        return fail(to.error());
    Result<std::vector<Elephant>> herd = open_elephants(options, *to);
    if (!herd)
        return fail(herd.error());
    ask_for_prompt_wakeups(Urgency::load);
    keep_off_forwarding_cpu();
    report_ready();

    const std::size_t ip_bytes = options.size + to->udp_overhead();
    std::vector<Phase> phases{{.mbit = options.mbit, .seconds = options.end.seconds}};
    phases.insert(phases.end(), options.then.begin(), options.then.end());
    Sent sent;
    const std::uint64_t start = now_ns();
    for (const Phase &phase : phases)
        if (Result<> played = play_phase(*herd, phase, ip_bytes, options.size, sent); !played)
            return fail(played.error());
    const std::uint64_t now = now_ns();

    const std::uint64_t packets = sent.done - sent.refused;
    return nlohmann::json{{"role", "flood"},
                          {"from_port", herd->front().port()},
                          {"packets", packets},
                          {"bytes", packets * ip_bytes},
                          {"refused", sent.refused},
                          {"seconds", static_cast<double>(now - start) / 1e9},
                          {"mbit", mbit(packets * ip_bytes, now - start)}};
}

Result<nlohmann::json> sink(const SinkOptions &options) {
    raise_file_limit();
    std::vector<Fd> sockets;
    std::vector<pollfd> polls;
    for (unsigned i = 0; i < options.ports; ++i) {
        Result<Fd> socket = bind_any(SOCK_DGRAM, static_cast<std::uint16_t>(options.end.port + i));
        if (!socket)
            return fail(socket.error());
        polls.push_back({.fd = socket->get(), .events = POLLIN, .revents = 0});
        sockets.push_back(std::move(*socket));
    }
    report_ready();

    Deliveries deliveries;
    const double seconds = options.end.seconds;
    const std::uint64_t until = seconds > 0 ? now_ns() + static_cast<std::uint64_t>(seconds * 1e9) : ~0ULL;
    const auto take_all = [&] {
        bool more = false;
        for (std::size_t i = 0; i < sockets.size(); ++i)
            more |= deliveries.take_batch(sockets[i], static_cast<std::uint16_t>(options.end.port + i));
        return more;
    };
    while (!stop_requested() && now_ns() < until)
        if (::poll(polls.data(), polls.size(), 50) > 0)
            take_all();
    while (take_all() && now_ns() < until) // what had arrived before the signal
        ;
    return deliveries.report();
}

} // namespace spillway::traffic
