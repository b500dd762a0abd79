// SPDX-License-Identifier: Apache-2.0
/// A copy of bytes that ends where readable memory ends: reading one byte too far is a crash in any build.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <new>
#include <span>

namespace spillway::test {

class GuardedCopy {
  public:
    explicit GuardedCopy(std::span<const std::uint8_t> bytes)
        : page_(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))),
          pages_((bytes.size() + page_ - 1) / page_), length_(bytes.size()) {
        void *start =
            ::mmap(nullptr, (pages_ + 1) * page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (start == MAP_FAILED) // NOLINT(cppcoreguidelines-pro-type-cstyle-cast,performance-no-int-to-ptr)
            throw std::bad_alloc();
        start_ = static_cast<std::uint8_t *>(start);
        if (::mprotect(start_ + pages_ * page_, page_, PROT_NONE) != 0)
            throw std::bad_alloc();
        if (length_ != 0)
            std::memcpy(start_ + pages_ * page_ - length_, bytes.data(), length_);
    }
    ~GuardedCopy() { ::munmap(start_, (pages_ + 1) * page_); }
    GuardedCopy(const GuardedCopy &) = delete;
    GuardedCopy &operator=(const GuardedCopy &) = delete;

    [[nodiscard]] const std::uint8_t *end() const { return start_ + pages_ * page_; }
    [[nodiscard]] const std::uint8_t *begin() const { return end() - length_; }

  private:
    std::size_t page_;
    std::size_t pages_;
    std::size_t length_;
    std::uint8_t *start_ = nullptr;
};

} // namespace spillway::test
