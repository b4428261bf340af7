#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>

namespace millrace::cuda {

/// The dynamic shared memory that one kernel may use on each device. The limit is raised when a launch needs more than
/// any before. Thread-safe.
class SharedMemoryLimits {
 public:
  /// Devices of one process. For further ones the limit is raised at every launch.
  static constexpr int kMaxDevices = 64;

  /// Calls allow(), which may throw, unless an earlier call has allowed `device` that many bytes.
  template <class Allow>
  void raise_to(int device, size_t bytes, const Allow& allow) {
    if (device < 0 || device >= kMaxDevices) return allow();
    std::atomic<size_t>& allowed = allowed_[static_cast<size_t>(device)];
    if (allowed.load(std::memory_order_acquire) >= bytes) return;
    const std::lock_guard lock(mutex_);  // otherwise a smaller limit could replace a larger one
    if (allowed.load(std::memory_order_relaxed) >= bytes) return;
    allow();
    allowed.store(bytes, std::memory_order_release);
  }

 private:
  std::mutex mutex_;
  std::array<std::atomic<size_t>, kMaxDevices> allowed_{};
};

}  // namespace millrace::cuda
