#pragma once

#include <string>

#include "sched/ring/epoch_exchange.h"
#include "sched/ring/ring_builder.h"
#include "sched/steps/step_epochs.h"

namespace millrace::sched {

/// Builds the epochs of a ring that shares experts with others: each waits until all rings have joined it, and ends
/// with the first of them that breaks. The builder of the ring itself does the rest. Used on the head's Runtime;
/// epochs, builder and exchange outlive it.
class SteppingRingBuilder final : public RingBuilder {
 public:
  SteppingRingBuilder(async::Runtime& head_runtime, RingBuilder& ring, StepEpochs& epochs, uint32_t number,
                      EpochExchange& exchange)
      : runtime_(head_runtime), ring_(ring), epochs_(epochs), number_(number), exchange_(exchange) {}
  [[nodiscard]] asio::awaitable<RingEnds> build(RingEpoch epoch) override;
  [[nodiscard]] asio::awaitable<void> tear_down(RingEpoch epoch, std::string reason) override;
  void interrupt() override;

 private:
  async::Runtime& runtime_;
  RingBuilder& ring_;
  StepEpochs& epochs_;
  const uint32_t number_;
  EpochExchange& exchange_;
};

}  // namespace millrace::sched
