// SPDX-License-Identifier: Apache-2.0
/// The page that shows runs over time, in one file that needs nothing else; and pause frames for other
/// programs.
#pragma once

#include "tests/lab/results.h"

#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

namespace spillway::lab {

class Report {
  public:
    /// Takes what the page shows; afterwards the topology may go.
    void add(const Topology &topology, const ScenarioResult &result);
    [[nodiscard]] std::string html() const;

  private:
    nlohmann::json scenarios_ = nlohmann::json::array();
};

/// Writes the frames as a pcap file.
void write_pcap(std::ostream &out, const std::vector<PauseArrival> &frames);

} // namespace spillway::lab
