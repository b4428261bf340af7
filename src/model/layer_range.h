#pragma once

#include <cstdint>
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
/// By hand: "15,15,15,16". Errors: not `stage_count` positive numbers, or a sum other than `layer_count`.
[[nodiscard]] Result<std::vector<LayerRange>> parse_partition(std::string_view text, int32_t layer_count,
                                                              int32_t stage_count);
/// The spans of a whole division, first and last marked.
[[nodiscard]] std::vector<StageSpan> stage_spans(const std::vector<LayerRange>& ranges);

}  // namespace millrace::model
