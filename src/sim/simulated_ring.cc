#include "sim/simulated_ring.h"

#include <algorithm>

namespace millrace::sim {
namespace {

SimulatedStage stage_of(const SimulatedRingOptions& options, uint32_t index) {
  const auto count = static_cast<int32_t>(options.stage_count);
  const auto at = static_cast<int32_t>(index);
  SimulatedStage stage;
  stage.layer_begin = options.model.layer_count * at / count;
  stage.layer_end = options.model.layer_count * (at + 1) / count;
  stage.first = index == 0;
  stage.last = index + 1 == options.stage_count;
  if (!options.costs.empty()) stage.cost = options.costs[std::min<size_t>(index, options.costs.size() - 1)];
  return stage;
}

}  // namespace

SimulatedRing::SimulatedRing(async::VirtualWorld& world, const SimulatedRingOptions& options) {
  const sched::SchedulerOptions& scheduler = options.head.scheduler;
  const sched::StageBounds bounds{.slot_count = scheduler.max_running,
                                  .page_size = scheduler.page_size,
                                  .page_count = scheduler.page_count,
                                  .max_batch_tokens = sched::max_plan_tokens(scheduler),
                                  .vocab_size = options.model.vocab_size,
                                  .host_page_count = scheduler.host_page_count,
                                  .sampling_vocab = options.model.vocab_size,
                                  .has_output_head = scheduler.has_output_head};
  async::Runtime& head_runtime = world.add_thread();
  std::vector<async::Runtime*> runtimes;
  std::vector<sched::LocalStages::RunnerFactory> runners;
  for (uint32_t index = 0; index < options.stage_count; ++index) {
    runtimes.push_back(&world.add_thread());
    std::function<void()> fault;
    if (options.fault) fault = [ask = options.fault, index] { ask(StageId(index)); };
    std::function<async::Duration()> stall;
    if (options.stall) stall = [ask = options.stall, index] { return ask(StageId(index)); };
    runners.push_back([&world, bounds, fault, stall, index, make = options.make_runner, model = options.model,
                       make_store = options.make_store,
                       stage = stage_of(options, index)](auto& runtime) -> std::unique_ptr<sched::StageRunner> {
      if (make) return make(runtime, StageId(index));
      return std::make_unique<SimulatedRunner>(
          runtime, model, stage, bounds, [&world] { return world.random(); }, fault,
          make_store ? make_store(runtime, StageId(index)) : nullptr, stall);
    });
  }
  sched::HeadOptions head = options.head;
  head.model.stage_count = options.stage_count;
  sched::RingConfig shape{
      .stage_count = options.stage_count, .window = scheduler.window, .bounds = bounds, .watchdog = head.watchdog};
  shape.make_link = [links = options.links, head_links = options.head_links.value_or(options.links), &head_runtime](
                        async::Runtime& sender, async::Runtime& receiver, size_t capacity) {
    const bool of_head = &sender == &head_runtime || &receiver == &head_runtime;
    return make_simulated_link(of_head ? head_links : links, sender, receiver, capacity);
  };
  stages_ = std::make_unique<sched::LocalStages>(head_runtime, std::move(runtimes), runners, StageId(0), shape);
  ring_builder_ = std::make_unique<sched::InProcessRingBuilder>(head_runtime, *stages_, shape);
  ring_ = std::make_unique<sched::Ring>(head_runtime, head, *ring_builder_);
  ring_->start();
}

}  // namespace millrace::sim
