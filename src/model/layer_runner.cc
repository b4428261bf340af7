#include "model/layer_runner.h"

#include <algorithm>

#include "base/check.h"
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
      max_batch_tokens_(limits.max_batch_tokens),
      has_sums_(layout.position.size > 1 || layout.shares_experts() || needs(config, tensor::Feature::kScaledSums)) {
  make_rotations();
  allocate(limits);
}

int64_t LayerRunner::max_experts() const {
  return largest([this](int32_t index) {
    const auto& moe = layer_config(index).feed_forward.moe;
    return moe ? moe->expert_count : 0;
  });
}

int64_t LayerRunner::expert_inputs(int32_t index) const {
  const auto& moe = layer_config(index).feed_forward.moe;
  return moe ? moe->input_size(config_.hidden_size) : 0;
}

void LayerRunner::set_expert_exchange(tensor::ExpertExchange* exchange) {
  const int64_t experts = max_experts();
  if (exchange != nullptr && experts > 0) {
    exchange->reserve({.rows = max_batch_tokens_,
                       .all_rows = exchanged_rows(),
                       .hidden = largest([this](int32_t index) { return expert_inputs(index); }),
                       .experts = experts,
                       .compute_dtype = backend_.compute_dtype()});
  }
  expert_exchange_ = exchange;
}

int64_t LayerRunner::expanded_columns(int32_t index) const {
  const FeedForwardConfig& feed_forward = layer_config(index).feed_forward;
  const int64_t features = layer_layout(index).features.owned().size();
  if (!feed_forward.gated) return features;
  return feed_forward.fuses_activation() ? 0 : 2 * features;
}

void LayerRunner::allocate(const StageLimits& limits) {
  const DType compute = backend_.compute_dtype();
  const auto rows = [&](int64_t count, DType dtype, int64_t cols) {
    return backend_.allocate(Matrix{.dtype = dtype, .rows = count, .cols = cols}.bytes());
  };
  const auto batch = [&](DType dtype, int64_t cols) { return rows(limits.max_batch_tokens, dtype, cols); };
  allocate_mixers(limits);
  activations_.normed = batch(compute, config_.hidden_size);
  activations_.activated =
      batch(compute, largest([this](int32_t index) { return layer_layout(index).features.owned().size(); }));
  activations_.expanded = batch(DType::kF32, largest([this](int32_t index) { return expanded_columns(index); }));
  const int64_t experts = max_experts();
  activations_.routed = batch(DType::kF32, experts);
  const auto count_layers = [this](const auto& has) {
    return largest([&](int32_t index) {
      const auto& moe = layer_config(index).feed_forward.moe;
      return moe && moe->shared && has(*moe->shared) ? 1 : 0;
    });
  };
  if (count_layers([](const SharedExpertConfig&) { return true; }) > 0)
    activations_.shared_sums = batch(DType::kF32, config_.hidden_size);
  if (count_layers([](const SharedExpertConfig& shared) { return shared.has_gate; }) > 0)
    activations_.shared_gates = batch(DType::kF32, 1);
  if (layout_.shares_experts() && experts > 0) {
    const int64_t inputs = largest([this](int32_t index) { return expert_inputs(index); });
    activations_.all_rows = rows(exchanged_rows(), compute, inputs);
    activations_.all_routed = rows(exchanged_rows(), DType::kF32, experts);
    activations_.all_sums = rows(exchanged_rows(), DType::kF32, inputs);
  }
  const int64_t latent = largest([this](int32_t index) {
    const auto& moe = layer_config(index).feed_forward.moe;
    return moe ? moe->latent_size : 0;
  });
  activations_.latent_rows = batch(compute, latent);
  activations_.latent_sums = batch(DType::kF32, latent);
  if (largest([this](int32_t index) { return has_own_norms(index); }) > 0)
    activations_.joined_sums = batch(DType::kF32, config_.hidden_size);
  const int64_t input_width = largest([this](int32_t index) { return layer_config(index).input_width; });
  activations_.input_gates = batch(DType::kF32, input_width);
  activations_.gated_inputs = batch(compute, input_width);
  if (has_sums_) activations_.sums = batch(DType::kF32, config_.hidden_size);
  if (has_ranks()) {
    activations_.magnitudes = batch(DType::kF32, 1);
    activations_.rank_magnitudes = batch(DType::kF32, layout_.position.size);
  }
  if (largest([this](int32_t index) { return layer_config(index).parallel; }) > 0)
    activations_.tail_normed = rows(limits.max_tail_rows, compute, config_.hidden_size);
}

void LayerRunner::allocate_mixers(const StageLimits& limits) {
  const DType compute = backend_.compute_dtype();
  const auto rows = [&](int64_t count, DType dtype, int64_t cols) {
    return backend_.allocate(Matrix{.dtype = dtype, .rows = count, .cols = cols}.bytes());
  };
  const auto batch = [&](DType dtype, int64_t cols) { return rows(limits.max_batch_tokens, dtype, cols); };
  const auto attends = [this](int32_t index) { return layer_config(index).attends; };
  const auto is_latent = [&](int32_t index) {
    return attends(index) && layer_config(index).attention.latent.has_value();
  };
  const auto per_head = [&](int64_t width, int32_t index) { return attends(index) && !is_latent(index) ? width : 0; };
  const int64_t query = largest([&](int32_t index) { return per_head(layer_layout(index).query_width(), index); });
  const int64_t kv = largest([&](int32_t index) { return per_head(layer_layout(index).kv_width(), index); });
  const int64_t mixed = largest([this](int32_t index) { return layer_layout(index).mixer_outputs.owned().size(); });
  activations_.qkv = batch(DType::kF32, query + 2 * kv);
  activations_.query = batch(compute, query);
  activations_.mixed = batch(compute, mixed);
  activations_.tail_mixed = rows(limits.max_tail_rows, compute, mixed);
  if (largest([this](int32_t index) { return layer_config(index).attention.output_gate; }) > 0) {
    activations_.gates = batch(DType::kF32, query);
    activations_.tail_gates = rows(limits.max_tail_rows, DType::kF32, query);
  }
  activations_.attended =
      batch(compute, largest([&](int32_t index) { return attends(index) ? layer_layout(index).query_width() : 0; }));
  int64_t latent_query = 0;
  for (int32_t index = 0; index < range_.size() && latent_query == 0; ++index) {
    if (!is_latent(index)) continue;
    const tensor::LatentShape shape = latent_shape(layer_config(index).attention, layer_layout(index).head_count());
    latent_.emplace(backend_, *layer_config(index).attention.latent, shape, limits.max_batch_tokens,
                    limits.max_tail_rows);
    latent_query = shape.query_width();
  }
  for (int32_t index = 0; index < range_.size() && !mixer_; ++index) {
    const auto& recurrent = layer_config(index).recurrent;
    if (recurrent)
      mixer_.emplace(backend_, *recurrent, layout_.position.size, config_.norm_epsilon, limits.max_batch_tokens);
  }
  const Matrix tail_query{.dtype = compute, .rows = limits.max_tail_rows, .cols = query};
  const Matrix latent_tail_query{.dtype = DType::kF32, .rows = limits.max_tail_rows, .cols = latent_query};
  activations_.tail_query = backend_.allocate(std::max(tail_query.bytes(), latent_tail_query.bytes()));
}

void LayerRunner::make_rotations() {
  // Layers with heads of another size have a rotation of their own, which names its channels.
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
          .sliding_window = attention.chunked ? 0 : attention.window,
          .chunk_size = attention.chunked ? attention.window : 0,
          .causal = !config_.encoder,
          .soft_cap = attention.soft_cap,
          .sinks = weights_[static_cast<size_t>(index)].sinks.get(),
          .value_norm = attention.value_norm,
          .values_are_keys = attention.values_are_keys,
          .queries_only = attention.keys_of.has_value()};
}

tensor::RotaryTable LayerRunner::rotary_table(const AttentionConfig& attention) const {
  const Rotation& rotation = rotations_[static_cast<size_t>(attention.rope.value_or(config_.ropes.size()))];
  tensor::RotaryTable table{.inverse_frequency = rotation.inverse_frequency.get(),
                            .rotary_dim = attention.rope ? rotary_dim(config_, attention) : attention.head_dim,
                            .attention_factor = rotation.attention_factor};
  if (attention.query_scaling) {
    table.query_beta = static_cast<float>(attention.query_scaling->beta);
    table.query_period = attention.query_scaling->original_max_position;
    table.query_offset = attention.query_scaling->offset;
  }
  return table;
}

LatentProjection::Layer LayerRunner::latent_layer(int32_t index, int32_t cache_layer) const {
  const AttentionConfig& attention = layer_config(index).attention;
  return {.weights = *weights_[static_cast<size_t>(index)].latent,
          .config = *attention.latent,
          .shape = latent_shape(attention, layer_layout(index).head_count()),
          .rotary = rotary_table(attention),
          .cache_layer = cache_layer};
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

BegunLayer LayerRunner::begin(int32_t index, Matrix hidden, const LayerCaches& kept) {
  const LayerWeights& layer = weights_[static_cast<size_t>(index)];
  BegunLayer begun;
  if (!layer_config(index).mixes()) return begun;
  const Matrix input = block_input(hidden, layer.input_norm.get(), layer.input_norm_bias.get());
  if (layer.recurrent) {
    CHECK(kept.states->batch.layout.drafts.empty() || backend_.computes(tensor::Feature::kStatesBeforeDrafts),
          "{} keeps no states before drafts", backend_.description());
    begun.mixed = {.data = activations_.mixed.data(),
                   .dtype = backend_.compute_dtype(),
                   .rows = hidden.rows,
                   .cols = layer_layout(index).mixer_outputs.owned().size()};
    mixer_->mix(*layer.recurrent, input,
                {.batch = kept.states->batch, .cache = kept.states->cache, .layer = kept.states->layer}, begun.mixed);
  }
  if (layer_config(index).attends) begun.query = begin_attention(index, input, *kept.attention);
  if (layer.latent && latent_->indexer() != nullptr)
    begun.chosen = latent_->indexer()->chosen(kept.attention->batch.layout);
  return begun;
}

Matrix LayerRunner::begin_attention(int32_t index, Matrix input, const LayerCache& kept) {
  const LayerWeights& layer = weights_[static_cast<size_t>(index)];
  const LayerLayout& layout = layer_layout(index);
  const int64_t rows = input.rows;
  const Matrix query{
      .data = activations_.query.data(), .dtype = backend_.compute_dtype(), .rows = rows, .cols = layout.query_width()};
  if (layer.latent) return latent_->project(latent_layer(index, kept.layer), input, kept.batch, kept.cache);
  const AttentionConfig& attention = layer_config(index).attention;
  const int64_t stored = attention.keys_of ? 0 : attention.values_are_keys ? 1 : 2;  // keys, values or both
  const Matrix qkv{.data = activations_.qkv.data(),
                   .dtype = DType::kF32,
                   .rows = rows,
                   .cols = layout.query_width() + stored * layout.kv_width()};
  backend_.matmul(input, *layer.qkv, layer.qkv_bias.get(), qkv);
  if (layer.query_gate) backend_.matmul(input, *layer.query_gate, nullptr, gates_in(activations_.gates, index, rows));
  backend_.rotary_store_kv(qkv, attention_shape(index), rotary_table(attention), layer.q_norm.get(), layer.k_norm.get(),
                           config_.norm_epsilon, kept.batch, kept.cache, kept.layer, query);
  return query;
}

Matrix LayerRunner::gates_in(const tensor::Buffer& buffer, int32_t index, int64_t rows) const {
  return {.data = buffer.data(), .dtype = DType::kF32, .rows = rows, .cols = layer_layout(index).query_width()};
}

void LayerRunner::finish(int32_t index, const BegunLayer& begun, const LayerCaches& kept, Matrix hidden) {
  add_mixed(index, begun, activations_.gates, kept, hidden);
  feed_forward(index, kept.batch, normed_rows(hidden.rows), hidden);
  end_layer(index, kept.inputs, hidden);
}

void LayerRunner::finish_tails(int32_t index, const BegunLayer& begun, Matrix hidden,
                               const tensor::UploadedIndices& rows, const LayerCaches& kept, Matrix tails) {
  const auto gathered = [&](Matrix all, const tensor::Buffer& buffer) {
    if (all.rows == 0) return all;
    const Matrix some{.data = buffer.data(), .dtype = all.dtype, .rows = tails.rows, .cols = all.cols};
    backend_.gather_rows(all, rows, some);
    return some;
  };
  backend_.gather_rows(hidden, rows, tails);
  BegunLayer tail{.query = gathered(begun.query, activations_.tail_query),
                  .mixed = gathered(begun.mixed, activations_.tail_mixed),
                  .chosen = {}};
  if (begun.chosen.cols > 0) tail.chosen = latent_->indexer()->gather(begun.chosen, rows);
  if (weights_[static_cast<size_t>(index)].query_gate)
    backend_.gather_rows(gates_in(activations_.gates, index, hidden.rows), rows,
                         gates_in(activations_.tail_gates, index, tails.rows));
  Matrix attention_input;
  if (layer_config(index).parallel) {
    attention_input = normed_rows(tails.rows);
    attention_input.data = activations_.tail_normed.data();
    backend_.gather_rows(normed_rows(hidden.rows), rows, attention_input);
  }
  add_mixed(index, tail, activations_.tail_gates, kept, tails);
  feed_forward(index, kept.batch, attention_input, tails);
  end_layer(index, kept.inputs, tails);
}

Matrix LayerRunner::attended(int32_t index, const BegunLayer& begun, const LayerCache& kept) {
  const Matrix query = begun.query;
  const LayerWeights& layer = weights_[static_cast<size_t>(index)];
  const Matrix out{.data = activations_.attended.data(),
                   .dtype = backend_.compute_dtype(),
                   .rows = query.rows,
                   .cols = layer_layout(index).query_width()};
  if (layer.latent) {
    const LatentProjection::Layer latent = latent_layer(index, kept.layer);
    const tensor::LatentExpansion& expansion = *layer.latent->expansion;
    if (begun.chosen.cols > 0)
      backend_.sparse_latent_attention(query, latent.shape, latent.rotary, expansion, begun.chosen, kept.batch,
                                       kept.cache, kept.layer, out);
    else
      backend_.latent_attention(query, latent.shape, latent.rotary, expansion, kept.batch, kept.cache, kept.layer, out);
  } else {
    backend_.attention(query, attention_shape(index), kept.batch, kept.cache, kept.layer, out);
  }
  return out;
}

void LayerRunner::add_mixed(int32_t index, const BegunLayer& begun, const tensor::Buffer& gates,
                            const LayerCaches& kept, Matrix hidden) {
  const LayerWeights& layer = weights_[static_cast<size_t>(index)];
  const LayerConfig& config = layer_config(index);
  if (config.attends) {
    const Matrix out = attended(index, begun, *kept.attention);
    if (layer.query_gate) backend_.gate(out, gates_in(gates, index, out.rows));
    add_product(out, *layer.output,
                {.bias = layer.output_bias.get(),
                 .norm = layer.attention_norm.get(),
                 .multiplier = config.residual_multiplier * config.attention.output_factor},
                hidden);
  }
  if (layer.recurrent)
    add_product(begun.mixed, *layer.recurrent->output,
                {.bias = layer.recurrent->output_bias.get(),
                 .norm = layer.attention_norm.get(),
                 .multiplier = config.residual_multiplier * output_factor(*config.recurrent)},
                hidden);
}

void LayerRunner::add_product(Matrix x, const tensor::PackedWeight& weight, const BlockEnd& end, Matrix hidden) {
  if (!has_ranks() && end.is_plain()) return backend_.matmul_add(x, weight, end.bias, hidden);
  const Matrix sums = block_sums(hidden.rows);
  multiply(x, weight, sums);
  add_sums(sums, end, hidden);
}

void LayerRunner::multiply(Matrix x, const tensor::PackedWeight& weight, Matrix sums) {
  if (!has_ranks()) return backend_.matmul(x, weight, nullptr, sums);
  if (!weight.has_row_scales()) {
    backend_.matmul(x, weight, nullptr, sums);
    return collective_->all_reduce(sums);
  }
  const Matrix own{.data = activations_.magnitudes.data(), .dtype = DType::kF32, .rows = x.rows, .cols = 1};
  const Matrix all{
      .data = activations_.rank_magnitudes.data(), .dtype = DType::kF32, .rows = x.rows, .cols = layout_.position.size};
  const tensor::IntMatrix integers{.data = reinterpret_cast<int32_t*>(sums.data), .rows = sums.rows, .cols = sums.cols};
  backend_.row_magnitudes(x, own);
  collective_->all_gather(own, all);
  backend_.matmul_integers(x, weight, all, integers);
  collective_->all_reduce(integers);
  backend_.scale_integers(integers, weight, all, sums);
}

Matrix LayerRunner::block_sums(int64_t rows) const {
  return {.data = activations_.sums.data(), .dtype = DType::kF32, .rows = rows, .cols = config_.hidden_size};
}

void LayerRunner::add_sums(Matrix sums, const BlockEnd& end, Matrix hidden) {
  if (end.is_plain()) return backend_.add_sums(sums, end.bias, hidden);
  backend_.add_scaled_sums(sums, end.bias, end.norm, config_.norm_epsilon, end.multiplier, hidden);
}

void LayerRunner::feed_forward(int32_t index, const tensor::UploadedBatch& batch, Matrix attention_input,
                               Matrix hidden) {
  const LayerWeights& layer = weights_[static_cast<size_t>(index)];
  const LayerConfig& config = layer_config(index);
  if (!config.has_feed_forward()) return;
  const Matrix input =
      config.parallel ? attention_input : block_input(hidden, layer.mlp_norm.get(), layer.mlp_norm_bias.get());
  if (has_own_norms(index)) {
    run_normed_experts(index, input, batch, hidden);
  } else if (config.feed_forward.moe) {
    run_experts(index, input, batch, hidden);
  } else {
    add_product(activate(index, input), *layer.down,
                {.bias = layer.down_bias.get(),
                 .norm = layer.output_norm.get(),
                 .multiplier = config.residual_multiplier * config.feed_forward.output_factor},
                hidden);
  }
}

void LayerRunner::end_layer(int32_t index, Matrix inputs, Matrix hidden) {
  const LayerWeights& layer = weights_[static_cast<size_t>(index)];
  if (layer.input_gate) {
    const int64_t width = layer_config(index).input_width;
    const Matrix gates{
        .data = activations_.input_gates.data(), .dtype = DType::kF32, .rows = hidden.rows, .cols = width};
    const Matrix gated{.data = activations_.gated_inputs.data(),
                       .dtype = backend_.compute_dtype(),
                       .rows = hidden.rows,
                       .cols = width};
    backend_.matmul(block_input(hidden, nullptr, nullptr), *layer.input_gate, nullptr, gates);
    backend_.gelu_tanh_gate(gates, inputs, index * width, gated);
    const Matrix sums = block_sums(hidden.rows);
    backend_.matmul(gated, *layer.input_projection, nullptr, sums);
    add_sums(sums, {.norm = layer.input_output_norm.get()}, hidden);
  }
  if (layer.output_scale != 1.0f) backend_.scale(hidden, layer.output_scale);
}

bool LayerRunner::has_own_norms(int32_t index) const {
  const auto& moe = layer_config(index).feed_forward.moe;
  return moe && moe->own_norms;
}

void LayerRunner::run_normed_experts(int32_t index, Matrix x, const tensor::UploadedBatch& batch, Matrix hidden) {
  const LayerWeights& layer = weights_[static_cast<size_t>(index)];
  const Matrix joined{
      .data = activations_.joined_sums.data(), .dtype = DType::kF32, .rows = hidden.rows, .cols = config_.hidden_size};
  multiply(activate(index, x), *layer.down, joined);
  backend_.rms_norm_in_place(joined, *layer.shared_output_norm, config_.norm_epsilon);
  const Matrix routed{
      .data = activations_.routed.data(), .dtype = DType::kF32, .rows = hidden.rows, .cols = layer.experts->count()};
  backend_.matmul(block_input(hidden, layer.router_norm.get(), nullptr), *layer.router, layer.router_bias.get(),
                  routed);
  const Matrix sums = block_sums(hidden.rows);
  sum_experts(*layer.experts, block_input(hidden, layer.experts_norm.get(), nullptr), routed, batch, sums);
  add_sums(sums, {.norm = layer.experts_output_norm.get()}, joined);
  const LayerConfig& config = layer_config(index);
  add_sums(
      joined,
      {.norm = layer.output_norm.get(), .multiplier = config.residual_multiplier * config.feed_forward.output_factor},
      hidden);
}

void LayerRunner::run_experts(int32_t index, Matrix x, const tensor::UploadedBatch& batch, Matrix hidden) {
  const LayerWeights& layer = weights_[static_cast<size_t>(index)];
  const Matrix routed{
      .data = activations_.routed.data(), .dtype = DType::kF32, .rows = hidden.rows, .cols = layer.experts->count()};
  const LayerConfig& config = layer_config(index);
  const BlockEnd end{.norm = layer.output_norm.get(),
                     .multiplier = config.residual_multiplier * config.feed_forward.output_factor};
  const bool has_shared = config.feed_forward.moe->shared.has_value();
  backend_.matmul(x, *layer.router, layer.router_bias.get(), routed);
  if (layer.experts_input) {
    add_latent_experts(index, x, routed, batch, end, hidden);
    return;
  }
  if (!has_ranks() && expert_exchange_ == nullptr && end.is_plain()) {
    backend_.fused_moe(x, routed, *layer.experts, batch, hidden);
    if (has_shared) add_shared_expert(index, x, hidden);
    return;
  }
  const Matrix sums = block_sums(hidden.rows);
  sum_experts(*layer.experts, x, routed, batch, sums);
  if (!has_shared || end.is_plain()) {
    add_sums(sums, end, hidden);
    if (has_shared) add_shared_expert(index, x, hidden);
    return;
  }
  // What follows the block sees the sum of both.
  add_shared_expert(index, x, sums);
  add_sums(sums, end, hidden);
}

void LayerRunner::add_latent_experts(int32_t index, Matrix x, Matrix routed, const tensor::UploadedBatch& batch,
                                     const BlockEnd& end, Matrix hidden) {
  const LayerWeights& layer = weights_[static_cast<size_t>(index)];
  const int64_t latent = expert_inputs(index);
  const Matrix rows{
      .data = activations_.latent_rows.data(), .dtype = backend_.compute_dtype(), .rows = x.rows, .cols = latent};
  const Matrix latent_sums{
      .data = activations_.latent_sums.data(), .dtype = DType::kF32, .rows = x.rows, .cols = latent};
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
  const Matrix sums = block_sums(hidden.rows);
  backend_.matmul(rows, *layer.experts_output, nullptr, sums);
  if (has_shared) add_shared_expert(index, x, sums);
  add_sums(sums, end, hidden);
}

void LayerRunner::sum_experts(const tensor::Experts& experts, Matrix x, Matrix routed,
                              const tensor::UploadedBatch& batch, Matrix sums) {
  if (expert_exchange_ != nullptr) return exchange_experts(experts, x, routed, sums);
  backend_.fused_moe_sums(x, routed, experts, batch, sums);
  if (has_ranks()) collective_->all_reduce(sums);
}

void LayerRunner::exchange_experts(const tensor::Experts& experts, Matrix x, Matrix routed, Matrix sums) {
  Matrix all_rows{.data = activations_.all_rows.data(), .dtype = x.dtype, .rows = exchanged_rows(), .cols = x.cols};
  Matrix all_routed{
      .data = activations_.all_routed.data(), .dtype = DType::kF32, .rows = exchanged_rows(), .cols = routed.cols};
  const int64_t rows = expert_exchange_->dispatch(x, routed, all_rows, all_routed);
  all_rows.rows = all_routed.rows = rows;
  if (rows == 0) return;
  const Matrix all_sums{.data = activations_.all_sums.data(), .dtype = DType::kF32, .rows = rows, .cols = x.cols};
  backend_.fused_moe_sums(all_rows, all_routed, experts, exchanged_batch_.of(rows, backend_), all_sums);
  expert_exchange_->combine(all_sums, sums);
}

void LayerRunner::exchange_without_rows(int32_t index) {
  const LayerWeights& layer = weights_[static_cast<size_t>(index)];
  if (!layer.experts) return;
  const Matrix routed{
      .data = activations_.routed.data(), .dtype = DType::kF32, .rows = 0, .cols = layer.experts->count()};
  Matrix rows = normed_rows(0);
  Matrix sums = block_sums(0);
  rows.cols = sums.cols = expert_inputs(index);
  exchange_experts(*layer.experts, rows, routed, sums);
}

void LayerRunner::add_shared_expert(int32_t index, Matrix x, Matrix hidden) {
  const LayerWeights& layer = weights_[static_cast<size_t>(index)];
  const Matrix activated = activate(index, x);
  if (!has_ranks() && !layer.shared_expert_gate) return backend_.matmul_add(activated, *layer.down, nullptr, hidden);
  const Matrix sums{
      .data = activations_.shared_sums.data(), .dtype = DType::kF32, .rows = hidden.rows, .cols = config_.hidden_size};
  multiply(activated, *layer.down, sums);
  if (!layer.shared_expert_gate) return backend_.add_sums(sums, nullptr, hidden);
  const Matrix gates{.data = activations_.shared_gates.data(), .dtype = DType::kF32, .rows = hidden.rows, .cols = 1};
  backend_.matmul(x, *layer.shared_expert_gate, nullptr, gates);
  backend_.add_gated_sums(sums, gates, hidden);
}

Matrix LayerRunner::activate(int32_t index, Matrix x) {
  const LayerWeights& layer = weights_[static_cast<size_t>(index)];
  const FeedForwardConfig& feed_forward = layer_config(index).feed_forward;
  const int64_t features = layer_layout(index).features.owned().size();
  const Matrix activated{
      .data = activations_.activated.data(), .dtype = backend_.compute_dtype(), .rows = x.rows, .cols = features};
  if (feed_forward.fuses_activation()) {
    backend_.matmul_silu_mul(x, *layer.gate_up, activated);
    return activated;
  }
  const Matrix expanded{.data = activations_.expanded.data(),
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
