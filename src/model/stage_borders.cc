#include "model/stage_borders.h"

#include <algorithm>

namespace millrace::model {

bool can_begin_stage(const ModelConfig& config, int32_t layer) {
  const LayerConfig& own = config.layer(layer);
  const auto& latent = own.attention.latent;
  return !(own.attends && latent && latent->indexer && latent->indexer->is_shared);
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
                      "{} pipeline stages, wanted at most {}: other layers see what the layer before them sees",
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
    return make_error(ErrorCode::kInvalidArgument,
                      "a stage begins with layer {}, which sees what layer {} sees, wanted both in one stage",
                      range.begin, range.begin - 1);
  }
  return {};
}

}  // namespace millrace::model
