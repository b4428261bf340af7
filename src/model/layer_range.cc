#include "model/layer_range.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/check.h"

namespace millrace::model {
namespace {

struct AutoName {
  std::string_view name;
  LayerPartition::Load load;
};
constexpr std::array<AutoName, 3> kAutoNames = {{{"auto", LayerPartition::Load::kMixed},
                                                 {"auto:prefill", LayerPartition::Load::kPrefill},
                                                 {"auto:decode", LayerPartition::Load::kDecode}}};

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

Result<LayerPartition> parse_layer_partition(std::string_view text) {
  if (text == "even") return LayerPartition{};
  for (const auto& [name, load] : kAutoNames) {
    if (text == name) return LayerPartition{.rule = LayerPartition::Rule::kAuto, .load = load, .sizes = {}};
  }
  LayerPartition partition{.rule = LayerPartition::Rule::kByHand};
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string_view part = text.substr(at, comma - at);
    int32_t size = 0;
    const auto [rest, error] = std::from_chars(part.data(), part.data() + part.size(), size);
    if (error != std::errc{} || rest != part.data() + part.size() || size < 1)
      return make_error(
          ErrorCode::kInvalidArgument,
          "layer partition '{}': '{}' is no number of layers, wanted even, auto, auto:prefill, auto:decode or a list "
          "as 15,15,15,16",
          text, part);
    partition.sizes.push_back(size);
    at = comma + 1;
  }
  return partition;
}

std::string to_string(const LayerPartition& partition) {
  if (partition.rule == LayerPartition::Rule::kEven) return "even";
  if (partition.rule == LayerPartition::Rule::kAuto) {
    return std::string(std::ranges::find(kAutoNames, partition.load, &AutoName::load)->name);
  }
  return fmt::format("{}", fmt::join(partition.sizes, ","));
}

Result<std::vector<LayerRange>> divide_by_hand(const std::vector<int32_t>& sizes, int32_t layer_count,
                                               int32_t stage_count) {
  RETURN_IF_ERROR(check_counts(layer_count, stage_count));
  if (sizes.size() != static_cast<size_t>(stage_count))
    return make_error(ErrorCode::kInvalidArgument, "layer partition '{}' has {} parts, wanted {}, one per stage",
                      fmt::join(sizes, ","), sizes.size(), stage_count);
  std::vector<LayerRange> ranges;
  int64_t sum = 0;
  for (const int32_t size : sizes) sum += size;
  if (sum != layer_count)
    return make_error(ErrorCode::kInvalidArgument, "layer partition '{}' sums to {}, the model has {} layers",
                      fmt::join(sizes, ","), sum, layer_count);
  int32_t begin = 0;
  for (const int32_t size : sizes) {
    ranges.push_back({begin, begin + size});
    begin += size;
  }
  return ranges;
}

std::vector<StageSpan> stage_spans(const std::vector<LayerRange>& ranges) {
  std::vector<StageSpan> spans;
  for (size_t stage = 0; stage < ranges.size(); ++stage)
    spans.push_back({.layers = ranges[stage], .first = stage == 0, .last = stage + 1 == ranges.size()});
  return spans;
}

}  // namespace millrace::model
