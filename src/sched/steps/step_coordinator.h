#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

namespace millrace::sched {

/// The step that all rings which share experts have to reach: one number, which only grows. One coordinator serves all
/// participants of an epoch. Thread-safe.
class StepCoordinator {
 public:
  /// `lookahead`: steps that the number jumps ahead of a participant that passes it.
  explicit StepCoordinator(uint64_t lookahead) : lookahead_(lookahead) {}

  /// Records that a participant is about to begin `step`. Returns the new number, which all participants are to
  /// receive, or nothing if `step` is not past the present one.
  [[nodiscard]] std::optional<uint64_t> start_step(uint64_t step) {
    uint64_t now = step_.load(std::memory_order_acquire);
    do {
      if (step <= now) return std::nullopt;
    } while (!step_.compare_exchange_weak(now, step + lookahead_, std::memory_order_acq_rel));
    return step + lookahead_;
  }
  [[nodiscard]] uint64_t step() const { return step_.load(std::memory_order_acquire); }

 private:
  const uint64_t lookahead_;
  std::atomic<uint64_t> step_{0};
};

}  // namespace millrace::sched
