// SPDX-License-Identifier: Apache-2.0
/// Tells from readings of a queue what has left it (spec B3).
#pragma once

#include <cstdint>
#include <deque>

namespace spillway {

/// What enters at a time t has left once the queue has sent all that it had sent and held at t. Feed it one
/// reading after the other; it answers with the latest time before which everything has left.
class DrainTracker {
  public:
    /// `sent` and `backlog` in bytes, read at `time_ns`; `ordered` when bytes leave in the order in which
    /// they came. `margin` bytes more must have been sent, for packets on their way into the queue at time t.
    /// Returns drained_before_ns, 0 while not known.
    std::uint64_t read(std::uint64_t time_ns, std::uint64_t backlog, std::uint64_t sent, std::uint64_t margin,
                       bool ordered) {
        if (sent < last_sent_)
            waiting_.clear(); // the counter was restarted: positions mean nothing now
        last_sent_ = sent;
        if (backlog == 0) {
            waiting_.clear();
            drained_before_ns_ = time_ns;
            return drained_before_ns_;
        }
        if (!ordered) {
            waiting_.clear();
            return drained_before_ns_;
        }
        while (!waiting_.empty() && sent >= waiting_.front().position + margin) {
            drained_before_ns_ = waiting_.front().time_ns;
            waiting_.pop_front();
        }
        // Sparse marks are enough: a full list waits until its oldest entry has left.
        if (waiting_.size() < most_samples)
            waiting_.push_back({time_ns, sent + backlog});
        return drained_before_ns_;
    }

    /// Another qdisc took the queue's place: what waited in the old one is gone.
    void replaced(std::uint64_t time_ns) {
        waiting_.clear();
        last_sent_ = 0;
        drained_before_ns_ = time_ns;
    }

  private:
    static constexpr std::size_t most_samples = 64;
    struct Sample {
        std::uint64_t time_ns;
        std::uint64_t position;
    };
    std::deque<Sample> waiting_;
    std::uint64_t last_sent_ = 0;
    std::uint64_t drained_before_ns_ = 0;
};

} // namespace spillway
