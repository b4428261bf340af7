#pragma once

#include <string>

#include "sched/ring/ring_builder.h"
#include "sched/stage/local_stages.h"

namespace millrace::sched {

/// Builds the ring of a single process: its stages between two in-process links to the head. Used on the head's
/// Runtime; the stages outlive it.
class InProcessRingBuilder final : public RingBuilder {
 public:
  InProcessRingBuilder(async::Runtime& head_runtime, LocalStages& stages, const RingConfig& config)
      : runtime_(head_runtime), stages_(stages), config_(config) {}
  [[nodiscard]] asio::awaitable<RingEnds> build(RingEpoch epoch) override;
  [[nodiscard]] asio::awaitable<void> tear_down(RingEpoch epoch, std::string reason) override;
  /// Does nothing: build() never waits.
  void interrupt() override {}

 private:
  async::Runtime& runtime_;
  LocalStages& stages_;
  const RingConfig config_;
};

}  // namespace millrace::sched
