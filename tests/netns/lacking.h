// SPDX-License-Identifier: Apache-2.0
/// For tests of qdiscs and devices that not every kernel has.
#pragma once

#include "tests/netns/fixture.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdexcept>

namespace spillway::lab {

/// Runs an `ip` or `tc` command inside. False when the kernel lacks the kind of qdisc or device that it
/// names; throws when it fails for any other reason.
inline bool makes(const Namespace &ns, std::string_view command) {
    const Output output = run(ns, words(command));
    if (output.code == 0)
        return true;
    for (const char *lacks : {"kind is unknown", "Unknown device type", "Operation not supported"})
        if (output.err.contains(lacks))
            return false;
    throw std::runtime_error(fmt::format("{}: {}", command, output.err));
}

} // namespace spillway::lab

/// Skips the test when the kernel lacks what the command makes.
#define SPILLWAY_MAKE_OR_SKIP(ns, command)                                                                   \
    if (const std::string what = (command); !spillway::lab::makes(ns, what))                                 \
    GTEST_SKIP() << "this kernel has none: " << what
