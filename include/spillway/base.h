/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What every header of this folder needs to compile as C for BPF and as C++ for user space. */
#ifndef SPILLWAY_BASE_H
#define SPILLWAY_BASE_H

#include <linux/types.h>

#ifdef __cplusplus
#define SPILLWAY_ASSERT(condition) static_assert(condition, #condition)
#define SPILLWAY_OFFSET(type, member) __builtin_offsetof(type, member)
#else
#define SPILLWAY_ASSERT(condition) _Static_assert(condition, #condition)
#define SPILLWAY_OFFSET(type, member) __builtin_offsetof(struct type, member)
#endif

/* Always inlined: a BPF program is one function, and the verifier sees the caller's bounds. */
#define SPILLWAY_INLINE static inline __attribute__((always_inline, unused))

/* A function of its own in BPF too. */
#define SPILLWAY_NOINLINE static __attribute__((noinline, unused))

/* Before a bounded loop: written out in BPF, where the verifier tells the rounds of a real loop apart by
 * every value they hold, and follows many times as many paths. */
#ifdef __bpf__
#define SPILLWAY_UNROLLED _Pragma("clang loop unroll(full)")
#else
#define SPILLWAY_UNROLLED
#endif

/* `value`, known to be at most `mask` (2^n - 1). Hiding where it came from lets the verifier treat all paths
 * to here as one, instead of following each of them to the end. */
SPILLWAY_INLINE __u32 spillway_bounded(__u32 value, __u32 mask) {
    __asm__ volatile("" : "+r"(value));
    return value & mask;
}

/* Nanoseconds from `then` to `now`; negative when another CPU's clock was read a little later. Times are
 * CLOCK_MONOTONIC (bpf_ktime_get_ns) everywhere; comparing them unsigned would make such skew an age of
 * centuries. */
SPILLWAY_INLINE __s64 spillway_since(__u64 now_ns, __u64 then_ns) {
    return (__s64)(now_ns - then_ns);
}

#endif
