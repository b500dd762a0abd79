// SPDX-License-Identifier: Apache-2.0
/// The daemon: one event loop over queues, kernel events, network changes, timers and signals.
#pragma once

#include "agent/core/result.h"

#include <filesystem>
#include <string>

namespace spillway {

struct AgentOptions {
    std::string instance;
    std::filesystem::path config;
    bool detach_on_exit = false; ///< take the programs off the ports at the end
};

/// Runs until SIGTERM or SIGINT. SIGHUP reads the configuration again, all or nothing. Without detach_on_exit
/// the data path stays: marks run out in the kernel, and the next agent takes over what is pinned.
Result<> run_agent(const AgentOptions &options);

} // namespace spillway
