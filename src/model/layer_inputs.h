#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/config.h"
#include "model/layer_range.h"
#include "model/weights.h"
#include "tensor/backend.h"

namespace millrace::model {

/// Computes the inputs that a stage's layers have besides the residual stream, from tokens: ModelConfig::layer_inputs.
/// They follow from the tokens alone, so that every stage computes those of its layers. Owned by a StageModel, whose
/// rules of calls hold; what the constructor takes outlives it.
class LayerInputs {
 public:
  LayerInputs(const ModelConfig& config, StageSpan span, tensor::Backend& backend, const StageWeights& weights,
              int32_t max_rows, int32_t max_tail_rows);

  /// Uploads what `compute` looks up. A token outside the vocabulary, as padding has, gives zeros.
  void upload(std::span<const TokenId> tokens);
  /// Computes the inputs of the uploaded tokens. `embedded` (hidden) [T, hidden] holds their scaled embeddings.
  void compute(tensor::Matrix embedded);
  /// Does so after looking the embeddings up itself, on a stage that does not embed.
  void compute(const tensor::UploadedIndices& tokens);
  /// Returns the inputs of all layers of the stage (f32) [T, layers · width].
  [[nodiscard]] tensor::Matrix all() const { return inputs(inputs_, rows_); }
  /// Returns those of some rows.
  [[nodiscard]] tensor::Matrix gathered(const tensor::UploadedIndices& rows, int64_t row_count);

 private:
  [[nodiscard]] tensor::Matrix inputs(const tensor::Buffer& buffer, int64_t rows) const;

  const ModelConfig& config_;
  const LayerInputsConfig shape_;
  const LayerRange range_;
  tensor::Backend& backend_;
  const StageWeights& weights_;
  tensor::Buffer inputs_;       // f32     [max_rows, layers · width]
  tensor::Buffer products_;     // f32     [max_rows, layers · width]
  tensor::Buffer embedded_;     // hidden  [max_rows, hidden], of a stage that does not embed
  tensor::Buffer converted_;    // compute [max_rows, hidden]
  tensor::Buffer tail_inputs_;  // f32     [max_tail_rows, layers · width]
  int64_t rows_ = 0;
  std::vector<int32_t> lookups_;
  tensor::UploadedIndices uploaded_;  // of lookups_
};

}  // namespace millrace::model
