#pragma once

#include <deque>

#include "comm/link.h"
#include "sched/stage/circular_allocator.h"
#include "sched/stage/sequence_table.h"
#include "sched/stage/stage_runner.h"

namespace millrace::sched {

/// Receives a stage's activations. Over a link that fills memory, each plan's receive is posted as soon as there is
/// room. So transfers overlap with earlier runs. Other links hand their memory over. Owned by the stage loop, on its
/// thread; link and runner outlive it.
class StageInputs {
 public:
  StageInputs(comm::LinkReceiver& upstream, StageRunner& runner, const StageBounds& bounds);

  /// Expects the activations of a plan with slices, whose size is within the bounds.
  void expect(const Plan& plan);
  /// Waits for the activations of `plan`, the oldest expected one. Throws kData for others, and what
  /// LinkReceiver::receive throws.
  [[nodiscard]] asio::awaitable<comm::Message> receive(const Plan& plan);
  /// Releases the memory of the activations received last.
  void release();

  /// Plans of the largest size that fit in the memory: one is computed and one arrives, whatever the sizes before
  /// (docs/wire.md).
  static constexpr size_t kBufferedPlans = 3;

 private:
  struct Expected {
    PlanId plan;
    size_t bytes = 0;
  };
  void post_pending();

  comm::LinkReceiver& upstream_;
  const size_t row_bytes_;
  const bool posts_;
  CircularAllocator memory_;
  std::deque<Expected> unposted_;  // bounded by the plans in flight
};

}  // namespace millrace::sched
