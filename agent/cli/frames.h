// SPDX-License-Identifier: Apache-2.0
/// Frames that a user hands in: a capture file (pcap or pcapng, read by libpcap), or hexadecimal text with a
/// frame on each line.
#pragma once

#include "agent/core/result.h"

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace spillway {

struct InputFrame {
    std::string place; ///< "frame 3", or "line 7" of a text
    std::vector<std::uint8_t> bytes;
};

/// Reads all frames of a file, which is told apart by its first bytes. In a text, blanks, colons and an "0x"
/// before the digits are skipped, as is what follows a '#'. Errors name line and column, or are those of
/// libpcap; kind usage. `name` only names the file in errors.
Result<std::vector<InputFrame>> read_frames(std::FILE *file, const std::string &name);

} // namespace spillway
