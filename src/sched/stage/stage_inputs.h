#pragma once

#include <deque>

#include "comm/link.h"
#include "sched/stage/circular_allocator.h"
#include "sched/stage/sequence_table.h"
#include "sched/stage/stage_runner.h"

namespace millrace::sched {

/// The activations that come to a stage: each plan's are posted into the runner's memory as soon as the plan is known
/// and there is room, so that they arrive while those before them are computed on. Over a link that hands memory over
/// they stay where they are. Owned by the stage loop, on its thread; link and runner outlive it.
class StageInputs {
 public:
  StageInputs(comm::LinkReceiver& upstream, StageRunner& runner, const StageBounds& bounds);

  /// A plan with slices has come. Its size is within the bounds.
  void expect(const Plan& plan);
  /// The activations of `plan`, of those expected the oldest. Throws kData for others, and as LinkReceiver::receive.
  [[nodiscard]] asio::awaitable<comm::Message> receive(const Plan& plan);
  /// What was received last is used no more.
  void release();

  /// Memory for so many plans of the largest size: one is computed on and one arrives whatever the sizes before
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
