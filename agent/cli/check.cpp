// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/commands.h"
#include "agent/cli/table.h"
#include "agent/config/config.h"
#include "agent/doctor/host.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <iostream>
#include <iterator>

namespace spillway {
namespace {

std::string classes_text(const std::vector<ClassId> &classes) {
    std::vector<std::string> names;
    std::ranges::transform(classes, std::back_inserter(names), &ClassId::text);
    return fmt::format("{}", fmt::join(names, ","));
}

/// How flows of the queue are isolated: "1:20,1:21 dscp 1".
std::string isolation_text(const QueueConfig &queue, const RewriteConfig &rewrite) {
    std::vector<std::string> ways;
    if (!queue.isolate_class.empty())
        ways.push_back(classes_text(queue.isolate_class));
    if (rewrite.pcp)
        ways.push_back(fmt::format("{} {}", rewrite.tag_untagged ? "tag+pcp" : "pcp", *rewrite.pcp));
    if (rewrite.dscp)
        ways.push_back(fmt::format("dscp {}", *rewrite.dscp));
    return ways.empty() ? "-" : fmt::format("{}", fmt::join(ways, " "));
}

std::string waterline_text(const std::optional<WaterlineConfig> &line) {
    if (!line)
        return "-";
    const char *unit = line->unit == WaterlineUnit::packets ? "packets" : "bytes";
    if (line->low == line->high)
        return fmt::format("{} {}", line->high, unit);
    return fmt::format("{}..{} {}", line->low, line->high, unit);
}

} // namespace

std::vector<Error> run_check(const Context &context, const std::filesystem::path &config_file) {
    const auto config = load_config(config_file);
    if (!config)
        return {config.error()};
    const auto host = read_host(*config, Paths(context.instance));
    if (!host)
        return {host.error()};
    if (auto problems = host_problems(*config, *host); !problems.empty()) {
        std::vector<Error> errors;
        std::ranges::transform(problems, std::back_inserter(errors), &HostProblem::error);
        return errors;
    }
    std::vector<std::vector<std::string>> rows;
    for (const auto *link : named_ports(*config, *host)) {
        const auto &port = *find_port(*config, link->name);
        if (port.queues.empty())
            rows.push_back({link->name, "-", "-", "-"});
        for (const auto &queue : port.queues)
            rows.push_back({link->name, queue.queue_class.text(), isolation_text(queue, port.rewrite),
                            waterline_text(queue.waterline)});
    }
    std::cout << table({{"PORT"}, {"QUEUE"}, {"ISOLATES"}, {"WATERLINE"}}, rows);
    return {};
}

} // namespace spillway
