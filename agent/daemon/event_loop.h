// SPDX-License-Identifier: Apache-2.0
/// epoll with callbacks, and timers on it.
#pragma once

#include "agent/core/fd.h"
#include "agent/core/result.h"

#include <cstdint>
#include <functional>
#include <map>

namespace spillway {

class EventLoop {
  public:
    using Callback = std::function<void()>;

    static Result<EventLoop> create();

    /// Calls back whenever `fd` is readable. The descriptor stays the caller's and must outlive the loop.
    Result<> watch(int fd, Callback callback);
    /// Calls back each `period_ns`, once however many periods were missed. Returns a handle for set_period().
    Result<int> every(std::uint64_t period_ns, Callback callback);
    Result<> set_period(int timer, std::uint64_t period_ns);

    /// Runs until stop(), or until epoll itself fails.
    Result<> run();
    void stop() { running_ = false; }

  private:
    explicit EventLoop(Fd epoll) : epoll_(std::move(epoll)) {}
    Fd epoll_;
    std::map<int, Callback> callbacks_;
    std::map<int, Fd> timers_;
    bool running_ = false;
};

} // namespace spillway
