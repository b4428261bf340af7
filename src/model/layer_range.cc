#include "model/layer_range.h"

#include <charconv>

#include "base/check.h"

namespace millrace::model {
namespace {

Result<void> check_counts(int32_t layer_count, int32_t stage_count) {
  CHECK(layer_count > 0, "a model of {} layers", layer_count);
  if (stage_count < 1)
    return make_error(ErrorCode::kInvalidArgument, "{} pipeline stages, wanted at least 1", stage_count);
  if (stage_count > layer_count)
    return make_error(ErrorCode::kInvalidArgument, "{} pipeline stages for {} layers, wanted at most one per layer",
                      stage_count, layer_count);
  return {};
}

}  // namespace

Result<std::vector<LayerRange>> divide_layers(int32_t layer_count, int32_t stage_count) {
  RETURN_IF_ERROR(check_counts(layer_count, stage_count));
  std::vector<LayerRange> ranges;
  const int32_t shorter = stage_count - layer_count % stage_count;
  int32_t begin = 0;
  for (int32_t stage = 0; stage < stage_count; ++stage) {
    const int32_t size = layer_count / stage_count + (stage >= shorter ? 1 : 0);
    ranges.push_back({begin, begin + size});
    begin += size;
  }
  return ranges;
}

Result<std::vector<LayerRange>> parse_partition(std::string_view text, int32_t layer_count, int32_t stage_count) {
  RETURN_IF_ERROR(check_counts(layer_count, stage_count));
  std::vector<LayerRange> ranges;
  int32_t begin = 0;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string_view part = text.substr(at, comma - at);
    int32_t size = 0;
    const auto [rest, error] = std::from_chars(part.data(), part.data() + part.size(), size);
    if (error != std::errc{} || rest != part.data() + part.size() || size < 1 || size > layer_count)
      return make_error(ErrorCode::kInvalidArgument, "layer partition '{}': '{}' is not a number from 1 to {}", text,
                        part, layer_count);
    if (ranges.size() == static_cast<size_t>(stage_count))
      return make_error(ErrorCode::kInvalidArgument, "layer partition '{}' has more than {} parts, one per stage", text,
                        stage_count);
    ranges.push_back({begin, begin + size});
    begin += size;
    at = comma + 1;
  }
  if (ranges.size() != static_cast<size_t>(stage_count))
    return make_error(ErrorCode::kInvalidArgument, "layer partition '{}' has {} parts, wanted {}, one per stage", text,
                      ranges.size(), stage_count);
  if (begin != layer_count)
    return make_error(ErrorCode::kInvalidArgument, "layer partition '{}' sums to {}, the model has {} layers", text,
                      begin, layer_count);
  return ranges;
}

std::vector<StageSpan> stage_spans(const std::vector<LayerRange>& ranges) {
  std::vector<StageSpan> spans;
  for (size_t stage = 0; stage < ranges.size(); ++stage)
    spans.push_back({.layers = ranges[stage], .first = stage == 0, .last = stage + 1 == ranges.size()});
  return spans;
}

}  // namespace millrace::model
