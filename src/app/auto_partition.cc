#include "app/auto_partition.h"

#include <algorithm>

#include "app/division_report.h"
#include "app/stage_backend.h"
#include "base/log.h"
#include "model/part_timing.h"
#include "model/stage_borders.h"

namespace millrace::app {
namespace {

/// The relative difference between two measurements of one stage's cost.
constexpr double kTimingNoise = 0.05;

Result<model::WorkCosts> measure(const model::Checkpoint& checkpoint, const model::ModelConfig& config,
                                 const NodeStagesOptions& node, tensor::Backend& backend,
                                 const model::ReferenceLoad& load) {
  const auto loaded_config = quantized_config(config, node.stage.quantization);
  if (loaded_config.has_error()) return loaded_config.error();
  try {
    return model::time_parts(checkpoint, *loaded_config, backend, load, [&node] { node.check_interrupted(); });
  } catch (const ErrorException& failure) {
    if (failure.error().code != ErrorCode::kAborted) throw;
    return failure.error();
  }
}

/// Returns "1.2 ms in the embedding, 3 to 4 in each layer, 5 in the output head".
std::string cost_text(const model::PartCosts& costs) {
  const auto [least, most] = std::ranges::minmax(costs.layers);
  return fmt::format("{:.3g} ms in the embedding, {:.3g} to {:.3g} in each layer, {:.3g} in the output head",
                     costs.embedding * 1e3, least * 1e3, most * 1e3, costs.head * 1e3);
}

}  // namespace

Result<std::vector<model::LayerRange>> auto_partition(const model::Checkpoint& checkpoint,
                                                      const model::ModelConfig& config, const NodeStagesOptions& node,
                                                      const AutoDivision& division) {
  auto even = model::divide_layers(config.layer_count(), division.stage_count);
  if (even.has_value()) even = model::move_borders(config, std::move(*even));
  if (even.has_error() || division.stage_count == 1) return even;
  const auto backend = make_rank_backend(node.device, node.stage, node.node,
                                         {.stage_count = division.node_stage_count,
                                          .rank_count = division.node_rank_count,
                                          .ring = node.node.ring,
                                          .ring_count = node.node.ring_count});
  if (backend.has_error()) return backend.error();
  const model::ReferenceLoad load = reference_load(node.stage.max_running, division.stage_count);
  const auto costs = measure(checkpoint, config, node, **backend, load);
  if (costs.has_error()) return costs.error();
  auto chosen = model::balance_layers(costs_under(*costs, load, division.load), division.stage_count, kTimingNoise);
  if (chosen.has_value()) chosen = model::move_borders(config, std::move(*chosen));
  if (chosen.has_error()) return chosen.error();
  const model::LayerPartition how{.rule = model::LayerPartition::Rule::kAuto, .load = division.load, .sizes = {}};
  log::info("--pp-layer-partition {}: {}. Stages are expected to be busy as follows: {}; with {}: {}",
            model::to_string(how), division_text(*chosen), busy_text(*costs, *chosen), division_text(*even),
            busy_text(*costs, *even));
  log::info("a prompt of {} tokens takes {}; a decode step of {} rows {}", load.prompt_tokens,
            cost_text(costs->prefill), load.decode_rows, cost_text(costs->decode));
  return chosen;
}

}  // namespace millrace::app
