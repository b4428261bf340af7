#include "model/layer_inputs.h"

namespace millrace::model {

using tensor::DType;
using tensor::Matrix;

LayerInputs::LayerInputs(const ModelConfig& config, StageSpan span, tensor::Backend& backend,
                         const StageWeights& weights, int32_t max_rows, int32_t max_tail_rows)
    : config_(config), shape_(*config.layer_inputs), range_(span.layers), backend_(backend), weights_(weights) {
  const auto rows = [&](int64_t count, DType dtype, int64_t cols) {
    return backend_.allocate(Matrix{.dtype = dtype, .rows = count, .cols = cols}.bytes());
  };
  const int64_t width = int64_t{range_.size()} * shape_.width;
  inputs_ = rows(max_rows, DType::kF32, width);
  products_ = rows(max_rows, DType::kF32, width);
  tail_inputs_ = rows(max_tail_rows, DType::kF32, width);
  converted_ = rows(max_rows, backend_.compute_dtype(), config.hidden_size);
  if (!span.first) embedded_ = rows(max_rows, backend_.hidden_dtype(), config.hidden_size);
}

Matrix LayerInputs::inputs(const tensor::Buffer& buffer, int64_t rows) const {
  return {.data = buffer.data(), .dtype = DType::kF32, .rows = rows, .cols = int64_t{range_.size()} * shape_.width};
}

void LayerInputs::upload(std::span<const TokenId> tokens) {
  const LayerInputWeights& weights = *weights_.layer_inputs;
  lookups_.clear();
  for (const TokenId token : tokens) {
    const bool is_known = token >= 0 && token < config_.vocab_size;
    for (int32_t layer = 0; layer < range_.size(); ++layer)
      lookups_.push_back(is_known ? token * weights.table_layers + weights.table_first + layer : -1);
  }
  uploaded_ = backend_.upload(lookups_);
  rows_ = static_cast<int64_t>(tokens.size());
}

void LayerInputs::compute(Matrix embedded) {
  const LayerInputWeights& weights = *weights_.layer_inputs;
  const Matrix converted{
      .data = converted_.data(), .dtype = backend_.compute_dtype(), .rows = embedded.rows, .cols = embedded.cols};
  // A row of these has the numbers of one layer.
  const auto by_layer = [this](Matrix all) {
    all.rows *= range_.size();
    all.cols = shape_.width;
    return all;
  };
  const Matrix products = inputs(products_, rows_);
  const Matrix sums = by_layer(all());
  backend_.convert(embedded, converted);
  backend_.matmul(converted, *weights.projection, nullptr, products);
  backend_.scale(products, shape_.projection_factor);
  backend_.rms_norm_in_place(by_layer(products), *weights.norm, config_.norm_epsilon);
  backend_.embed(*weights.table, uploaded_, sums);
  backend_.scale(sums, shape_.table_factor * shape_.join_factor);
  backend_.add_sums(by_layer(products), nullptr, sums);
}

void LayerInputs::compute(const tensor::UploadedIndices& tokens) {
  const Matrix embedded{
      .data = embedded_.data(), .dtype = backend_.hidden_dtype(), .rows = rows_, .cols = config_.hidden_size};
  backend_.embed(*weights_.embedding, tokens, embedded);
  if (config_.embedding_scale != 1.0f) backend_.scale(embedded, config_.embedding_scale);
  compute(embedded);
}

Matrix LayerInputs::gathered(const tensor::UploadedIndices& rows, int64_t row_count) {
  const Matrix tails = inputs(tail_inputs_, row_count);
  backend_.gather_rows(all(), rows, tails);
  return tails;
}

}  // namespace millrace::model
