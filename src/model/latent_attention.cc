#include "model/latent_attention.h"

namespace millrace::model {

using tensor::DType;
using tensor::Matrix;

tensor::LatentShape latent_shape(const AttentionConfig& attention, int32_t head_count) {
  const LatentConfig& latent = *attention.latent;
  return {.head_count = head_count,
          .nope_dim = latent.nope_dim,
          .rope_dim = latent.rope_dim,
          .value_dim = attention.head_dim,
          .latent_dim = latent.latent_dim,
          .scale = attention.scale};
}

LatentProjection::LatentProjection(tensor::Backend& backend, const LatentConfig& config,
                                   const tensor::LatentShape& shape, int64_t rows, int64_t tail_rows)
    : backend_(backend) {
  const auto allocate = [&](DType dtype, int64_t cols) {
    return backend.allocate(Matrix{.dtype = dtype, .rows = rows, .cols = cols}.bytes());
  };
  if (config.query_rank > 0) {
    low_rank_ = allocate(DType::kF32, config.query_rank);
    low_rank_normed_ = allocate(backend.compute_dtype(), config.query_rank);
  }
  query_ = allocate(DType::kF32, shape.query_width());
  latent_ = allocate(DType::kF32, shape.key_dim());
  if (config.indexer) indexer_.emplace(backend, *config.indexer, rows, tail_rows);
}

Matrix LatentProjection::project(const Layer& layer, Matrix input, const tensor::UploadedBatch& batch,
                                 tensor::KvCache& cache) {
  const auto& [weights, config, shape, rotary, cache_layer] = layer;
  const auto rows_of = [&](const tensor::Buffer& buffer, DType dtype, int64_t cols) {
    return Matrix{.data = buffer.data(), .dtype = dtype, .rows = input.rows, .cols = cols};
  };
  const Matrix latent = rows_of(latent_, DType::kF32, shape.key_dim());
  backend_.matmul(input, *weights.latent, weights.latent_bias.get(), latent);
  backend_.store_latent(latent, shape, rotary, *weights.latent_norm, config.norm_epsilon, batch, cache, cache_layer);
  const Matrix query = rows_of(query_, DType::kF32, shape.query_width());
  if (config.query_rank == 0) {
    backend_.matmul(input, *weights.query, nullptr, query);
    return query;
  }
  const Matrix low_rank = rows_of(low_rank_, DType::kF32, config.query_rank);
  const Matrix normed = rows_of(low_rank_normed_, backend_.compute_dtype(), config.query_rank);
  backend_.matmul(input, *weights.query_a, weights.query_a_bias.get(), low_rank);
  backend_.rms_norm(low_rank, *weights.query_norm, config.norm_epsilon, normed);
  backend_.matmul(normed, *weights.query, nullptr, query);
  if (weights.indexer)
    indexer_->choose(
        {.weights = *weights.indexer, .config = *config.indexer, .rotary = rotary, .cache_layer = cache_layer}, input,
        normed, batch, cache);
  return query;
}

}  // namespace millrace::model
