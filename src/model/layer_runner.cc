#include "model/layer_runner.h"

#include <algorithm>

#include "base/check.h"
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
      stream_(config, backend, layout, limits.max_batch_tokens),
      feed_forward_(config, range, backend, layout, weights, stream_, limits.max_batch_tokens) {
  make_rotations();
  allocate(limits);
}

void LayerRunner::allocate(const StageLimits& limits) {
  allocate_mixers(limits);
  const auto rows = [&](int64_t count, DType dtype, int64_t cols) {
    return backend_.allocate(Matrix{.dtype = dtype, .rows = count, .cols = cols}.bytes());
  };
  const DType compute = backend_.compute_dtype();
  const int64_t input_width = largest_of(range_, [this](int32_t index) { return layer_config(index).input_width; });
  activations_.input_gates = rows(limits.max_batch_tokens, DType::kF32, input_width);
  activations_.gated_inputs = rows(limits.max_batch_tokens, compute, input_width);
  if (largest_of(range_, [this](int32_t index) { return layer_config(index).parallel; }) > 0)
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
  const int64_t query =
      largest_of(range_, [&](int32_t index) { return per_head(layer_layout(index).query_width(), index); });
  const int64_t kv = largest_of(range_, [&](int32_t index) { return per_head(layer_layout(index).kv_width(), index); });
  const int64_t mixed =
      largest_of(range_, [this](int32_t index) { return layer_layout(index).mixer_outputs.owned().size(); });
  activations_.qkv = batch(DType::kF32, query + 2 * kv);
  activations_.query = batch(compute, query);
  activations_.mixed = batch(compute, mixed);
  activations_.tail_mixed = rows(limits.max_tail_rows, compute, mixed);
  if (largest_of(range_, [this](int32_t index) { return layer_config(index).attention.output_gate; }) > 0) {
    activations_.gates = batch(DType::kF32, query);
    activations_.tail_gates = rows(limits.max_tail_rows, DType::kF32, query);
  }
  activations_.attended =
      batch(compute,
            largest_of(range_, [&](int32_t index) { return attends(index) ? layer_layout(index).query_width() : 0; }));
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
  const AttentionConfig& first = config_.layers.front().attention;
  const int32_t head_dim = first.latent ? first.latent->rope_dim : first.head_dim;
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
          .head_norm = head_norm(attention.qk_norm),
          .value_norm = attention.value_norm,
          .values_are_keys = attention.values_are_keys,
          .queries_only = attention.keys_of.has_value()};
}

tensor::RotaryTable LayerRunner::rotary_table(const AttentionConfig& attention) const {
  const Rotation& rotation = rotations_[static_cast<size_t>(attention.rope.value_or(config_.ropes.size()))];
  tensor::RotaryTable table{.inverse_frequency = rotation.inverse_frequency.get(),
                            .rotary_dim = attention.rope     ? rotary_dim(config_, attention)
                                          : attention.latent ? attention.latent->rope_dim
                                                             : attention.head_dim,
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

BegunLayer LayerRunner::begin(int32_t index, Matrix hidden, const LayerCaches& kept) {
  const LayerWeights& layer = weights_[static_cast<size_t>(index)];
  BegunLayer begun;
  if (!layer_config(index).mixes()) return begun;
  const Matrix input = stream_.input(hidden, layer.input_norm.get(), layer.input_norm_bias.get());
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
  feed_forward_.run(index, kept.batch, stream_.normed(hidden.rows), hidden);
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
    attention_input = stream_.normed(tails.rows);
    attention_input.data = activations_.tail_normed.data();
    backend_.gather_rows(stream_.normed(hidden.rows), rows, attention_input);
  }
  add_mixed(index, tail, activations_.tail_gates, kept, tails);
  feed_forward_.run(index, kept.batch, attention_input, tails);
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
    stream_.add_product(out, *layer.output,
                        {.bias = layer.output_bias.get(),
                         .norm = layer.attention_norm.get(),
                         .multiplier = config.residual_multiplier * config.attention.output_factor},
                        hidden);
  }
  if (layer.recurrent)
    stream_.add_product(begun.mixed, *layer.recurrent->output,
                        {.bias = layer.recurrent->output_bias.get(),
                         .norm = layer.attention_norm.get(),
                         .multiplier = config.residual_multiplier * output_factor(*config.recurrent)},
                        hidden);
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
    backend_.matmul(stream_.input(hidden, nullptr, nullptr), *layer.input_gate, nullptr, gates);
    backend_.gelu_tanh_gate(gates, inputs, index * width, gated);
    const Matrix sums = stream_.sums(hidden.rows);
    backend_.matmul(gated, *layer.input_projection, nullptr, sums);
    stream_.add(sums, {.norm = layer.input_output_norm.get()}, hidden);
  }
  if (layer.output_scale != 1.0f) backend_.scale(hidden, layer.output_scale);
}

}  // namespace millrace::model
