// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/commands.h"
#include "agent/cli/network_namespace.h"
#include "agent/config/config.h"
#include "agent/daemon/agent.h"
#include "agent/kernel/setup_tree.h"

#include <spillway/flow_key.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>

#include <csignal>
#include <functional>
#include <iostream>

namespace spillway {
namespace {

/// What went wrong; nothing when all went well.
using Problems = std::vector<Error>;

Problems problems_of(Result<> result) {
    return result ? Problems{} : Problems{std::move(result.error())};
}

int report(const Problems &problems) {
    for (const auto &problem : problems)
        std::cerr << "spillway: " << problem.text() << "\n";
    return problems.empty() ? 0 : static_cast<int>(problems.front().kind);
}

Error usage(std::string_view sentence, std::string_view hint) {
    return {.operation = std::string(sentence), .hint = std::string(hint), .kind = ErrorKind::usage};
}

/// The options of all commands; a command's callback puts what is to be done into `action`.
struct CommandLine {
    Context context;
    std::filesystem::path config{default_config_path};
    std::vector<std::string> flow;
    std::string port;
    SetupOptions setup;
    CipDecodeOptions cip_decode;
    bool detach_on_exit = false;
    bool json = false;
    bool all = false;
    std::function<Problems()> action;
};

CLI::App *add_command(CLI::App &app, CommandLine &line, const char *name, const char *description,
                      std::function<Problems()> action) {
    CLI::App *command = app.add_subcommand(name, description);
    command->callback([&line, action = std::move(action)] { line.action = action; });
    return command;
}

void add_config(CLI::App &command, CommandLine &line) {
    command.add_option("--config", line.config, "configuration file")
        ->type_name("FILE")
        ->default_str(std::string(default_config_path));
}

void add_agent(CLI::App &app, CommandLine &line) {
    CLI::App *command = add_command(app, line, "agent", "Run the agent in the foreground", [&line] {
        return problems_of(run_agent({.instance = line.context.instance,
                                      .config = line.config,
                                      .detach_on_exit = line.detach_on_exit}));
    });
    add_config(*command, line);
    command->add_flag("--detach-on-exit", line.detach_on_exit, "take the programs off the ports at the end");
    command->footer(
        "SIGHUP reads the configuration again, all or nothing; SIGTERM stops. The data path stays\n"
        "when the agent stops, and marks run out in the kernel.\n\n"
        "Examples:\n"
        "  spillway agent\n"
        "  spillway --instance lab --netns sw1 agent --config lab.json --detach-on-exit");
}

void add_check(CLI::App &app, CommandLine &line) {
    CLI::App *command =
        add_command(app, line, "check", "Check a configuration, and this host's ports and qdiscs against it",
                    [&line] { return run_check(line.context, line.config); });
    add_config(*command, line);
    command->footer("Names the first fault of the file, or else every fault of the host, each with its\n"
                    "remedy, and exits 2.\n\n"
                    "Examples:\n"
                    "  spillway check\n"
                    "  spillway check --config lab.json");
}

void add_doctor(CLI::App &app, CommandLine &line) {
    CLI::App *command =
        add_command(app, line, "doctor", "Say what on this host will not work, and the remedies",
                    [&line] { return problems_of(run_doctor(line.context, line.config, line.json)); });
    command->add_flag("--json", line.json, "print JSON");
    add_config(*command, line);
    command->footer("Tries the kernel and looks at the ports of the configuration; without one, at every\n"
                    "Ethernet port in which packets can wait. Changes nothing, and needs no agent. Each\n"
                    "finding is a problem, a note or fine; exits 1 when there is a problem.\n\n"
                    "Examples:\n"
                    "  spillway doctor\n"
                    "  spillway doctor --json | jq '.checks[] | select(.level == \"problem\")'");
}

void add_status(CLI::App &app, CommandLine &line) {
    CLI::App *command = add_command(app, line, "status", "Show the agent, ports, queues and counts",
                                    [&line] { return problems_of(run_status(line.context, line.json)); });
    command->add_flag("--json", line.json, "print JSON");
    command->footer("Reads the pinned maps, whether the agent is running or not.\n\n"
                    "Examples:\n"
                    "  spillway status\n"
                    "  spillway status --json | jq '.ports[].queues[].level'");
}

void add_flows(CLI::App &app, CommandLine &line) {
    CLI::App *command = add_command(app, line, "flows", "List the congested flows", [&line] {
        return problems_of(run_flows(line.context, line.json, line.all));
    });
    command->add_flag("--json", line.json, "print JSON");
    command->add_flag("--all", line.all, "also flows that are not marked congested");
    command->footer("Examples:\n"
                    "  spillway flows\n"
                    "  spillway flows --json --all");
}

void add_flow(CLI::App &command, CommandLine &line, bool port_required = true) {
    command.add_option("FLOW", line.flow, "PROTO SRC[:PORT] DST[:PORT] [vni N], as words or one argument")
        ->type_name("")
        ->required();
    command.add_option("--port", line.port, "the port that the flow leaves through")
        ->type_name("NAME")
        ->required(port_required);
}

void add_mark(CLI::App &app, CommandLine &line) {
    CLI::App *command =
        add_command(app, line, "mark", "Isolate a flow by hand, until it is unmarked",
                    [&line] { return problems_of(run_mark(line.context, line.flow, line.port)); });
    add_flow(*command, line);
    command->footer("An IPv6 address with a port stands in brackets. Without ports a tcp or udp flow is the\n"
                    "fragments between the two hosts.\n\n"
                    "Examples:\n"
                    "  spillway mark udp 10.0.0.1:5000 10.0.0.2:6000 --port eth1\n"
                    "  spillway mark 'tcp [fd00::1]:5000 [fd00::2]:80' --port eth1\n"
                    "  spillway mark icmp 10.0.0.1 10.0.0.2 --port eth1");
}

void add_unmark(CLI::App &app, CommandLine &line) {
    CLI::App *command = add_command(app, line, "unmark", "Give a flow its priority back", [&line] {
        return problems_of(run_unmark(line.context, line.flow, line.port));
    });
    add_flow(*command, line);
    command->footer(
        "Takes every mark of the flow, not only one made by hand. It gets its priority back when its\n"
        "last packet has left the isolation class; if it then congests a queue, it is marked again.\n\n"
        "Example:\n"
        "  spillway unmark udp 10.0.0.1:5000 10.0.0.2:6000 --port eth1");
}

void add_explain(CLI::App &app, CommandLine &line) {
    CLI::App *command = add_command(app, line, "explain", "Say why a flow is or is not isolated", [&line] {
        return problems_of(run_explain(line.context, line.flow, line.port));
    });
    add_flow(*command, line, false);
    command->footer(
        "Shows what waits in the queues against their waterlines, what the guard has added up for\n"
        "the flow against what it asks, and what holds the mark and until when. Without --port: on\n"
        "every port that has a queue. Reads the pinned maps, whether the agent runs or not.\n\n"
        "Example:\n"
        "  spillway explain udp 10.0.0.1:5000 10.0.0.2:6000 --port eth1");
}

void add_setup(CLI::App &app, CommandLine &line) {
    CLI::App *command = add_command(app, line, "setup", "Make the recommended qdisc tree of a port", [&line] {
        line.setup.netns = line.context.network_namespace.value_or("");
        return problems_of(setup_port(line.setup, std::cout));
    });
    command->add_option("PORT", line.setup.port, "the port")->type_name("")->required();
    command->add_option("--kind", line.setup.kind, "htb, prio or ets")->type_name("KIND")->default_str("htb");
    command->add_option("--rate", line.setup.rate, "htb: a little below the link's rate, as tc writes it")
        ->type_name("RATE");
    command->add_flag("--dry-run", line.setup.dry_run, "only print the tc commands");
    command->add_flag("--force", line.setup.force, "replace a tree that setup did not make");
    command->footer(
        "Prints the tc commands and runs them; what is there already stays. The classes of\n"
        "  htb        1:5 congestion isolation packets, 1:10 normal traffic, 1:20 isolated flows\n"
        "  prio, ets  1:1, 1:2 and 1:3 for the same\n"
        "htb sends at RATE at most, so that packets wait here and not in the driver. prio and ets\n"
        "have no rate: packets wait only while the device takes no more. prio sends isolated flows\n"
        "nothing while there is other traffic; ets and htb keep half a percent for them.\n\n"
        "Examples:\n"
        "  spillway setup eth1 --rate 950mbit --dry-run\n"
        "  spillway setup eth1 --rate 950mbit\n"
        "  spillway setup eth1 --kind ets");
}

void add_panic(CLI::App &app, CommandLine &line) {
    CLI::App *command = add_command(app, line, "panic", "Let every packet pass untouched, at once",
                                    [&line] { return problems_of(run_panic(line.context)); });
    command->footer(
        "Nothing is isolated, marked, rewritten, trapped or learned, and no CIP is sent, whether the\n"
        "agent runs or not and however often it starts, until `spillway resume`.\n\n"
        "Example:\n"
        "  spillway panic");
}

void add_resume(CLI::App &app, CommandLine &line) {
    CLI::App *command = add_command(app, line, "resume", "End a panic",
                                    [&line] { return problems_of(run_resume(line.context)); });
    command->footer("Example:\n"
                    "  spillway resume");
}

void add_purge(CLI::App &app, CommandLine &line) {
    CLI::App *command = add_command(app, line, "purge", "Remove the instance's programs, links and maps",
                                    [&line] { return problems_of(run_purge(line.context)); });
    command->footer(
        "Removes what the instance has in the kernel, with every mark, and nothing else. Stop the\n"
        "agent first.\n\n"
        "Example:\n"
        "  spillway --instance lab purge");
}

void add_cip(CLI::App &app, CommandLine &line) {
    CLI::App *cip = app.add_subcommand("cip", "Look at congestion isolation packets (CIPs)");
    cip->require_subcommand(1);
    cip->footer("Example:\n"
                "  spillway cip decode capture.pcap");
    CLI::App *command =
        add_command(*cip, line, "decode", "Print the CIPs of a capture file, or of hexadecimal text",
                    [&line] { return run_cip_decode(line.cip_decode); });
    command
        ->add_option("FILE", line.cip_decode.file,
                     "pcap, pcapng, or a text with a frame on each line; - or none: "
                     "standard input")
        ->type_name("");
    command->add_option("--ethertype", line.cip_decode.ethertype, "EtherType of CIPs")
        ->type_name("NUMBER")
        ->check(CLI::Range(std::uint16_t{0x600}, std::uint16_t{0xffff}))
        ->default_str("0x8809");
    command
        ->add_option("--vxlan-port", line.cip_decode.vxlan_ports,
                     "UDP port of VXLAN; may be given up to 4 times")
        ->type_name("PORT")
        ->expected(1, SPILLWAY_VXLAN_PORTS_MAX)
        ->check(CLI::Range(std::uint16_t{1}, std::uint16_t{0xffff}))
        ->default_str("4789");
    command->add_flag("--json", line.cip_decode.json, "print JSON, one object a line");
    command->footer(
        "Takes Ethernet frames and payloads alone, in both forms. Names each malformed one, with the\n"
        "reason and the byte that decided it, and exits 1 if there are any.\n\n"
        "Examples:\n"
        "  tcpdump -i eth0 -w - ether proto 0x8809 | spillway cip decode\n"
        "  echo 'c1 01 04 11 …' | spillway cip decode --json");
}

Problems run(const CommandLine &line) {
    if (auto valid = valid_instance(line.context.instance); !valid)
        return {valid.error()};
    if (line.context.network_namespace) {
        if (auto entered = enter_network_namespace(*line.context.network_namespace); !entered)
            return {entered.error()};
    }
    Problems problems = line.action();
    if (!std::cout.flush() && problems.empty())
        problems.push_back({.operation = "write to standard output",
                            .detail = "it takes no more",
                            .hint = "the command itself is done"});
    return problems;
}

int parse_and_run(int argc, char **argv) {
    CommandLine line;
    CLI::App app("Finds the flows that congest a queue, and isolates them here and upstream.", "spillway");
    app.require_subcommand(1);
    app.fallthrough(); // options of this level may also stand after the command
    app.set_version_flag("--version", "spillway " SPILLWAY_VERSION, "print the version and exit");
    app.set_help_flag("-h,--help", "print this help and exit");
    app.add_option("--instance", line.context.instance, "name of the instance")
        ->type_name("NAME")
        ->default_str(std::string(default_instance));
    app.add_option("--netns", line.context.network_namespace, "enter this network namespace first")
        ->type_name("NAME");
    app.footer(
        "Help for one command: spillway COMMAND --help\n"
        "Exit status: 0 done, 1 failed, 2 bad usage or configuration, 3 no data path for this instance.");
    add_agent(app, line);
    add_check(app, line);
    add_doctor(app, line);
    add_status(app, line);
    add_flows(app, line);
    add_mark(app, line);
    add_unmark(app, line);
    add_explain(app, line);
    add_setup(app, line);
    add_panic(app, line);
    add_resume(app, line);
    add_purge(app, line);
    add_cip(app, line);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError &error) {
        if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success))
            return app.exit(error); // help or version
        const auto commands = app.get_subcommands();
        if (!commands.empty())
            return report(
                {usage(error.what(), fmt::format("spillway {} --help", commands.front()->get_name()))});
        const char *hint = "spillway --help lists commands and options";
        if (error.get_exit_code() != static_cast<int>(CLI::ExitCodes::RequiredError))
            return report({usage(error.what(), hint)});
        const auto words = app.remaining();
        return report({usage(words.empty() ? "no command is given"
                                           : fmt::format("'{}' is neither command nor option", words.front()),
                             hint)});
    }
    return report(run(line));
}

} // namespace
} // namespace spillway

int main(int argc, char **argv) {
    // A reader that goes away is an error like any other; an agent must survive the end of its log's reader.
    std::signal(SIGPIPE, SIG_IGN);
    try {
        return spillway::parse_and_run(argc, argv);
    } catch (const std::exception &error) {
        std::cerr << "spillway: " << error.what() << "\n";
        return 1;
    }
}
