// SPDX-License-Identifier: Apache-2.0
/// spillway-traffic: makes and measures the traffic of the tests and the demo. One role a process; one JSON
/// object on standard output at the end; exit 0 done, 1 failed, 2 bad usage.
#include "tests/traffic/roles.h"
#include "tests/traffic/sockets.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <iostream>
#include <optional>

namespace {

using namespace spillway;
using namespace spillway::traffic;

constexpr double longest_run = 86400; // seconds

std::optional<Phase> parse_phase(const std::string &text) {
    Phase phase;
    char end = 0;
    if (std::sscanf(text.c_str(), "%lf:%lf%c", &phase.mbit, &phase.seconds, &end) != 2 || phase.mbit < 0 ||
        phase.mbit > 1e6 || phase.seconds <= 0 || phase.seconds > longest_run)
        return std::nullopt;
    return phase;
}

CLI::Option *add_port(CLI::App &role, Endpoint &end, const char *what) {
    return role.add_option("--port", end.port, what)->required()->check(CLI::Range(1, 65535));
}

void add_seconds(CLI::App &role, Endpoint &end, bool required) {
    auto *option = role.add_option("--seconds", end.seconds, "how long to run");
    option->check(CLI::Range(0.001, longest_run));
    if (required)
        option->required();
    else
        option->description("how long to run; without it until SIGTERM or SIGINT");
}

void add_sender(CLI::App &role, Endpoint &end) {
    role.add_option("--to", end.to, "destination address, IPv4 or IPv6")->required();
    add_port(role, end, "destination port");
    role.add_option("--from-port", end.from_port, "source port, counted up for each further flow")
        ->check(CLI::Range(1, 65535));
    add_seconds(role, end, true);
}

CLI::Option *add_mbit(CLI::App &role, double &mbit, const char *what) {
    return role.add_option("--mbit", mbit, what)->check(CLI::Range(0.001, 1e6));
}

void add_size(CLI::App &role, std::size_t &size) {
    role.add_option("--size", size, "UDP payload in bytes")
        ->capture_default_str()
        ->check(CLI::Range(sizeof(Stamp), largest_datagram));
}

void add_dscp(CLI::App &role, unsigned &dscp) {
    role.add_option("--dscp", dscp, "DSCP of the packets")->capture_default_str()->check(CLI::Range(0, 63));
}

CLI::Option *add_count(CLI::App &role, const char *name, unsigned &count, const char *what) {
    return role.add_option(name, count, what)->capture_default_str()->check(CLI::Range(1, 60000));
}

/// Every port of the row must exist.
Result<> check_ports(const char *name, unsigned first, unsigned count) {
    if (first == 0 || first + count - 1 <= 65535)
        return {};
    return fail({.operation = name,
                 .object = std::to_string(first),
                 .detail = "with " + std::to_string(count) + " in a row the last one is above 65535",
                 .hint = "start lower or ask for fewer",
                 .kind = ErrorKind::usage});
}

} // namespace

int main(int argc, char **argv) {
    CLI::App app("Makes and measures test traffic; prints one JSON object at the end.", "spillway-traffic");
    app.require_subcommand(1);
    std::function<Result<nlohmann::json>()> play;

    Endpoint reflect_end;
    auto *role = app.add_subcommand("reflect", "send every UDP datagram back");
    add_port(*role, reflect_end, "port to listen on");
    add_seconds(*role, reflect_end, false);
    role->callback([&] { play = [&] { return reflect(reflect_end); }; });

    ProbeOptions probe_options;
    role = app.add_subcommand("probe", "the victim: UDP ping-pong on absolute deadlines");
    add_sender(*role, probe_options.end);
    add_size(*role, probe_options.size);
    role->add_option("--patience", probe_options.patience, "seconds to wait for answers at the end")
        ->capture_default_str()
        ->check(CLI::Range(0.0, 60.0));
    role->add_option("--series", probe_options.series, "write a line for each request to this file");
    auto *hz = role->add_option("--hz", probe_options.hz, "requests a second");
    hz->capture_default_str()->check(CLI::Range(0.1, 1e6));
    add_mbit(*role, probe_options.mbit, "rate instead of --hz, IP and UDP headers included")->excludes(hz);
    role->callback([&] { play = [&] { return probe(probe_options); }; });

    FloodOptions flood_options;
    role = app.add_subcommand("flood", "UDP elephants: paced, numbered datagrams");
    add_sender(*role, flood_options.end);
    add_size(*role, flood_options.size);
    add_mbit(*role, flood_options.mbit, "rate of all flows together, IP and UDP headers included")
        ->required();
    std::vector<std::string> then;
    role->add_option("--then", then, "further phases MBIT:SECONDS; 0:2 is two seconds of silence")
        ->check([](const std::string &text) {
            return parse_phase(text) ? std::string() : "not MBIT:SECONDS: " + text;
        });
    add_count(*role, "--flows", flood_options.flows, "flows, one source port each");
    add_dscp(*role, flood_options.dscp);
    role->add_option("--send-buffer", flood_options.send_buffer,
                     "bytes that may wait in a socket (SO_SNDBUF); without it, more than enough")
        ->check(CLI::Range(1, 1 << 30));
    role->callback([&] {
        play = [&]() -> Result<nlohmann::json> {
            if (auto fine = check_ports("--from-port", flood_options.end.from_port, flood_options.flows);
                !fine)
                return fail(fine.error());
            for (const std::string &text : then)
                flood_options.then.push_back(*parse_phase(text));
            return flood(flood_options);
        };
    });

    SinkOptions sink_options;
    role = app.add_subcommand("sink", "receive numbered datagrams, judge loss and order");
    add_port(*role, sink_options.end, "first port to listen on");
    add_count(*role, "--ports", sink_options.ports, "ports to listen on");
    add_seconds(*role, sink_options.end, false);
    role->callback([&] {
        play = [&]() -> Result<nlohmann::json> {
            if (auto fine = check_ports("--port", sink_options.end.port, sink_options.ports); !fine)
                return fail(fine.error());
            return sink(sink_options);
        };
    });

    TcpOptions tcp_options;
    role = app.add_subcommand("tcp-send", "TCP elephants");
    add_sender(*role, tcp_options.end);
    add_count(*role, "--flows", tcp_options.flows, "connections");
    role->add_option("--congestion", tcp_options.congestion, "congestion control")->capture_default_str();
    add_mbit(*role, tcp_options.mbit, "pace to this rate, all connections together");
    add_dscp(*role, tcp_options.dscp);
    role->callback([&] {
        play = [&]() -> Result<nlohmann::json> {
            if (auto fine = check_ports("--from-port", tcp_options.end.from_port, tcp_options.flows); !fine)
                return fail(fine.error());
            return tcp_send(tcp_options);
        };
    });

    Endpoint tcp_sink_end;
    role = app.add_subcommand("tcp-sink", "receive TCP elephants");
    add_port(*role, tcp_sink_end, "port to listen on");
    add_seconds(*role, tcp_sink_end, false);
    role->callback([&] { play = [&] { return tcp_sink(tcp_sink_end); }; });

    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError &error) {
        return app.exit(error) == 0 ? 0 : static_cast<int>(ErrorKind::usage);
    }
    catch_stop_signals();
    const Result<nlohmann::json> result = play();
    if (!result) {
        std::cerr << "spillway-traffic: " << result.error().text() << '\n';
        return static_cast<int>(result.error().kind);
    }
    std::cout << result->dump() << '\n';
    return 0;
}
