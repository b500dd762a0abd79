// SPDX-License-Identifier: Apache-2.0
/// BPF programs that do nothing, for tests and measurements.
#pragma once

#include "agent/core/fd.h"

#include <bpf/bpf.h>
#include <linux/bpf.h>

#include <array>
#include <cerrno>
#include <string>
#include <system_error>

namespace spillway {

/// A program that returns `verdict`. Throws std::system_error when the kernel does not take it.
inline Fd make_program(bpf_prog_type type, const std::string &name, int verdict) {
    const std::array<bpf_insn, 2> code{
        bpf_insn{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = verdict},
        bpf_insn{.code = BPF_JMP | BPF_EXIT, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = 0}};
    Fd program(bpf_prog_load(type, name.c_str(), "GPL", code.data(), code.size(), nullptr));
    if (!program)
        throw std::system_error(errno, std::generic_category(), "load the program " + name);
    return program;
}

} // namespace spillway
