#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define MILLRACE_ADDRESS_SANITIZER 1
#endif
#endif

namespace millrace::emulator {

#ifdef MILLRACE_ADDRESS_SANITIZER
inline constexpr size_t kStackBytes = 256 * 1024;
inline constexpr bool kKeepsSharedMemory = false;  // so that an access by a block that has ended is seen
#else
inline constexpr size_t kStackBytes = 32 * 1024;
inline constexpr bool kKeepsSharedMemory = true;
#endif
inline constexpr uint32_t kMaxThreads = 1024;  ///< of a cluster

/// The stacks of fibers, mapped once; pages become resident with use.
class Stacks {
 public:
  Stacks()
      : base_(mmap(nullptr, kStackBytes * kMaxThreads, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    if (base_ == MAP_FAILED) throw std::bad_alloc();
    madvise(base_, kStackBytes * kMaxThreads, MADV_HUGEPAGE);  // fibers take turns too fast for small pages
  }
  Stacks(const Stacks&) = delete;
  ~Stacks() { munmap(base_, kStackBytes * kMaxThreads); }
  [[nodiscard]] std::byte* bottom(size_t thread) const { return static_cast<std::byte*>(base_) + thread * kStackBytes; }

 private:
  void* base_;
};

}  // namespace millrace::emulator
