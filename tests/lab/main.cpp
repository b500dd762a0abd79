// SPDX-License-Identifier: Apache-2.0
/// spillway-lab: shows congestion isolation under priority-based flow control, on real packets in network
/// namespaces of its own. Exit: 0 shown, 1 something failed or did not hold, 2 bad usage.
#include "tests/lab/report.h"
#include "tests/lab/results.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fmt/format.h>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <unistd.h>

namespace {

using namespace spillway::lab;

struct Options {
    std::vector<std::string> scenarios;
    std::vector<std::string> schemes;
    std::optional<double> seconds;
    std::string json, report, pcap;
    bool list = false;
};

void list() {
    std::cout << "scenarios:\n";
    for (const Scenario &scenario : scenarios())
        std::cout << fmt::format("  {:<14}{}\n", scenario.id, scenario.title);
    std::cout << "schemes:\n";
    for (const Scheme scheme : schemes)
        std::cout << fmt::format("  {:<14}{}\n", id_of(scheme), title_of(scheme));
}

/// What cannot be opened is better found out before minutes of measuring.
std::ofstream open_output(const std::string &file) {
    std::ofstream out;
    if (!file.empty()) {
        out.open(file, std::ios::binary);
        if (!out)
            throw std::runtime_error("cannot write " + file);
    }
    return out;
}

bool is_chosen(const std::vector<std::string> &asked, std::string_view id) {
    return asked.empty() || std::ranges::find(asked, id) != asked.end();
}

/// Schemes to run: those asked for, else the scenario's usual ones; always in the same order.
std::vector<Scheme> schemes_of(const Scenario &scenario, const Options &options) {
    std::vector<Scheme> chosen;
    for (const Scheme scheme : schemes)
        if (options.schemes.empty() ? std::ranges::find(scenario.usual, scheme) != scenario.usual.end()
                                    : is_chosen(options.schemes, id_of(scheme)))
            chosen.push_back(scheme);
    return chosen;
}

int show(const Options &options) {
    std::ofstream json_file = open_output(options.json), report_file = open_output(options.report),
                  pcap_file = open_output(options.pcap);
    const bool terminal = ::isatty(STDOUT_FILENO) == 1;
    const bool progress = ::isatty(STDERR_FILENO) == 1;
    Report report;
    nlohmann::json numbers = {{"schema", 1}, {"scenarios", nlohmann::json::array()}};
    std::vector<PauseArrival> frames;
    std::vector<std::string> failures;

    for (const Scenario &scenario : scenarios()) {
        if (!is_chosen(options.scenarios, scenario.id))
            continue;
        Laboratory laboratory(scenario, options.seconds);
        ScenarioResult result(laboratory);
        for (const Scheme scheme : schemes_of(scenario, options)) {
            if (progress)
                std::cerr << fmt::format("\r\033[K{}: {}", scenario.id, title_of(scheme));
            result.runs.push_back(laboratory.run(scheme));
            frames.insert(frames.end(), result.runs.back().frames.begin(), result.runs.back().frames.end());
        }
        if (progress)
            std::cerr << "\r\033[K";
        result.checks = check(laboratory.topology(), result);
        std::cout << to_text(laboratory.topology(), result, terminal) << std::flush;
        numbers["scenarios"].push_back(to_json(laboratory.topology(), result));
        report.add(laboratory.topology(), result);
        for (const Check &one : result.checks)
            if (!one.holds)
                failures.push_back(scenario.id + ": " + one.text);
    }
    if (!options.json.empty())
        json_file << numbers.dump(2) << '\n';
    if (!options.report.empty())
        report_file << report.html();
    if (!options.pcap.empty())
        write_pcap(pcap_file, frames);
    for (std::ofstream *file : {&json_file, &report_file, &pcap_file})
        if (file->is_open() && !file->flush())
            throw std::runtime_error("cannot write all of a file: is the disk full?");
    for (const std::string &failure : failures)
        std::cerr << "spillway-lab: did not hold: " << failure << '\n';
    return failures.empty() ? 0 : 1;
}

} // namespace

int main(int argc, char **argv) {
    CLI::App app("Shows congestion isolation under priority-based flow control, in network namespaces.",
                 "spillway-lab");
    Options options;
    std::vector<std::string> ids, scheme_ids;
    for (const Scenario &scenario : scenarios())
        ids.push_back(scenario.id);
    for (const Scheme scheme : schemes)
        scheme_ids.emplace_back(id_of(scheme));
    app.add_option("SCENARIO", options.scenarios, "scenarios to run; all if none is named")
        ->check(CLI::IsMember(ids));
    app.add_option("--scheme", options.schemes, "schemes to run; the scenario's usual ones if none is named")
        ->check(CLI::IsMember(scheme_ids))
        ->delimiter(',');
    app.add_option("--seconds", options.seconds,
                   "how long the elephants send, instead of the scenario's own time (comeback keeps its own)")
        ->check(CLI::Range(1.0, 3600.0));
    app.add_option("--json", options.json, "write the numbers to this file");
    app.add_option("--report", options.report, "write a page with plots to this file");
    app.add_option("--pcap", options.pcap, "write the pause frames, as they arrived, to this file");
    app.add_flag("--list", options.list, "list scenarios and schemes");
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError &error) {
        return app.exit(error) == 0 ? 0 : 2;
    }
    if (options.list) {
        list();
        return 0;
    }
    if (::geteuid() != 0) {
        std::cerr << "spillway-lab: it makes network namespaces and loads BPF programs: root is needed\n"
                     "HINT: sudo spillway-lab\n";
        return 1;
    }
    catch_interrupts();
    try {
        return show(options);
    } catch (const std::exception &error) {
        if (interrupted() != 0)
            return 128 + interrupted();
        std::cerr << "spillway-lab: " << error.what() << '\n';
        return 1;
    }
}
