#include "app/auto_partition.h"

#include <algorithm>
#include <numeric>

#include "app/stage_backend.h"
#include "base/log.h"
#include "model/part_timing.h"

namespace millrace::app {
namespace {

/// The relative difference between two measurements of one stage's cost.
constexpr double kTimingNoise = 0.05;

std::string sizes(const std::vector<model::LayerRange>& ranges) {
  std::string text;
  for (const model::LayerRange& range : ranges) text += (text.empty() ? "" : ",") + std::to_string(range.size());
  return text;
}

/// Returns the mean over the largest of the stages' costs: 1 when they are equal.
double balance(const std::vector<double>& costs) {
  const double sum = std::accumulate(costs.begin(), costs.end(), 0.0);
  return sum / static_cast<double>(costs.size()) / *std::ranges::max_element(costs);
}

Result<model::PartCosts> measure(const model::Checkpoint& checkpoint, const model::ModelConfig& config,
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

}  // namespace

Result<std::vector<model::LayerRange>> auto_partition(const model::Checkpoint& checkpoint,
                                                      const model::ModelConfig& config, const NodeStagesOptions& node,
                                                      int32_t node_stage_count, int32_t stage_count) {
  const auto even = model::divide_layers(config.layer_count, stage_count);
  if (even.has_error() || stage_count == 1) return even;
  const auto backend = make_stage_backend(node.device, node.stage, node.node, node_stage_count, 0);
  if (backend.has_error()) return backend.error();
  model::ReferenceLoad load;
  load.decode_rows = std::clamp(static_cast<int32_t>(node.stage.max_running) / stage_count, 1, load.decode_rows);
  const auto costs = measure(checkpoint, config, node, **backend, load);
  if (costs.has_error()) return costs.error();
  const auto chosen = model::balance_layers(*costs, stage_count, kTimingNoise);
  if (chosen.has_error()) return chosen.error();
  const auto [least, most] = std::ranges::minmax(costs->layers);
  log::info(
      "--pp-layer-partition auto: {}. A request of {} + {} tokens costs, at {} rows a step, {:.3g} ms in the "
      "embedding, {:.3g} to {:.3g} in each layer, {:.3g} in the output head; mean over slowest stage {:.2f} "
      "({:.2f} with {})",
      sizes(*chosen), load.prompt_tokens, load.output_tokens, load.decode_rows, costs->embedding * 1e3, least * 1e3,
      most * 1e3, costs->head * 1e3, balance(model::stage_costs(*costs, *chosen)),
      balance(model::stage_costs(*costs, *even)), sizes(*even));
  return chosen;
}

}  // namespace millrace::app
