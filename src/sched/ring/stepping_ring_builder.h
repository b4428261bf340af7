#pragma once

#include <functional>
#include <string>

#include "sched/ring/ring_builder.h"
#include "sched/steps/step_group.h"

namespace millrace::sched {

/// Builds the epochs of a ring that shares experts with others: each waits until all rings have joined it, and ends
/// with the first of them that breaks. The builder of the ring itself does the rest. Used on the head's Runtime; group
/// and builder outlive it.
class SteppingRingBuilder final : public RingBuilder {
 public:
  /// `on_epoch` receives the number of the common epoch before the ring's stages start in it.
  SteppingRingBuilder(async::Runtime& head_runtime, RingBuilder& ring, StepGroup& group, uint32_t number,
                      std::function<void(uint64_t)> on_epoch)
      : runtime_(head_runtime), ring_(ring), group_(group), number_(number), on_epoch_(std::move(on_epoch)) {}
  [[nodiscard]] asio::awaitable<RingEnds> build(RingEpoch epoch) override;
  [[nodiscard]] asio::awaitable<void> tear_down(RingEpoch epoch, std::string reason) override;
  void interrupt() override;

 private:
  async::Runtime& runtime_;
  RingBuilder& ring_;
  StepGroup& group_;
  const uint32_t number_;
  const std::function<void(uint64_t)> on_epoch_;
};

}  // namespace millrace::sched
