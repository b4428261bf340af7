#include "model/feed_forward.h"

namespace millrace::model {

using tensor::DType;
using tensor::Matrix;

FeedForward::FeedForward(const ModelConfig& config, LayerRange range, tensor::Backend& backend,
                         const RankLayout& layout, const std::vector<LayerWeights>& weights, ResidualStream& stream,
                         int32_t max_rows)
    : config_(config),
      range_(range),
      backend_(backend),
      layout_(layout),
      weights_(weights),
      stream_(stream),
      max_rows_(max_rows) {
  allocate();
}

void FeedForward::allocate() {
  const DType compute = backend_.compute_dtype();
  const auto rows = [&](int64_t count, DType dtype, int64_t cols) {
    return backend_.allocate(Matrix{.dtype = dtype, .rows = count, .cols = cols}.bytes());
  };
  const auto batch = [&](DType dtype, int64_t cols) { return rows(max_rows_, dtype, cols); };
  activated_ = batch(compute, largest_of(range_, [this](int32_t index) { return features(index); }));
  expanded_ = batch(DType::kF32, largest_of(range_, [this](int32_t index) { return expanded_columns(index); }));
  const int64_t experts = max_experts();
  routed_ = batch(DType::kF32, experts);
  const auto some_shared = [this](const auto& has) {
    return largest_of(range_, [&](int32_t index) {
             const auto& moe = layer_config(index).feed_forward.moe;
             return moe && moe->shared && has(*moe->shared) ? 1 : 0;
           }) > 0;
  };
  if (some_shared([](const SharedExpertConfig&) { return true; }))
    shared_sums_ = batch(DType::kF32, config_.hidden_size);
  if (some_shared([](const SharedExpertConfig& shared) { return shared.has_gate; }))
    shared_gates_ = batch(DType::kF32, 1);
  if (layout_.shares_experts() && experts > 0) {
    const int64_t inputs = largest_of(range_, [this](int32_t index) { return expert_inputs(index); });
    all_rows_ = rows(exchanged_rows(), compute, inputs);
    all_routed_ = rows(exchanged_rows(), DType::kF32, experts);
    all_sums_ = rows(exchanged_rows(), DType::kF32, inputs);
  }
  const int64_t latent = largest_of(range_, [this](int32_t index) {
    const auto& moe = layer_config(index).feed_forward.moe;
    return moe ? moe->latent_size : 0;
  });
  latent_rows_ = batch(compute, latent);
  latent_sums_ = batch(DType::kF32, latent);
  if (largest_of(range_, [this](int32_t index) { return has_own_norms(index); }) > 0)
    joined_sums_ = batch(DType::kF32, config_.hidden_size);
}

int64_t FeedForward::max_experts() const {
  return largest_of(range_, [this](int32_t index) {
    const auto& moe = layer_config(index).feed_forward.moe;
    return moe ? moe->expert_count : 0;
  });
}

int64_t FeedForward::expert_inputs(int32_t index) const {
  const auto& moe = layer_config(index).feed_forward.moe;
  return moe ? moe->input_size(config_.hidden_size) : 0;
}

void FeedForward::set_expert_exchange(tensor::ExpertExchange* exchange) {
  const int64_t experts = max_experts();
  if (exchange != nullptr && experts > 0) {
    exchange->reserve({.rows = max_rows_,
                       .all_rows = exchanged_rows(),
                       .hidden = largest_of(range_, [this](int32_t index) { return expert_inputs(index); }),
                       .experts = experts,
                       .compute_dtype = backend_.compute_dtype()});
  }
  expert_exchange_ = exchange;
}

int64_t FeedForward::expanded_columns(int32_t index) const {
  const FeedForwardConfig& feed_forward = layer_config(index).feed_forward;
  const int64_t features = this->features(index);
  if (!feed_forward.gated) return features;
  return feed_forward.fuses_activation() ? 0 : 2 * features;
}

void FeedForward::run(int32_t index, const tensor::UploadedBatch& batch, Matrix attention_input, Matrix hidden) {
  const LayerWeights& layer = weights_[static_cast<size_t>(index)];
  const LayerConfig& config = layer_config(index);
  if (!config.has_feed_forward()) return;
  const Matrix input =
      config.parallel ? attention_input : stream_.input(hidden, layer.mlp_norm.get(), layer.mlp_norm_bias.get());
  if (has_own_norms(index)) {
    run_normed_experts(index, input, batch, hidden);
  } else if (config.feed_forward.moe) {
    run_experts(index, input, batch, hidden);
  } else {
    stream_.add_product(activate(index, input), *layer.down,
                        {.bias = layer.down_bias.get(),
                         .norm = layer.output_norm.get(),
                         .multiplier = config.residual_multiplier * config.feed_forward.output_factor},
                        hidden);
  }
}

bool FeedForward::has_own_norms(int32_t index) const {
  const auto& moe = layer_config(index).feed_forward.moe;
  return moe && moe->own_norms;
}

void FeedForward::run_normed_experts(int32_t index, Matrix x, const tensor::UploadedBatch& batch, Matrix hidden) {
  const LayerWeights& layer = weights_[static_cast<size_t>(index)];
  const Matrix joined{
      .data = joined_sums_.data(), .dtype = DType::kF32, .rows = hidden.rows, .cols = config_.hidden_size};
  stream_.multiply(activate(index, x), *layer.down, joined);
  backend_.rms_norm_in_place(joined, *layer.shared_output_norm, config_.norm_epsilon);
  const Matrix routed{
      .data = routed_.data(), .dtype = DType::kF32, .rows = hidden.rows, .cols = layer.experts->count()};
  backend_.matmul(stream_.input(hidden, layer.router_norm.get(), nullptr), *layer.router, layer.router_bias.get(),
                  routed);
  const Matrix sums = stream_.sums(hidden.rows);
  sum_experts(*layer.experts, stream_.input(hidden, layer.experts_norm.get(), nullptr), routed, batch, sums);
  stream_.add(sums, {.norm = layer.experts_output_norm.get()}, joined);
  const LayerConfig& config = layer_config(index);
  stream_.add(
      joined,
      {.norm = layer.output_norm.get(), .multiplier = config.residual_multiplier * config.feed_forward.output_factor},
      hidden);
}

void FeedForward::run_experts(int32_t index, Matrix x, const tensor::UploadedBatch& batch, Matrix hidden) {
  const LayerWeights& layer = weights_[static_cast<size_t>(index)];
  const Matrix routed{
      .data = routed_.data(), .dtype = DType::kF32, .rows = hidden.rows, .cols = layer.experts->count()};
  const LayerConfig& config = layer_config(index);
  const BlockEnd end{.norm = layer.output_norm.get(),
                     .multiplier = config.residual_multiplier * config.feed_forward.output_factor};
  const bool has_shared = config.feed_forward.moe->shared.has_value();
  backend_.matmul(x, *layer.router, layer.router_bias.get(), routed);
  if (layer.experts_input) {
    add_latent_experts(index, x, routed, batch, end, hidden);
    return;
  }
  if (!stream_.has_ranks() && expert_exchange_ == nullptr && end.is_plain()) {
    backend_.fused_moe(x, routed, *layer.experts, batch, hidden);
    if (has_shared) add_shared_expert(index, x, hidden);
    return;
  }
  const Matrix sums = stream_.sums(hidden.rows);
  sum_experts(*layer.experts, x, routed, batch, sums);
  if (!has_shared || end.is_plain()) {
    stream_.add(sums, end, hidden);
    if (has_shared) add_shared_expert(index, x, hidden);
    return;
  }
  // What follows the block sees the sum of both.
  add_shared_expert(index, x, sums);
  stream_.add(sums, end, hidden);
}

void FeedForward::add_latent_experts(int32_t index, Matrix x, Matrix routed, const tensor::UploadedBatch& batch,
                                     const BlockEnd& end, Matrix hidden) {
  const LayerWeights& layer = weights_[static_cast<size_t>(index)];
  const int64_t latent = expert_inputs(index);
  const Matrix rows{.data = latent_rows_.data(), .dtype = backend_.compute_dtype(), .rows = x.rows, .cols = latent};
  const Matrix latent_sums{.data = latent_sums_.data(), .dtype = DType::kF32, .rows = x.rows, .cols = latent};
  backend_.matmul(x, *layer.experts_input, nullptr, latent_sums);
  backend_.convert(latent_sums, rows);
  sum_experts(*layer.experts, rows, routed, batch, latent_sums);
  backend_.convert(latent_sums, rows);
  const bool has_shared = layer_config(index).feed_forward.moe->shared.has_value();
  if (end.is_plain()) {
    backend_.matmul_add(rows, *layer.experts_output, nullptr, hidden);
    if (has_shared) add_shared_expert(index, x, hidden);
    return;
  }
  const Matrix sums = stream_.sums(hidden.rows);
  backend_.matmul(rows, *layer.experts_output, nullptr, sums);
  if (has_shared) add_shared_expert(index, x, sums);
  stream_.add(sums, end, hidden);
}

void FeedForward::sum_experts(const tensor::Experts& experts, Matrix x, Matrix routed,
                              const tensor::UploadedBatch& batch, Matrix sums) {
  if (expert_exchange_ != nullptr) return exchange_experts(experts, x, routed, sums);
  backend_.fused_moe_sums(x, routed, experts, batch, sums);
  stream_.add_over_ranks(sums);
}

void FeedForward::exchange_experts(const tensor::Experts& experts, Matrix x, Matrix routed, Matrix sums) {
  Matrix all_rows{.data = all_rows_.data(), .dtype = x.dtype, .rows = exchanged_rows(), .cols = x.cols};
  Matrix all_routed{.data = all_routed_.data(), .dtype = DType::kF32, .rows = exchanged_rows(), .cols = routed.cols};
  const int64_t rows = expert_exchange_->dispatch(x, routed, all_rows, all_routed);
  all_rows.rows = all_routed.rows = rows;
  if (rows == 0) return;
  const Matrix all_sums{.data = all_sums_.data(), .dtype = DType::kF32, .rows = rows, .cols = x.cols};
  backend_.fused_moe_sums(all_rows, all_routed, experts, exchanged_batch_.of(rows, backend_), all_sums);
  expert_exchange_->combine(all_sums, sums);
}

void FeedForward::exchange_without_rows(int32_t index) {
  const LayerWeights& layer = weights_[static_cast<size_t>(index)];
  if (!layer.experts) return;
  const Matrix routed{.data = routed_.data(), .dtype = DType::kF32, .rows = 0, .cols = layer.experts->count()};
  Matrix rows = stream_.normed(0);
  Matrix sums = stream_.sums(0);
  rows.cols = sums.cols = expert_inputs(index);
  exchange_experts(*layer.experts, rows, routed, sums);
}

void FeedForward::add_shared_expert(int32_t index, Matrix x, Matrix hidden) {
  const LayerWeights& layer = weights_[static_cast<size_t>(index)];
  const Matrix activated = activate(index, x);
  if (!stream_.has_ranks() && !layer.shared_expert_gate)
    return backend_.matmul_add(activated, *layer.down, nullptr, hidden);
  const Matrix sums{
      .data = shared_sums_.data(), .dtype = DType::kF32, .rows = hidden.rows, .cols = config_.hidden_size};
  stream_.multiply(activated, *layer.down, sums);
  if (!layer.shared_expert_gate) return backend_.add_sums(sums, nullptr, hidden);
  const Matrix gates{.data = shared_gates_.data(), .dtype = DType::kF32, .rows = hidden.rows, .cols = 1};
  backend_.matmul(x, *layer.shared_expert_gate, nullptr, gates);
  backend_.add_gated_sums(sums, gates, hidden);
}

Matrix FeedForward::activate(int32_t index, Matrix x) {
  const LayerWeights& layer = weights_[static_cast<size_t>(index)];
  const FeedForwardConfig& feed_forward = layer_config(index).feed_forward;
  const int64_t features = this->features(index);
  const Matrix activated{
      .data = activated_.data(), .dtype = backend_.compute_dtype(), .rows = x.rows, .cols = features};
  if (feed_forward.fuses_activation()) {
    backend_.matmul_silu_mul(x, *layer.gate_up, activated);
    return activated;
  }
  const Matrix expanded{.data = expanded_.data(),
                        .dtype = DType::kF32,
                        .rows = x.rows,
                        .cols = feed_forward.gated ? 2 * features : features};
  backend_.matmul(x, feed_forward.gated ? *layer.gate_up : *layer.up, layer.up_bias.get(), expanded);
  switch (feed_forward.activation) {
    case MlpActivation::kSilu: backend_.scaled_silu_mul(expanded, feed_forward.gate_factor, activated); break;
    case MlpActivation::kGelu: backend_.gelu(expanded, activated); break;
    case MlpActivation::kReluSquared: backend_.relu_squared(expanded, activated); break;
    case MlpActivation::kGeluTanh: backend_.gelu_tanh_mul(expanded, activated); break;
  }
  return activated;
}

}  // namespace millrace::model
