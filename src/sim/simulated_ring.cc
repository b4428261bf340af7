#include "sim/simulated_ring.h"

#include <algorithm>

#include "comm/in_process_link.h"

namespace millrace::sim {
namespace {

sched::StageBounds bounds_of(const SimulatedRingOptions& options) {
  const sched::SchedulerOptions& scheduler = options.head.scheduler;
  return {scheduler.max_running, scheduler.page_size, scheduler.page_count,
          scheduler.chunked_prefill_size + scheduler.max_running, options.model.vocab_size};
}

std::unique_ptr<SimulatedRunner> make_runner(async::VirtualWorld& world, async::Runtime& runtime,
                                             const SimulatedRingOptions& options, uint32_t index) {
  const auto count = static_cast<int32_t>(options.stage_count);
  const auto at = static_cast<int32_t>(index);
  SimulatedStage stage;
  stage.layer_begin = options.model.layer_count * at / count;
  stage.layer_end = options.model.layer_count * (at + 1) / count;
  stage.first = index == 0;
  stage.last = index + 1 == options.stage_count;
  if (!options.costs.empty()) stage.cost = options.costs[std::min<size_t>(index, options.costs.size() - 1)];
  std::function<void()> fault;
  if (options.fault) fault = [ask = options.fault, index] { ask(StageId(index)); };
  return std::make_unique<SimulatedRunner>(runtime, options.model, stage, bounds_of(options),
                                           [&world] { return world.random(); }, std::move(fault));
}

}  // namespace

SimulatedRing::SimulatedRing(async::VirtualWorld& world, SimulatedRingOptions options) {
  const size_t window = options.head.scheduler.window;
  parts_.push_back(std::make_unique<Part>(world.add_thread()));
  for (uint32_t i = 0; i < options.stage_count; ++i) parts_.push_back(std::make_unique<Part>(world.add_thread()));
  // links[i] leads from part i to the next; the last stage's leads back to the head.
  std::vector<comm::Link> links;
  for (size_t i = 0; i < parts_.size(); ++i) {
    links.push_back(
        comm::make_in_process_link(parts_[i]->runtime, parts_[(i + 1) % parts_.size()]->runtime, window + 1));
  }
  head_ = std::make_unique<sched::Head>(parts_[0]->runtime, options.head, std::move(links.front().sender),
                                        std::move(links.back().receiver));
  parts_[0]->tasks.spawn("head", head_->run());
  for (uint32_t i = 0; i < options.stage_count; ++i) {
    Part& part = *parts_[i + 1];
    const sched::StageLoopOptions loop{StageId(i), i == 0, i + 1 == options.stage_count, bounds_of(options), window};
    part.stage = std::make_unique<sched::StageLoop>(part.runtime, loop, make_runner(world, part.runtime, options, i),
                                                    std::move(links[i].receiver), std::move(links[i + 1].sender));
    part.tasks.spawn("stage", part.stage->run());
  }
}

SimulatedRing::~SimulatedRing() = default;

bool SimulatedRing::stopped() const {
  return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->tasks.size() == 0; });
}

}  // namespace millrace::sim
