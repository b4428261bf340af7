#include "sim/timed_runner.h"

#include "async/wait_list.h"
#include "sim/max_duration.h"

namespace millrace::sim {

TimedRunner::TimedRunner(async::Runtime& runtime, const StageCost& cost, std::shared_ptr<std::byte[]> scratch,
                         std::function<uint64_t()> random, StageWork& work, Processors* processors)
    : runtime_(runtime),
      cost_(cost),
      scratch_(std::move(scratch)),
      random_(std::move(random)),
      work_(work),
      processors_(processors) {}

asio::awaitable<sched::StageRunner::Result> TimedRunner::run(const sched::StageBatch& batch,
                                                             std::span<const std::byte>) {
  sched::BatchShape shape;
  Result result;
  for (const sched::PlanSlice& slice : batch.slices) {
    shape.add(slice);
    if (cost_.output_row_bytes > 0) continue;
    sched::SliceOutput& output = result.outputs.emplace_back();
    output.samples.resize(slice.sample_count(), {.token = 1});
  }
  const double chance = static_cast<double>(random_() >> 11) * 0x1.0p-53;
  const double us = cost_.coefficients.predict_us(shape) * (1 + cost_.jitter * chance);
  const async::TimePoint start = runtime_.now();
  const async::Duration alone = clamped_duration(us * 1e3);
  if (processors_ != nullptr) {
    const double whole = cost_.coefficients.predict_us(shape);
    co_await processors_->compute(runtime_, alone, whole > 0 ? cost_.coefficients.prompt_us(shape) / whole : 0);
  } else {
    co_await async::sleep_for(runtime_, alone);
  }
  ++work_.runs;
  work_.busy += runtime_.now() - start;
  result.activations = {scratch_.get(), batch.tokens.size() * cost_.output_row_bytes};
  co_return result;
}

}  // namespace millrace::sim
