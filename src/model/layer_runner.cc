#include "model/layer_runner.h"

#include <algorithm>

#include "model/needed_features.h"
#include "model/rope.h"

namespace millrace::model {

using tensor::DType;
using tensor::Matrix;

LayerRunner::LayerRunner(const ModelConfig& config, LayerRange range, tensor::Backend& backend,
                         const RankLayout& layout, const std::vector<LayerWeights>& weights, const StageLimits& limits)
    : config_(config),
      range_(range),
      backend_(backend),
      layout_(layout),
      weights_(weights),
      has_sums_(layout.position.size > 1 || needs(config, tensor::Feature::kScaledSums)) {
  make_rotations();
  allocate(limits);
}

template <class Of>
int64_t LayerRunner::largest(const Of& of) const {
  int64_t largest = 0;
  for (int32_t index = 0; index < range_.size(); ++index) largest = std::max<int64_t>(largest, of(index));
  return largest;
}

int64_t LayerRunner::expanded_columns(int32_t index) const {
  const FeedForwardConfig& feed_forward = layer_config(index).feed_forward;
  const int64_t features = layer_layout(index).features.owned().size();
  if (!feed_forward.gated) return features;
  return feed_forward.activation == MlpActivation::kSilu ? 0 : 2 * features;
}

void LayerRunner::allocate(const StageLimits& limits) {
  const DType compute = backend_.compute_dtype();
  const auto rows = [&](int64_t count, DType dtype, int64_t cols) {
    return backend_.allocate(Matrix{.dtype = dtype, .rows = count, .cols = cols}.bytes());
  };
  const auto batch = [&](DType dtype, int64_t cols) { return rows(limits.max_batch_tokens, dtype, cols); };
  const int64_t query = largest([this](int32_t index) { return layer_layout(index).query_width(); });
  const int64_t kv = largest([this](int32_t index) { return layer_layout(index).kv_width(); });
  activations_.normed = batch(compute, config_.hidden_size);
  activations_.qkv = batch(DType::kF32, query + 2 * kv);
  activations_.query = batch(compute, query);
  activations_.attended = batch(compute, query);
  activations_.activated =
      batch(compute, largest([this](int32_t index) { return layer_layout(index).features.owned().size(); }));
  activations_.expanded = batch(DType::kF32, largest([this](int32_t index) { return expanded_columns(index); }));
  activations_.routed = batch(DType::kF32, largest([this](int32_t index) {
                                const auto& moe = layer_config(index).feed_forward.moe;
                                return moe ? moe->expert_count : 0;
                              }));
  if (has_sums_) activations_.sums = batch(DType::kF32, config_.hidden_size);
  if (has_ranks()) {
    activations_.magnitudes = batch(DType::kF32, 1);
    activations_.rank_magnitudes = batch(DType::kF32, layout_.position.size);
  }
  activations_.tail_query = rows(limits.max_tail_rows, compute, query);
  if (largest([this](int32_t index) { return layer_config(index).parallel; }) > 0)
    activations_.tail_normed = rows(limits.max_tail_rows, compute, config_.hidden_size);
}

void LayerRunner::make_rotations() {
  const int32_t head_dim = config_.layers.front().attention.head_dim;
  for (const RopeConfig& rope : config_.ropes) {
    const RotaryFrequencies frequencies = rotary_frequencies(rope, rope.rotary_dim > 0 ? rope.rotary_dim : head_dim);
    rotations_.push_back({backend_.make_vector(frequencies.inverse), frequencies.attention_factor});
  }
  // No rotation: the cosine of 0 is 1.
  const std::vector<float> zeros(static_cast<size_t>(head_dim / 2));
  rotations_.push_back({backend_.make_vector(zeros), 1.0f});
}

tensor::AttentionShape LayerRunner::attention_shape(int32_t index) const {
  const AttentionConfig& attention = layer_config(index).attention;
  const LayerLayout& layout = layer_layout(index);
  return {.head_count = layout.head_count(),
          .kv_head_count = layout.kv_head_count(),
          .head_dim = attention.head_dim,
          .scale = attention.scale,
          .sliding_window = attention.window,
          .causal = !config_.encoder,
          .soft_cap = attention.soft_cap,
          .sinks = weights_[static_cast<size_t>(index)].sinks.get()};
}

tensor::RotaryTable LayerRunner::rotary_table(const AttentionConfig& attention) const {
  const Rotation& rotation = rotations_[static_cast<size_t>(attention.rope.value_or(config_.ropes.size()))];
  tensor::RotaryTable table{.inverse_frequency = rotation.inverse_frequency.get(),
                            .rotary_dim = attention.rope ? rotary_dim(config_, attention) : attention.head_dim,
                            .attention_factor = rotation.attention_factor};
  if (attention.query_scaling) {
    table.query_beta = static_cast<float>(attention.query_scaling->beta);
    table.query_period = attention.query_scaling->original_max_position;
  }
  return table;
}

void LayerRunner::norm(Matrix hidden, const tensor::DeviceVector& weight, const tensor::DeviceVector* bias,
                       Matrix out) {
  switch (config_.norm) {
    case NormKind::kRms:
    case NormKind::kRmsPlusOne: return backend_.rms_norm(hidden, weight, config_.norm_epsilon, out);
    case NormKind::kLayer:
    case NormKind::kLayerInPlace:
      return backend_.layer_norm(hidden, weight, bias, config_.norm_epsilon, config_.norm == NormKind::kLayerInPlace,
                                 out);
  }
}

Matrix LayerRunner::normed_rows(int64_t rows) const {
  return {
      .data = activations_.normed.data(), .dtype = backend_.compute_dtype(), .rows = rows, .cols = config_.hidden_size};
}

Matrix LayerRunner::block_input(Matrix hidden, const tensor::DeviceVector* weight, const tensor::DeviceVector* bias) {
  const Matrix normed = normed_rows(hidden.rows);
  if (weight != nullptr) {
    norm(hidden, *weight, bias, normed);
  } else {
    backend_.convert(hidden, normed);
  }
  return normed;
}

Matrix LayerRunner::project_qkv(int32_t index, Matrix hidden, const tensor::UploadedBatch& batch,
                                tensor::KvCache& cache) {
  const LayerWeights& layer = weights_[static_cast<size_t>(index)];
  const LayerLayout& layout = layer_layout(index);
  const int64_t rows = hidden.rows;
  const Matrix qkv{.data = activations_.qkv.data(),
                   .dtype = DType::kF32,
                   .rows = rows,
                   .cols = layout.query_width() + 2 * layout.kv_width()};
  const Matrix query{
      .data = activations_.query.data(), .dtype = backend_.compute_dtype(), .rows = rows, .cols = layout.query_width()};
  const Matrix input = block_input(hidden, layer.input_norm.get(), layer.input_norm_bias.get());
  backend_.matmul(input, *layer.qkv, layer.qkv_bias.get(), qkv);
  backend_.rotary_store_kv(qkv, attention_shape(index), rotary_table(layer_config(index).attention), layer.q_norm.get(),
                           layer.k_norm.get(), config_.norm_epsilon, batch, cache, index, query);
  return query;
}

void LayerRunner::finish(int32_t index, Matrix query, const tensor::UploadedBatch& batch, const tensor::KvCache& cache,
                         Matrix hidden) {
  attend(index, query, batch, cache, hidden);
  feed_forward(index, batch, normed_rows(hidden.rows), hidden);
}

void LayerRunner::finish_tails(int32_t index, Matrix query, Matrix hidden, const tensor::UploadedIndices& rows,
                               const tensor::UploadedBatch& batch, const tensor::KvCache& cache, Matrix tails) {
  const Matrix tail_query{
      .data = activations_.tail_query.data(), .dtype = query.dtype, .rows = tails.rows, .cols = query.cols};
  backend_.gather_rows(hidden, rows, tails);
  backend_.gather_rows(query, rows, tail_query);
  Matrix attention_input;
  if (layer_config(index).parallel) {
    attention_input = normed_rows(tails.rows);
    attention_input.data = activations_.tail_normed.data();
    backend_.gather_rows(normed_rows(hidden.rows), rows, attention_input);
  }
  attend(index, tail_query, batch, cache, tails);
  feed_forward(index, batch, attention_input, tails);
}

void LayerRunner::attend(int32_t index, Matrix query, const tensor::UploadedBatch& batch, const tensor::KvCache& cache,
                         Matrix hidden) {
  const LayerWeights& layer = weights_[static_cast<size_t>(index)];
  const Matrix attended{
      .data = activations_.attended.data(), .dtype = backend_.compute_dtype(), .rows = query.rows, .cols = query.cols};
  backend_.attention(query, attention_shape(index), batch, cache, index, attended);
  add_product(attended, *layer.output,
              {.bias = layer.output_bias.get(),
               .norm = layer.attention_norm.get(),
               .multiplier = layer_config(index).residual_multiplier},
              hidden);
}

void LayerRunner::add_product(Matrix x, const tensor::PackedWeight& weight, const BlockEnd& end, Matrix hidden) {
  if (!has_ranks() && end.is_plain()) return backend_.matmul_add(x, weight, end.bias, hidden);
  const Matrix sums = block_sums(hidden.rows);
  if (has_ranks() && weight.has_row_scales()) {
    const Matrix own{.data = activations_.magnitudes.data(), .dtype = DType::kF32, .rows = x.rows, .cols = 1};
    const Matrix all{.data = activations_.rank_magnitudes.data(),
                     .dtype = DType::kF32,
                     .rows = x.rows,
                     .cols = layout_.position.size};
    backend_.row_magnitudes(x, own);
    collective_->all_gather(own, all);
    backend_.matmul_row_scaled(x, weight, all, sums);
  } else {
    backend_.matmul(x, weight, nullptr, sums);
  }
  add_sums(sums, end, hidden);
}

Matrix LayerRunner::block_sums(int64_t rows) const {
  return {.data = activations_.sums.data(), .dtype = DType::kF32, .rows = rows, .cols = config_.hidden_size};
}

void LayerRunner::add_sums(Matrix sums, const BlockEnd& end, Matrix hidden) {
  if (has_ranks()) collective_->all_reduce(sums);
  if (end.is_plain()) return backend_.add_sums(sums, end.bias, hidden);
  backend_.add_scaled_sums(sums, end.bias, end.norm, config_.norm_epsilon, end.multiplier, hidden);
}

void LayerRunner::feed_forward(int32_t index, const tensor::UploadedBatch& batch, Matrix attention_input,
                               Matrix hidden) {
  const LayerWeights& layer = weights_[static_cast<size_t>(index)];
  const LayerConfig& config = layer_config(index);
  const Matrix input =
      config.parallel ? attention_input : block_input(hidden, layer.mlp_norm.get(), layer.mlp_norm_bias.get());
  if (config.feed_forward.moe) return run_experts(index, input, batch, hidden);
  add_product(
      activate(index, input), *layer.down,
      {.bias = layer.down_bias.get(), .norm = layer.output_norm.get(), .multiplier = config.residual_multiplier},
      hidden);
}

void LayerRunner::run_experts(int32_t index, Matrix x, const tensor::UploadedBatch& batch, Matrix hidden) {
  const LayerWeights& layer = weights_[static_cast<size_t>(index)];
  const Matrix routed{
      .data = activations_.routed.data(), .dtype = DType::kF32, .rows = hidden.rows, .cols = layer.experts->count()};
  const BlockEnd end{.norm = layer.output_norm.get(), .multiplier = layer_config(index).residual_multiplier};
  backend_.matmul(x, *layer.router, nullptr, routed);
  if (!has_ranks() && end.is_plain()) return backend_.fused_moe(x, routed, *layer.experts, batch, hidden);
  const Matrix sums = block_sums(hidden.rows);
  backend_.fused_moe_sums(x, routed, *layer.experts, batch, sums);
  add_sums(sums, end, hidden);
}

Matrix LayerRunner::activate(int32_t index, Matrix x) {
  const LayerWeights& layer = weights_[static_cast<size_t>(index)];
  const FeedForwardConfig& feed_forward = layer_config(index).feed_forward;
  const int64_t features = layer_layout(index).features.owned().size();
  const Matrix activated{
      .data = activations_.activated.data(), .dtype = backend_.compute_dtype(), .rows = x.rows, .cols = features};
  if (feed_forward.gated && feed_forward.activation == MlpActivation::kSilu) {
    backend_.matmul_silu_mul(x, *layer.gate_up, activated);
    return activated;
  }
  const Matrix expanded{.data = activations_.expanded.data(),
                        .dtype = DType::kF32,
                        .rows = x.rows,
                        .cols = feed_forward.gated ? 2 * features : features};
  backend_.matmul(x, feed_forward.gated ? *layer.gate_up : *layer.up, layer.up_bias.get(), expanded);
  if (feed_forward.gated) {
    backend_.gelu_tanh_mul(expanded, activated);
  } else {
    backend_.gelu(expanded, activated);
  }
  return activated;
}

}  // namespace millrace::model
