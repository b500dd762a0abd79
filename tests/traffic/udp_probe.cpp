// SPDX-License-Identifier: Apache-2.0
/// The victim and its reflector.
#include "tests/traffic/roles.h"
#include "tests/traffic/sockets.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <netinet/in.h>
#include <poll.h>
#include <string>
#include <vector>

namespace spillway::traffic {

namespace {

constexpr std::uint64_t look_ns = 100'000'000; // longest sleep between two looks at the stop signal

/// Waits until the socket is readable or the time has come.
bool readable_before(const Fd &socket, std::uint64_t deadline_ns) {
    const std::uint64_t now = now_ns();
    const std::uint64_t wait = deadline_ns > now ? std::min(deadline_ns - now, look_ns) : 0;
    pollfd poll{.fd = socket.get(), .events = POLLIN, .revents = 0};
    const timespec timeout{.tv_sec = 0, .tv_nsec = static_cast<long>(wait)};
    return ::ppoll(&poll, 1, &timeout, nullptr) > 0;
}

/// The answers of one probe run.
class Answers {
  public:
    Answers(std::uint32_t run, std::size_t expected)
        : run_(run), round_trip_ns_(expected, lost), sent_ns_(expected, 0) {
        latency_us_.reserve(expected);
    }

    void asked(const Stamp &stamp) { sent_ns_[stamp.sequence] = stamp.sent_ns; }

    void take_all(const Fd &socket) {
        std::array<char, largest_datagram> buffer;
        for (;;) {
            const ssize_t length = ::recv(socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
            if (length < 0)
                return; // nothing left, or an ICMP error: the answer counts as lost
            if (static_cast<std::size_t>(length) < sizeof(Stamp))
                continue;
            Stamp stamp;
            std::memcpy(&stamp, buffer.data(), sizeof stamp);
            take(stamp);
        }
    }

    [[nodiscard]] std::size_t received() const { return latency_us_.size(); }

    void report(nlohmann::json &json) {
        std::ranges::sort(latency_us_);
        json["received"] = received();
        json["late"] = late_;
        json["duplicates"] = duplicates_;
        json["p50_us"] = quantile(0.50);
        json["p99_us"] = quantile(0.99);
        json["max_us"] = quantile(1);
    }

    /// Writes the series of the first `count` requests.
    [[nodiscard]] Result<> write_series(const std::string &file, std::size_t count) const {
        std::ofstream out(file);
        for (std::size_t i = 0; i < count; ++i)
            out << sent_ns_[i] << ' ' << round_trip_ns_[i] << '\n';
        if (!out.flush())
            return fail(socket_error("--series", file));
        return {};
    }

  private:
    static constexpr std::int64_t lost = -1;

    void take(const Stamp &stamp) {
        if (stamp.magic != Stamp::expected_magic || stamp.run != run_ ||
            stamp.sequence >= round_trip_ns_.size())
            return;
        std::int64_t &round_trip = round_trip_ns_[stamp.sequence];
        if (round_trip != lost) {
            ++duplicates_;
            return;
        }
        round_trip = static_cast<std::int64_t>(now_ns() - stamp.sent_ns);
        latency_us_.push_back(static_cast<double>(round_trip) / 1000.0);
        if (stamp.sequence < highest_)
            ++late_;
        highest_ = std::max(highest_, stamp.sequence);
    }

    [[nodiscard]] nlohmann::json quantile(double part) const { // of the sorted latencies
        if (latency_us_.empty())
            return nullptr;
        const auto rank = std::ceil(part * static_cast<double>(latency_us_.size()));
        return latency_us_[static_cast<std::size_t>(rank) - 1];
    }

    std::uint32_t run_;
    std::uint32_t highest_ = 0;
    std::size_t late_ = 0;
    std::size_t duplicates_ = 0;
    std::vector<std::int64_t> round_trip_ns_; // by sequence
    std::vector<std::uint64_t> sent_ns_;      // by sequence
    std::vector<double> latency_us_;
};

} // namespace

Result<nlohmann::json> reflect(const Endpoint &end) {
    Result<Fd> socket = bind_any(SOCK_DGRAM, end.port);
    if (!socket)
        return fail(socket.error());
    // The answer leaves from the address that was asked, whatever the route says: the prober is connected.
    const int on = 1;
    ::setsockopt(socket->get(), IPPROTO_IPV6, IPV6_RECVPKTINFO, &on, sizeof on);
    ask_for_prompt_wakeups(Urgency::measurement);
    report_ready();

    std::uint64_t received = 0;
    std::uint64_t sent = 0;
    std::vector<char> payload(largest_datagram);
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(in6_pktinfo))> control;
    const std::uint64_t until =
        end.seconds > 0 ? now_ns() + static_cast<std::uint64_t>(end.seconds * 1e9) : ~0ULL;
    while (!stop_requested() && now_ns() < until) {
        if (!readable_before(*socket, until))
            continue;
        Address from;
        iovec part{.iov_base = payload.data(), .iov_len = payload.size()};
        msghdr message{};
        message.msg_name = &from.storage;
        message.msg_namelen = sizeof from.storage;
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_control = control.data();
        message.msg_controllen = control.size();
        const ssize_t length = ::recvmsg(socket->get(), &message, MSG_DONTWAIT);
        if (length < 0)
            continue;
        ++received;
        part.iov_len = static_cast<std::size_t>(length);
        if (cmsghdr *header = CMSG_FIRSTHDR(&message);
            header != nullptr && header->cmsg_type == IPV6_PKTINFO) {
            in6_pktinfo info{};
            std::memcpy(&info, CMSG_DATA(header), sizeof info);
            info.ipi6_ifindex = 0;
            std::memcpy(CMSG_DATA(header), &info, sizeof info);
        }
        if (::sendmsg(socket->get(), &message, MSG_DONTWAIT) == length)
            ++sent;
    }
    return nlohmann::json{{"role", "reflect"}, {"received", received}, {"sent", sent}};
}

Result<nlohmann::json> probe(const ProbeOptions &options) {
    const Result<Address> to = parse_address(options.end.to, options.end.port);
    if (!to)
        return fail(to.error());
    const Result<Fd> socket = open_sender(SOCK_DGRAM, *to, options.end.from_port);
    if (!socket)
        return fail(socket.error());
    if (::connect(socket->get(), to->get(), to->length) < 0)
        return fail(socket_error("connect", options.end.to));
    ask_for_prompt_wakeups(Urgency::measurement);
    report_ready();

    const double bits = static_cast<double>(options.size + to->udp_overhead()) * 8;
    const double hz = options.mbit > 0 ? options.mbit * 1e6 / bits : options.hz;
    const auto requests = static_cast<std::uint32_t>(std::max(1.0, std::floor(hz * options.end.seconds)));
    Stamp stamp{.run = random_run()};
    Answers answers(stamp.run, requests);
    std::vector<char> payload(options.size);
    std::uint32_t failed = 0;

    const std::uint64_t start = now_ns();
    while (stamp.sequence < requests && !stop_requested()) {
        const std::uint64_t due = start + static_cast<std::uint64_t>(stamp.sequence / hz * 1e9);
        if (readable_before(*socket, due))
            answers.take_all(*socket);
        stamp.sent_ns = now_ns();
        if (stamp.sent_ns < due)
            continue;
        std::memcpy(payload.data(), &stamp, sizeof stamp);
        answers.asked(stamp);
        // A request that the host itself refuses is a lost one.
        if (::send(socket->get(), payload.data(), payload.size(), MSG_DONTWAIT) < 0)
            ++failed;
        ++stamp.sequence;
    }
    const std::uint64_t give_up = now_ns() + static_cast<std::uint64_t>(options.patience * 1e9);
    while (answers.received() + failed < stamp.sequence && now_ns() < give_up)
        if (readable_before(*socket, give_up))
            answers.take_all(*socket);

    if (!options.series.empty())
        if (Result<> written = answers.write_series(options.series, stamp.sequence); !written)
            return fail(written.error());
    const std::size_t lost = stamp.sequence - answers.received();
    nlohmann::json json{{"role", "probe"},
                        {"from_port", local_port(*socket)},
                        {"sent", stamp.sequence},
                        {"lost", lost},
                        {"loss", stamp.sequence > 0 ? static_cast<double>(lost) / stamp.sequence : 0.0}};
    answers.report(json);
    return json;
}

} // namespace spillway::traffic
