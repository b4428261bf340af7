#include "model/output_head.h"

#include <algorithm>

#include "base/check.h"

namespace millrace::model {

using tensor::DType;
using tensor::Matrix;

OutputHead::OutputHead(const ModelConfig& config, tensor::Backend& backend, const RankLayout& layout,
                       const StageWeights& weights, ResidualStream& stream, int32_t max_rows)
    : config_(config), backend_(backend), layout_(layout), weights_(weights), stream_(stream), max_rows_(max_rows) {
  const auto rows = [&](int64_t count, DType dtype, int64_t cols) {
    return backend_.allocate(Matrix{.dtype = dtype, .rows = count, .cols = cols}.bytes());
  };
  row_hidden_ = rows(max_rows_, backend_.hidden_dtype(), config_.hidden_size);
  row_normed_ = rows(max_rows_, backend_.compute_dtype(), config_.hidden_size);
  if (config_.has_output_head) {
    const int64_t slice = layout_.logit_columns;
    if (stream_.has_ranks()) logit_slice_ = rows(max_rows_, DType::kF32, slice);
    logits_ = rows(max_rows_, DType::kF32, slice * layout_.position.size);
  }
}

void OutputHead::normed_rows(Matrix hidden, std::span<const int32_t> rows, const BlockFn& block) {
  const auto largest = static_cast<size_t>(max_rows_);
  for (size_t first = 0; first < rows.size(); first += largest) {
    const auto part = rows.subspan(first, std::min(largest, rows.size() - first));
    const auto count = static_cast<int64_t>(part.size());
    const Matrix gathered{
        .data = row_hidden_.data(), .dtype = backend_.hidden_dtype(), .rows = count, .cols = config_.hidden_size};
    const Matrix normed{
        .data = row_normed_.data(), .dtype = backend_.compute_dtype(), .rows = count, .cols = config_.hidden_size};
    backend_.gather_rows(hidden, backend_.upload(part), gathered);
    stream_.norm(gathered, *weights_.final_norm, weights_.final_norm_bias.get(), normed);
    block(first, normed);
  }
}

void OutputHead::logits(Matrix hidden, std::span<const int32_t> rows, const BlockFn& block) {
  CHECK(rows.empty() || config_.has_output_head, "logits of a stage without the output head");
  normed_rows(hidden, rows, [&](size_t first, Matrix normed) {
    const int64_t slice = layout_.logit_columns;
    const Matrix logits{
        .data = logits_.data(), .dtype = DType::kF32, .rows = normed.rows, .cols = slice * layout_.position.size};
    Matrix own = logits;
    if (stream_.has_ranks())
      own = {.data = logit_slice_.data(), .dtype = DType::kF32, .rows = normed.rows, .cols = slice};
    backend_.matmul(normed, *weights_.head, nullptr, own);
    if (config_.logit_scale != 1.0f) backend_.scale(own, config_.logit_scale);
    if (config_.logit_soft_cap != 0.0f) backend_.soft_cap(own, config_.logit_soft_cap);
    if (stream_.has_ranks()) collective_->all_gather(own, logits);
    block(first, logits);
  });
}

}  // namespace millrace::model
