#pragma once

#include <functional>
#include <memory>

#include "async/runtime.h"
#include "sched/scheduler/cost_model.h"
#include "sched/stage/stage_runner.h"
#include "sim/processors.h"

namespace millrace::sim {

/// The cost of a stage of a described cluster.
struct StageCost {
  sched::CostCoefficients coefficients;
  double jitter = 0;            ///< each run takes 1 to 1 + jitter times as long
  size_t input_row_bytes = 0;   ///< 0 on the first stage
  size_t output_row_bytes = 0;  ///< 0 on the last
};

/// The work that a stage has done.
struct StageWork {
  uint64_t runs = 0;
  async::Duration busy{};
};

/// A StageRunner that only takes time: activations have the right size and no content, and every sampled token is the
/// same. Owned by LocalStages; `work` and `processors` outlive it.
class TimedRunner final : public sched::StageRunner {
 public:
  /// `scratch` has at least the bytes of the largest batch's activations, and is never written. `processors` are those
  /// that the stages share; null: this stage has its own.
  TimedRunner(async::Runtime& runtime, const StageCost& cost, std::shared_ptr<std::byte[]> scratch,
              std::function<uint64_t()> random, StageWork& work, Processors* processors);

  [[nodiscard]] size_t output_row_bytes() const override { return cost_.output_row_bytes; }
  [[nodiscard]] size_t input_row_bytes() const override { return cost_.input_row_bytes; }
  [[nodiscard]] asio::awaitable<Result> run(const sched::StageBatch& batch, std::span<const std::byte> input) override;

 private:
  async::Runtime& runtime_;
  const StageCost cost_;
  const std::shared_ptr<std::byte[]> scratch_;
  std::function<uint64_t()> random_;
  StageWork& work_;
  Processors* const processors_;
};

}  // namespace millrace::sim
