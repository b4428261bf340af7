#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>

namespace millrace::cuda {

/// How much dynamic shared memory one kernel has been allowed on each device: it is asked for when a launch needs more
/// than any before it, not each time. Thread-safe.
class SharedMemoryLimits {
 public:
  /// Of one process; what lies beyond is allowed each time.
  static constexpr int kMaxDevices = 64;

  /// Calls allow(), which may throw, unless it has let `device` have so many bytes before.
  template <class Allow>
  void raise_to(int device, size_t bytes, const Allow& allow) {
    if (device < 0 || device >= kMaxDevices) return allow();
    std::atomic<size_t>& allowed = allowed_[static_cast<size_t>(device)];
    if (allowed.load(std::memory_order_acquire) >= bytes) return;
    const std::lock_guard lock(mutex_);  // else a smaller wish could take back a larger one
    if (allowed.load(std::memory_order_relaxed) >= bytes) return;
    allow();
    allowed.store(bytes, std::memory_order_release);
  }

 private:
  std::mutex mutex_;
  std::array<std::atomic<size_t>, kMaxDevices> allowed_{};
};

}  // namespace millrace::cuda
