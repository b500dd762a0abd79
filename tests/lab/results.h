// SPDX-License-Identifier: Apache-2.0
/// What the runs of a scenario amount to: a table, numbers as JSON, and whether what must hold held.
#pragma once

#include "tests/lab/run.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace spillway::lab {

/// Something that must hold, as a sentence with the numbers in it.
struct Check {
    bool holds = false;
    std::string text;
    bool timed = false; ///< compares times or rates of two runs, of which a busy machine may delay one
};

/// One scenario, run under some schemes.
struct ScenarioResult {
    Scenario scenario;
    double seconds = 0;
    std::uint64_t reaction_ns = 0;
    std::uint64_t headroom_ns = 0;
    std::vector<RunResult> runs;
    std::vector<Check> checks;

    explicit ScenarioResult(const Laboratory &laboratory);
    [[nodiscard]] const RunResult *run(Scheme scheme) const; ///< null when it was not run
};

/// What must hold for the scenario, of what was run; sentences that compare need both schemes.
std::vector<Check> check(const Topology &topology, const ScenarioResult &result);

/// For people: the scenario, its table, and the checks. `color`: for a terminal.
std::string to_text(const Topology &topology, const ScenarioResult &result, bool color);

/// The same in parts.
std::vector<std::string> table_columns();
std::vector<std::string> table_row(const Topology &topology, const Scenario &scenario, const RunResult &run);
/// Thresholds, and how fast pause frames were obeyed, in the idle fabric and in the runs.
std::string flow_control_text(const ScenarioResult &result);

/// The numbers, without the series.
nlohmann::json to_json(const Topology &topology, const ScenarioResult &result);

/// Of a run: the worst victim.
double worst_p50_ms(const RunResult &run);
double worst_p99_ms(const RunResult &run);

} // namespace spillway::lab
