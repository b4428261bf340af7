#include "model/stage_borders.h"

#include <algorithm>

namespace millrace::model {

namespace {

/// Returns the first layer before `layer` that must be in its stage; `layer` itself where there is none.
int32_t first_of_stage(const ModelConfig& config, int32_t layer) {
  const LayerConfig& own = config.layer(layer);
  const auto& latent = own.attention.latent;
  if (own.attends && latent && latent->indexer && latent->indexer->is_shared) return layer - 1;
  int32_t first = layer;
  for (int32_t later = layer; later < config.layer_count(); ++later)
    first = std::min(first, config.layer(later).attention.keys_of.value_or(first));
  return first;
}

}  // namespace

bool can_begin_stage(const ModelConfig& config, int32_t layer) {
  return first_of_stage(config, layer) == layer;
}

int32_t largest_stage_count(const ModelConfig& config) {
  int32_t count = 0;
  for (int32_t layer = 0; layer < config.layer_count(); ++layer) count += can_begin_stage(config, layer) ? 1 : 0;
  return count;
}

Result<std::vector<LayerRange>> move_borders(const ModelConfig& config, std::vector<LayerRange> ranges) {
  std::vector<int32_t> begins;  // the layers that can begin a stage
  for (int32_t layer = 0; layer < config.layer_count(); ++layer) {
    if (can_begin_stage(config, layer)) begins.push_back(layer);
  }
  if (ranges.size() > begins.size())
    return make_error(ErrorCode::kInvalidArgument,
                      "{} pipeline stages, wanted at most {}: other layers see what a layer before them sees",
                      ranges.size(), begins.size());
  size_t next = 1;  // of begins, the first that the stage may have
  for (size_t stage = 1; stage < ranges.size(); ++stage) {
    const size_t last = begins.size() - (ranges.size() - stage);  // later stages need one each
    const auto after = std::ranges::upper_bound(begins, ranges[stage].begin);
    const auto wanted = static_cast<size_t>(after - begins.begin()) - 1;
    const size_t chosen = std::clamp(wanted, next, last);
    ranges[stage].begin = ranges[stage - 1].end = begins[chosen];
    next = chosen + 1;
  }
  return ranges;
}

Result<void> check_borders(const ModelConfig& config, const std::vector<LayerRange>& ranges) {
  for (const LayerRange& range : ranges) {
    if (range.size() == 0 || can_begin_stage(config, range.begin)) continue;
    return make_error(
        ErrorCode::kInvalidArgument,
        "a stage begins with layer {}, but it or a later layer sees what layer {} sees or stores, wanted both in one "
        "stage",
        range.begin, first_of_stage(config, range.begin));
  }
  return {};
}

}  // namespace millrace::model
