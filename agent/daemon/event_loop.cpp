// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/event_loop.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace spillway {

Result<EventLoop> EventLoop::create() {
    Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
    if (!epoll)
        return fail({.operation = "create event loop", .number = errno});
    return EventLoop(std::move(epoll));
}

Result<> EventLoop::watch(int fd, Callback callback) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
        return fail({.operation = "watch descriptor", .number = errno});
    callbacks_[fd] = std::move(callback);
    return {};
}

Result<int> EventLoop::every(std::uint64_t period_ns, Callback callback) {
    Fd timer(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    if (!timer)
        return fail({.operation = "create timer", .number = errno});
    const int fd = timer.get();
    auto watched = watch(fd, [fd, callback = std::move(callback)] {
        std::uint64_t expired = 0;
        if (::read(fd, &expired, sizeof(expired)) == static_cast<ssize_t>(sizeof(expired)))
            callback();
    });
    if (!watched)
        return std::unexpected(watched.error());
    timers_[fd] = std::move(timer);
    if (auto set = set_period(fd, period_ns); !set)
        return std::unexpected(set.error());
    return fd;
}

Result<> EventLoop::set_period(int timer, std::uint64_t period_ns) {
    constexpr std::uint64_t second = 1'000'000'000;
    itimerspec spec{};
    spec.it_interval = {static_cast<time_t>(period_ns / second), static_cast<long>(period_ns % second)};
    spec.it_value = spec.it_interval;
    if (::timerfd_settime(timer, 0, &spec, nullptr) != 0)
        return fail({.operation = "set timer", .number = errno});
    return {};
}

Result<> EventLoop::run() {
    running_ = true;
    std::array<epoll_event, 16> events{};
    while (running_) {
        const int ready = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), -1);
        if (ready < 0 && errno != EINTR)
            return fail({.operation = "wait for events", .number = errno});
        for (int i = 0; i < ready && running_; i++)
            callbacks_.at(events[static_cast<std::size_t>(i)].data.fd)();
    }
    return {};
}

} // namespace spillway
