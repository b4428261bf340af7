#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "async/event.h"
#include "sched/steps/step_epochs.h"

namespace millrace::sched {

/// The state of one common epoch in one process: the target that has arrived here, the end, and the rings of this
/// process that wait for either. Shared by their boards and by the StepEpochs that has made it. Thread-safe.
class StepEpoch {
 public:
  StepEpoch(uint64_t number, size_t ring_count) : number_(number), waiters_(ring_count) {}

  [[nodiscard]] uint64_t number() const { return number_; }
  [[nodiscard]] uint64_t target() const { return target_.load(std::memory_order_acquire); }
  /// Raises the target to `step` and wakes the rings that wait; a smaller one changes nothing.
  void raise_target(uint64_t step);
  /// Ends the epoch unless it has ended: calls `on_end`, if any, and only then lets the rings receive the end.
  void end(int32_t ring, const std::string& reason, const StepEpochs::EndFn& on_end);

  // Functions for the board of one ring.
  /// Returns an event for the next news; nothing if the target is above `seen`. Throws ErrorException (kUnavailable)
  /// with the end.
  [[nodiscard]] std::optional<async::Event> wait_for_news(uint32_t ring, async::Runtime& runtime, uint64_t seen);
  void forget_waiter(uint32_t ring);

 private:
  void wake_all();

  struct Ending {
    int32_t ring;  // that ended first; -1: none is to blame
    std::string reason;
  };
  const uint64_t number_;
  std::atomic<uint64_t> target_{0};
  std::mutex mutex_;
  std::optional<Ending> ending_;                      // guarded by mutex_, as all below
  bool is_announced_ = false;                         // the rings receive ending_
  std::vector<std::optional<async::Event>> waiters_;  // [rings] set at news
};

/// Returns the board of a ring in an epoch. `start` receives steps past the target, and `leave` the end of the ring.
[[nodiscard]] std::unique_ptr<StepBoard> make_board(std::shared_ptr<StepEpoch> epoch, uint32_t ring,
                                                    async::Runtime& runtime, std::function<void(uint64_t)> start,
                                                    std::function<void(const std::string&)> leave);

}  // namespace millrace::sched
