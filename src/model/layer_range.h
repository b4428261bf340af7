#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace millrace::model {

/// The layers [begin, end) of a model.
struct LayerRange {
  int32_t begin = 0;
  int32_t end = 0;
  [[nodiscard]] int32_t size() const { return end - begin; }
  friend bool operator==(LayerRange, LayerRange) = default;
};

/// Returns the largest of the numbers that `of` gives for each layer, numbered within the range; 0: there is none.
template <class Of>
[[nodiscard]] int64_t largest_of(LayerRange range, const Of& of) {
  int64_t largest = 0;
  for (int32_t index = 0; index < range.size(); ++index) largest = std::max<int64_t>(largest, of(index));
  return largest;
}

/// The part of a model that one stage holds: its layers, and the ends of the model.
struct StageSpan {
  LayerRange layers;
  bool first = true;  ///< the stage also embeds
  bool last = true;   ///< the stage also normalises and projects to logits
  friend bool operator==(StageSpan, StageSpan) = default;
};

/// Divides layers evenly, with the remainder on the later stages: 22 layers over 4 stages are 5, 5, 6, 6. Error: more
/// stages than layers.
[[nodiscard]] Result<std::vector<LayerRange>> divide_layers(int32_t layer_count, int32_t stage_count);
/// How the layers are divided over the stages, as `--pp-layer-partition` says.
struct LayerPartition {
  enum class Rule : uint8_t { kEven, kAuto, kByHand };
  /// The work for which kAuto makes the slowest stage as fast as possible.
  enum class Load : uint8_t { kMixed, kPrefill, kDecode };
  Rule rule = Rule::kEven;
  Load load = Load::kMixed;
  std::vector<int32_t> sizes;  ///< with kByHand: the layers of each stage
};
/// Parses "even", "auto", "auto:prefill", "auto:decode" or positive numbers as "15,15,15,16". Errors name the part that
/// is none of these.
[[nodiscard]] Result<LayerPartition> parse_layer_partition(std::string_view text);
/// Returns the spelling that parse_layer_partition takes.
[[nodiscard]] std::string to_string(const LayerPartition& partition);
/// Returns the ranges of `sizes`. Errors: not `stage_count` parts, or a sum other than `layer_count`.
[[nodiscard]] Result<std::vector<LayerRange>> divide_by_hand(const std::vector<int32_t>& sizes, int32_t layer_count,
                                                             int32_t stage_count);
/// Returns the spans of a whole division, with the first and the last marked.
[[nodiscard]] std::vector<StageSpan> stage_spans(const std::vector<LayerRange>& ranges);

}  // namespace millrace::model
