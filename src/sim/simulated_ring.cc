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

sched::StageBounds bounds_of(const SimulatedRingOptions& options, cache::PoolSizes pages) {
  const sched::SchedulerOptions& scheduler = options.head.scheduler;
  return {.slot_count = scheduler.max_running,
          .page_size = scheduler.page_size,
          .page_count = pages.device,
          .max_batch_tokens = sched::max_plan_tokens(scheduler),
          .vocab_size = options.model.vocab_size,
          .host_page_count = pages.host,
          .sampling_vocab = options.model.vocab_size,
          .has_output_head = scheduler.has_output_head,
          .windows = window_pools(scheduler, pages)};
}

std::vector<std::unique_ptr<cache::PageStore>> make_stores(async::Runtime& runtime, const SimulatedRingOptions& options,
                                                           StageId id, const SimulatedStage& stage) {
  std::vector<std::unique_ptr<cache::PageStore>> stores;
  if (!options.make_store) return stores;
  const uint32_t page_size = options.head.scheduler.page_size;
  for (uint32_t group = 0; group <= options.model.windows().size(); ++group) {
    auto& store = stores.emplace_back();
    const size_t layers = options.model.layers_in(group, stage.layer_begin, stage.layer_end);
    if (layers == 0) continue;
    const auto rank = static_cast<uint32_t>(stage.position.rank);
    const size_t values = layers * options.model.page_values(group, page_size);
    const WindowSpec spec = group == 0 ? WindowSpec{} : options.model.windows()[group - 1];
    store = options.make_store(runtime, {.model_fingerprint = "model",
                                         .layer_begin = id.value(),
                                         .layer_end = id.value() + 1,
                                         .kv_dtype = spec.kind == GroupKind::kState ? "u64 states" : "u64",
                                         .page_size = page_size,
                                         .page_bytes = values * sizeof(uint64_t),
                                         .head_begin = rank,
                                         .head_end = rank + 1,
                                         .window = spec.window});
  }
  return stores;
}

sched::LocalStages::RunnerFactory runner_factory(async::VirtualWorld& world, const SimulatedRingOptions& options,
                                                 uint32_t index, uint32_t rank, const sched::StageBounds& bounds) {
  std::function<void()> fault;
  if (options.fault) fault = [ask = options.fault, index] { ask(StageId(index)); };
  std::function<async::Duration()> stall;
  if (options.stall) stall = [ask = options.stall, index] { return ask(StageId(index)); };
  SimulatedStage stage = stage_of(options, index);
  stage.position = {.rank = static_cast<int32_t>(rank), .size = static_cast<int32_t>(options.rank_count)};
  return [&world, bounds, fault, stall, index, options, stage](auto& runtime) -> std::unique_ptr<sched::StageRunner> {
    if (options.make_runner) return options.make_runner(runtime, StageId(index));
    return std::make_unique<SimulatedRunner>(
        runtime, options.model, stage, bounds, [&world] { return world.random(); }, fault,
        make_stores(runtime, options, StageId(index), stage), stall);
  };
}

}  // namespace

ResizingRingBuilder::ResizingRingBuilder(cache::PoolSizes first, std::function<Stages(cache::PoolSizes)> make,
                                         std::function<cache::PoolSizes(RingEpoch)> pool_sizes)
    : make_(std::move(make)), pool_sizes_(std::move(pool_sizes)) {
  made_.push_back(make_(first));
}

asio::awaitable<sched::RingEnds> ResizingRingBuilder::build(RingEpoch epoch) {
  const cache::PoolSizes pages = pool_sizes_ ? pool_sizes_(epoch) : made_.back().pages;
  if (pages != made_.back().pages) made_.push_back(make_(pages));
  sched::RingEnds ends = co_await made_.back().builder->build(epoch);
  ends.pages = pages;
  co_return ends;
}

asio::awaitable<void> ResizingRingBuilder::tear_down(RingEpoch epoch, std::string reason) {
  co_await made_.back().builder->tear_down(epoch, std::move(reason));
}

SimulatedRing::SimulatedRing(async::VirtualWorld& world, const SimulatedRingOptions& given) {
  SimulatedRingOptions options = given;
  options.head.scheduler.windows = options.model.windows();
  const sched::SchedulerOptions& scheduler = options.head.scheduler;
  async::Runtime& head_runtime = world.add_thread();
  std::vector<async::Runtime*> runtimes;
  for (uint32_t i = 0; i < options.stage_count * options.rank_count; ++i) runtimes.push_back(&world.add_thread());
  sched::HeadOptions head = options.head;
  head.model.stage_count = options.stage_count;
  head.model.rank_count = options.rank_count;
  sched::RingConfig shape{.stage_count = options.stage_count,
                          .rank_count = options.rank_count,
                          .window = scheduler.window,
                          .watchdog = head.watchdog,
                          .make_collectives = {},
                          .make_expert_exchange = {}};
  shape.make_collectives = [options = options.collectives, runtimes, size = options.rank_count](
                               StageId stage, const std::vector<tensor::Backend*>&) {
    std::vector<std::reference_wrapper<async::Runtime>> ranks;
    for (size_t i = 0; i < size; ++i) ranks.emplace_back(*runtimes[stage.value() * size + i]);
    return SimulatedCollective::make_group(ranks, options);
  };
  const uint32_t number = options.experts == nullptr ? 0 : options.experts->add_ring(runtimes);
  if (options.experts != nullptr) {
    shape.make_expert_exchange = [number, experts = options.experts](StageId stage, uint32_t rank, tensor::Backend*) {
      return experts->join(number, stage, rank);
    };
  }
  shape.make_link = [links = options.links, head_links = options.head_links.value_or(options.links), &head_runtime](
                        async::Runtime& sender, async::Runtime& receiver, size_t capacity) {
    const bool of_head = &sender == &head_runtime || &receiver == &head_runtime;
    return make_simulated_link(of_head ? head_links : links, sender, receiver, capacity);
  };
  const auto make_stages = [&world, &head_runtime, options, shape, runtimes](cache::PoolSizes pages) {
    sched::RingConfig config = shape;
    config.bounds = bounds_of(options, pages);
    std::vector<sched::LocalStages::RunnerFactory> runners;
    for (uint32_t i = 0; i < options.stage_count * options.rank_count; ++i) {
      runners.push_back(runner_factory(world, options, i / options.rank_count, i % options.rank_count, config.bounds));
    }
    ResizingRingBuilder::Stages made{.pages = pages, .stages = nullptr, .builder = nullptr};
    if (options.make_builder) {
      made.builder = options.make_builder(
          {.head = head_runtime, .runtimes = runtimes, .runners = std::move(runners), .config = config});
      return made;
    }
    made.stages = std::make_unique<sched::LocalStages>(head_runtime, runtimes, runners, StageId(0), config);
    made.builder = std::make_unique<sched::InProcessRingBuilder>(head_runtime, *made.stages, config);
    return made;
  };
  const cache::PoolSizes first = sched::first_pools(scheduler);
  ring_builder_ = std::make_unique<ResizingRingBuilder>(first, make_stages, options.pool_sizes);
  if (options.experts != nullptr) {
    stepping_builder_ = std::make_unique<sched::SteppingRingBuilder>(
        head_runtime, *ring_builder_, options.experts->epochs(number), number, options.experts->exchange(number));
  }
  sched::RingBuilder& builder = stepping_builder_ ? static_cast<sched::RingBuilder&>(*stepping_builder_)
                                                  : static_cast<sched::RingBuilder&>(*ring_builder_);
  ring_ = std::make_unique<sched::Ring>(head_runtime, head, builder);
  ring_->start();
}

}  // namespace millrace::sim
