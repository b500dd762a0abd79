// SPDX-License-Identifier: Apache-2.0
/// The commands of `spillway`. Each prints its result to standard output; what fails is returned.
#pragma once

#include "agent/core/result.h"
#include "agent/kernel/instance.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace spillway {

/// What the global options say.
struct Context {
    std::string instance{default_instance};
    std::optional<std::string> network_namespace; ///< none: stay
};

[[nodiscard]] Result<> run_status(const Context &context, bool json);
[[nodiscard]] Result<> run_flows(const Context &context, bool json, bool all);

[[nodiscard]] Result<> run_mark(const Context &context, const std::vector<std::string> &flow,
                                const std::string &port);
[[nodiscard]] Result<> run_unmark(const Context &context, const std::vector<std::string> &flow,
                                  const std::string &port);

/// Without a port: on every port that has a queue.
[[nodiscard]] Result<> run_explain(const Context &context, const std::vector<std::string> &flow,
                                   const std::string &port);

[[nodiscard]] Result<> run_panic(const Context &context);
[[nodiscard]] Result<> run_resume(const Context &context);

[[nodiscard]] Result<> run_purge(const Context &context);

/// Fails when there is a problem, after printing it with everything else.
[[nodiscard]] Result<> run_doctor(const Context &context, const std::filesystem::path &config_file,
                                  bool json);

struct CipDecodeOptions {
    std::string file{"-"}; ///< "-": standard input
    std::uint16_t ethertype = 0x8809;
    std::vector<std::uint16_t> vxlan_ports{4789};
    bool json = false;
};

/// Prints the CIPs of a capture file or of hexadecimal text; those that are malformed are the errors.
[[nodiscard]] std::vector<Error> run_cip_decode(const CipDecodeOptions &options);

/// All that is wrong, empty when nothing is.
[[nodiscard]] std::vector<Error> run_check(const Context &context, const std::filesystem::path &config_file);

} // namespace spillway
