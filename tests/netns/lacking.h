// SPDX-License-Identifier: Apache-2.0
/// For tests of qdiscs and devices that not every kernel has. Where the kernel at hand lacks one, its test is
/// skipped; tests/vm/run runs it on kernels that have it, and there a skip that tests/vm/expected does not
/// name is a failure.
#pragma once

#include "tests/netns/fixture.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <stdexcept>

namespace spillway::lab {

/// Runs a command inside that makes a qdisc, filter or device. False when the kernel lacks the kind that it
/// names; throws when it fails for any other reason.
inline bool makes(const Namespace &ns, const Words &command) {
    const Output output = run(ns, command);
    if (output.code == 0)
        return true;
    for (const char *lacks : {"kind is unknown", "Unknown device type", "Operation not supported",
                              "Failed to load TC action module", "TC classifier not found"})
        if (output.err.contains(lacks))
            return false;
    throw std::runtime_error(fmt::format("{}: {}", fmt::join(command, " "), output.err));
}

inline bool makes(const Namespace &ns, std::string_view command) {
    return makes(ns, words(command));
}

} // namespace spillway::lab

/// Skips the test when the kernel lacks what the command (Words, or a string of them) makes. A skip is not
/// the end of it: the test has to pass in tests/vm/run, on the kernels that have what is lacking here.
#define SPILLWAY_MAKE_OR_SKIP(ns, command)                                                                   \
    if (const auto what = (command); !spillway::lab::makes(ns, what))                                        \
    GTEST_SKIP() << "not on this kernel, see lacking.h: " << testing::PrintToString(what)
