#include "model/indexer.h"

#include <algorithm>

#include "tensor/padded_context.h"

namespace millrace::model {

using tensor::DType;
using tensor::IntMatrix;
using tensor::Matrix;

namespace {

/// Returns integers as a matrix of equal bytes, to copy them.
Matrix as_bytes_of(IntMatrix integers) {
  return {.data = reinterpret_cast<std::byte*>(integers.data),
          .dtype = DType::kF32,
          .rows = integers.rows,
          .cols = integers.cols};
}

}  // namespace

tensor::IndexerShape indexer_shape(const IndexerConfig& config, int32_t rope_dim) {
  return {.head_count = config.head_count,
          .head_dim = config.head_dim,
          .rope_dim = rope_dim,
          .chosen_count = config.chosen_count};
}

tensor::IndexerShape indexer_shape(const ModelConfig& config) {
  for (const LayerConfig& layer : config.layers) {
    const auto& latent = layer.attention.latent;
    if (layer.attends && latent && latent->indexer) return indexer_shape(*latent->indexer, latent->rope_dim);
  }
  return {};
}

int32_t padded_context(const tensor::BatchLayout& batch, int32_t chosen) {
  int32_t longest = 0;
  for (size_t s = 0; s < batch.sequence_count(); ++s)
    longest = std::max(longest, batch.prefix[s] + batch.row_begin[s + 1] - batch.row_begin[s]);
  return tensor::padded_context(longest, chosen);
}

Indexer::Indexer(tensor::Backend& backend, const IndexerConfig& config, int64_t rows, int64_t tail_rows)
    : backend_(backend), chosen_count_(config.chosen_count) {
  const auto allocate = [&](int64_t count, int64_t cols) {
    return backend.allocate(IntMatrix{.data = nullptr, .rows = count, .cols = cols}.bytes());  // f32 takes as much
  };
  query_ = allocate(rows, int64_t{config.head_count} * config.head_dim);
  key_ = allocate(rows, config.head_dim);
  weights_ = allocate(rows, config.head_count);
  chosen_ = allocate(rows, config.chosen_count);
  tail_chosen_ = allocate(tail_rows, config.chosen_count);
}

void Indexer::choose(const Layer& layer, Matrix input, Matrix low_rank, const tensor::UploadedBatch& batch,
                     tensor::KvCache& cache) {
  const auto& [weights, config, rotary, cache_layer] = layer;
  const tensor::IndexerShape shape = indexer_shape(config, rotary.rotary_dim);
  const auto rows_of = [&](const tensor::Buffer& buffer, int64_t cols) {
    return Matrix{.data = buffer.data(), .dtype = DType::kF32, .rows = input.rows, .cols = cols};
  };
  const Matrix key = rows_of(key_, config.head_dim);
  backend_.matmul(input, *weights.key, nullptr, key);
  backend_.store_index_key(key, shape, rotary, *weights.norm, *weights.norm_bias, config.norm_epsilon, batch, cache,
                           cache_layer);
  const IntMatrix chosen = this->chosen(batch.layout);
  if (chosen.cols == 0) return;
  const Matrix query = rows_of(query_, shape.query_width());
  const Matrix head_weights = rows_of(weights_, config.head_count);
  backend_.matmul(low_rank, *weights.query, nullptr, query);
  backend_.matmul(input, *weights.weights, nullptr, head_weights);
  backend_.choose_tokens(query, head_weights, shape, rotary, batch, cache, cache_layer, chosen);
}

IntMatrix Indexer::chosen(const tensor::BatchLayout& batch) const {
  const IntMatrix all{
      .data = reinterpret_cast<int32_t*>(chosen_.data()), .rows = batch.row_count(), .cols = chosen_count_};
  // A recorded pass must not depend on the batch itself.
  if (batch.padded_context > 0) return batch.padded_context > chosen_count_ ? all : IntMatrix{};
  for (size_t s = 0; s < batch.sequence_count(); ++s) {
    if (batch.prefix[s] + batch.row_begin[s + 1] - batch.row_begin[s] > chosen_count_) return all;
  }
  return {};
}

IntMatrix Indexer::gather(IntMatrix chosen, const tensor::UploadedIndices& rows) {
  if (chosen.cols == 0) return {};
  const IntMatrix some{.data = reinterpret_cast<int32_t*>(tail_chosen_.data()),
                       .rows = static_cast<int64_t>(rows.values.size()),
                       .cols = chosen.cols};
  backend_.gather_rows(as_bytes_of(chosen), rows, as_bytes_of(some));
  return some;
}

}  // namespace millrace::model
