#include "model/fingerprint.h"

#include <algorithm>

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <bit>
#include <span>
#include <utility>

#include "base/check.h"

namespace millrace::model {
namespace {

/// Two independent chains of multiply and xor-shift over 64-bit words; bytes enter as their XXH3-128. The chains are
/// not xxhash's, since their value is part of stored pages' names: another mixer would orphan every page store.
class Hash {
 public:
  void add(uint64_t word) {
    high_ = mix(high_ ^ word, 0x9E3779B97F4A7C15u);
    low_ = mix(low_ + word, 0xD6E8FEB86659FD93u);
  }
  void add(double value) { add(std::bit_cast<uint64_t>(value)); }
  void add(std::span<const std::byte> bytes) {
    const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
    add(static_cast<uint64_t>(bytes.size()));
    add(uint64_t{hash.high64});
    add(uint64_t{hash.low64});
  }
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
  [[nodiscard]] Fingerprint finish() const { return {mix(high_, low_ | 1), mix(low_, high_ | 1)}; }

 private:
  static uint64_t mix(uint64_t value, uint64_t multiplier) {
    value *= multiplier;
    value ^= value >> 32;
    value *= multiplier;
    return value ^ (value >> 29);
  }
  uint64_t high_ = 0x243F6A8885A308D3u;
  uint64_t low_ = 0x13198A2E03707344u;
};

void add_integer(Hash& hash, int64_t value) {
  hash.add(static_cast<uint64_t>(value));
}

/// Adds a factor that other families lack, so that their fingerprints stay.
void add_factor(Hash& hash, std::string_view name, float factor) {
  if (factor == 1.0f) return;
  hash.add(name);
  hash.add(double{factor});
}

void add_rope(Hash& hash, const RopeConfig& rope, int32_t rotary_dim) {
  const RotaryFrequencies frequencies = rotary_frequencies(rope, rotary_dim);
  hash.add(std::as_bytes(std::span(frequencies.inverse)));
  hash.add(double{frequencies.attention_factor});
  add_integer(hash, rope.interleaved);
}

void add_attention(Hash& hash, const ModelConfig& config, const AttentionConfig& attention) {
  for (const int32_t number : {attention.head_count, attention.kv_head_count, attention.head_dim, attention.window})
    add_integer(hash, number);
  for (const bool flag : {attention.qkv_bias, attention.output_bias, attention.sinks}) add_integer(hash, flag);
  add_factor(hash, "bias factor", attention.bias_factor);
  add_integer(hash, static_cast<int64_t>(attention.qk_norm));
  for (const float number : {attention.scale, attention.soft_cap}) hash.add(double{number});
  add_integer(hash, attention.rope.has_value());
  if (attention.rope) add_rope(hash, config.ropes[static_cast<size_t>(*attention.rope)], rotary_dim(config, attention));
  add_integer(hash, attention.query_scaling.has_value());
  if (attention.query_scaling) {
    hash.add(attention.query_scaling->beta);
    add_integer(hash, attention.query_scaling->original_max_position);
    if (attention.query_scaling->offset != 0) add_integer(hash, attention.query_scaling->offset);
  }
  if (attention.output_gate) hash.add(std::string_view("output gate"));
  if (attention.chunked) hash.add(std::string_view("chunks"));
  if (attention.value_norm) hash.add(std::string_view("value norm"));
  if (attention.values_are_keys) hash.add(std::string_view("values are keys"));
  if (attention.keys_of) {
    hash.add(std::string_view("keys of"));
    add_integer(hash, *attention.keys_of);
  }
  add_factor(hash, "attention factor", attention.output_factor);
  if (!attention.latent) return;
  hash.add(std::string_view("latent"));
  const LatentConfig& latent = *attention.latent;
  for (const int32_t size : {latent.query_rank, latent.latent_dim, latent.nope_dim, latent.rope_dim})
    add_integer(hash, size);
  hash.add(double{latent.norm_epsilon});
  add_integer(hash, latent.bias);
  if (!latent.indexer) return;
  hash.add(std::string_view("indexer"));
  const IndexerConfig& indexer = *latent.indexer;
  for (const int32_t number : {indexer.head_count, indexer.head_dim, indexer.chosen_count, int32_t{indexer.interleaved},
                               int32_t{indexer.is_shared}})
    add_integer(hash, number);
  hash.add(double{indexer.norm_epsilon});
}

void add_mixer(Hash& hash, const DeltaNetConfig& net) {
  hash.add(std::string_view("delta net"));
  for (const int32_t size : {net.key_head_count, net.value_head_count, net.key_dim, net.value_dim, net.conv_width})
    add_integer(hash, size);
  if (!net.channel_decay) return;
  hash.add(std::string_view("channel decay"));
  add_integer(hash, net.gate_rank);
}

void add_mixer(Hash& hash, const MambaConfig& mamba) {
  hash.add(std::string_view("mamba"));
  for (const int32_t size : {mamba.head_count, mamba.head_dim, mamba.group_count, mamba.state_dim, mamba.conv_width,
                             int32_t{mamba.conv_bias}, int32_t{mamba.input_bias}})
    add_integer(hash, size);
  for (const float bound : {mamba.min_step, mamba.max_step}) hash.add(double{bound});
  if (mamba.norm != MambaNorm::kAfterGate) {
    hash.add(std::string_view("mamba norm"));
    add_integer(hash, static_cast<int64_t>(mamba.norm));
  }
  add_factor(hash, "z", mamba.factors.gate);
  add_factor(hash, "x", mamba.factors.x);
  add_factor(hash, "B", mamba.factors.b);
  add_factor(hash, "C", mamba.factors.c);
  add_factor(hash, "dt", mamba.factors.step);
  add_factor(hash, "mamba factor", mamba.output_factor);
  add_factor(hash, "mamba bias factor", mamba.input_bias_factor);
  // families with one flag for both keep their fingerprints
  if (mamba.output_bias != mamba.input_bias) hash.add(std::string_view("one mamba bias"));
}

void add_mixer(Hash& hash, const ShortConvConfig& conv) {
  hash.add(std::string_view("short convolution"));
  for (const int32_t size : {conv.width, conv.conv_width, int32_t{conv.bias}}) add_integer(hash, size);
}

void add_feed_forward(Hash& hash, const FeedForwardConfig& feed_forward) {
  for (const int64_t number : {int64_t{feed_forward.width}, static_cast<int64_t>(feed_forward.activation),
                               int64_t{feed_forward.gated}, int64_t{feed_forward.bias}})
    add_integer(hash, number);
  add_factor(hash, "gate factor", feed_forward.gate_factor);
  add_factor(hash, "feed-forward factor", feed_forward.output_factor);
  add_integer(hash, feed_forward.moe.has_value());
  if (!feed_forward.moe) return;
  const MoeConfig& moe = *feed_forward.moe;
  for (const int32_t size : {moe.expert_count, moe.experts_per_token, moe.intermediate_size}) add_integer(hash, size);
  add_integer(hash, moe.renormalize);
  for (const int64_t number :
       {static_cast<int64_t>(moe.score), int64_t{moe.group_count}, int64_t{moe.groups_per_token},
        static_cast<int64_t>(moe.group_score), int64_t{moe.choice_bias}, int64_t{moe.router_bias},
        int64_t{moe.f32_router}, static_cast<int64_t>(moe.activation.function), int64_t{moe.biases}})
    add_integer(hash, number);
  for (const double number : {double{moe.weight_scale}, moe.sum_epsilon, moe.min_sum, double{moe.activation.alpha},
                              double{moe.activation.limit}})
    hash.add(number);
  add_integer(hash, moe.shared ? moe.shared->width : 0);
  add_integer(hash, moe.shared && moe.shared->has_gate);
  if (moe.latent_size > 0) {
    hash.add(std::string_view("latent of experts"));
    add_integer(hash, moe.latent_size);
  }
  if (moe.weighs_inputs) hash.add(std::string_view("weighed inputs"));
  if (moe.own_norms) hash.add(std::string_view("norms of experts"));
  if (moe.expert_scales) hash.add(std::string_view("scales of experts"));
}

void add_layer(Hash& hash, const ModelConfig& config, const LayerConfig& layer) {
  const LayerNorms& norms = layer.norms;
  for (const bool flag : {norms.before_attention, norms.after_attention, norms.before_feed_forward,
                          norms.after_feed_forward, layer.parallel})
    add_integer(hash, flag);
  hash.add(double{layer.residual_multiplier});
  if (layer.recurrent) std::visit([&hash](const auto& mixer) { add_mixer(hash, mixer); }, *layer.recurrent);
  if (layer.attends) add_attention(hash, config, layer.attention);
  add_feed_forward(hash, layer.feed_forward);
  if (layer.output_scale) hash.add(std::string_view("output scale"));
  if (layer.input_width > 0) hash.add(std::string_view("own input"));
}

void add_config(Hash& hash, const ModelConfig& config) {
  hash.add(std::string_view("millrace model 2"));
  hash.add(std::string_view(config.architecture));
  for (const int32_t size : {config.vocab_size, config.hidden_size, config.layer_count()}) add_integer(hash, size);
  add_integer(hash, config.tied_embeddings);
  if (config.quantization != Quantization::kNone) hash.add(to_string(config.quantization));
  if (config.keeps_unquantized_projections) hash.add(std::string_view("some as stored"));
  add_integer(hash, static_cast<int64_t>(config.norm));
  for (const float number : {config.norm_epsilon, config.embedding_scale, config.logit_scale, config.logit_soft_cap})
    hash.add(double{number});
  for (const LayerConfig& layer : config.layers) add_layer(hash, config, layer);
  if (config.layer_inputs) {
    hash.add(std::string_view("layer inputs"));
    const LayerInputsConfig& inputs = *config.layer_inputs;
    add_integer(hash, inputs.width);
    for (const float factor : {inputs.projection_factor, inputs.table_factor, inputs.join_factor})
      hash.add(double{factor});
  }
  if (!config.encoder) return;
  hash.add(std::string_view("encoder"));
  const EncoderConfig& encoder = *config.encoder;
  for (const int32_t size : {encoder.position_rows, encoder.first_position, encoder.type_rows}) add_integer(hash, size);
}

Fingerprint fingerprint_of(const tensor::HostTensor& tensor) {
  Hash hash;
  add_integer(hash, static_cast<int64_t>(tensor.dtype));
  for (size_t axis = 0; axis < tensor.shape.rank(); ++axis) add_integer(hash, tensor.shape[axis]);
  hash.add(std::span<const std::byte>(tensor.data, tensor.bytes()));
  return hash.finish();
}

Fingerprint fingerprint_of(const tensor::W8Matrix& matrix) {
  Hash hash;
  hash.add(std::string_view("w8"));
  if (matrix.per_channel_scales) {
    hash.add(std::string_view("row scales"));
    add_integer(hash, static_cast<int64_t>(matrix.scale_dtype));
  }
  for (const int64_t side : {matrix.rows, matrix.cols}) add_integer(hash, side);
  const auto values = static_cast<size_t>(matrix.rows * matrix.cols);
  hash.add(std::span<const std::byte>(matrix.values, values));
  hash.add(std::span<const std::byte>(matrix.scales, matrix.bytes() - values));
  return hash.finish();
}

/// Returns the order of zero points that a format with such codes has, where it has any.
weights::ZeroArray::Order usual_zeros(weights::CodeOrder codes) {
  using Order = weights::ZeroArray::Order;
  switch (codes) {
    case weights::CodeOrder::kRows: return Order::kDownN;
    case weights::CodeOrder::kNibblesAwq:
    case weights::CodeOrder::kRowsAwq: return Order::kNibblesAwq;
    case weights::CodeOrder::kTilesAwq: return Order::kScaled;
    case weights::CodeOrder::kWordsDownK:
    case weights::CodeOrder::kNibblesDownN: break;
  }
  return Order::kAlongN;
}

/// Adds how integers are read where it does not follow from the order of codes, so that other fingerprints stay.
void add_integers(Hash& hash, const weights::StoredWeight& weight) {
  if (weight.codes.sign_bit != 0) {
    hash.add(std::string_view("signed codes"));
    add_integer(hash, weight.codes.sign_bit);
  }
  if (weight.zeros.sign_bit != 0) {
    hash.add(std::string_view("signed zeros"));
    add_integer(hash, weight.zeros.sign_bit);
  }
  const bool is_usual = weight.zeros.order == weights::ZeroArray::Order::kConstant ||
                        weight.zeros.order == usual_zeros(weight.codes.order);
  if (is_usual) return;
  hash.add(std::string_view("order of zeros"));
  add_integer(hash, static_cast<int64_t>(weight.zeros.order));
}

Fingerprint fingerprint_of(const weights::StoredWeight& weight) {
  Hash hash;
  hash.add(std::string_view("stored weight"));
  for (const int64_t number :
       {weight.rows, weight.cols, static_cast<int64_t>(weight.codes.kind), static_cast<int64_t>(weight.codes.order),
        int64_t{weight.codes.bits}, int64_t{weight.zeros.offset}, int64_t{weight.zeros.constant}, weight.group_rows,
        weight.group_cols, static_cast<int64_t>(weight.scales.kind), int64_t{weight.blocks.ggml_type}})
    add_integer(hash, number);
  add_integers(hash, weight);
  for (const auto& [name, order] :
       {std::pair("row order", weight.blocks.row_order), std::pair("column order", weight.blocks.column_order)}) {
    if (order.is_in_order()) continue;
    hash.add(std::string_view(name));
    for (const int64_t number : {order.first, order.outer, order.inner, order.block}) add_integer(hash, number);
  }
  for (const float number : {weight.scales.factor, weight.scales.divisor, weight.blocks.factor})
    hash.add(double{number});
  for (const auto bytes :
       {weight.codes.bytes, weight.scales.bytes, weight.zeros.bytes, weight.group_index, weight.blocks.bytes})
    hash.add(bytes);
  return hash.finish();
}

}  // namespace

std::string Fingerprint::to_string() const {
  return fmt::format("{:016x}{:016x}", high, low);
}

Fingerprint fingerprint(const ModelConfig& config) {
  Hash hash;
  add_config(hash, config);
  return hash.finish();
}

Fingerprint& Fingerprint::operator+=(const Fingerprint& other) {
  low += other.low;
  high += other.high + (low < other.low ? 1 : 0);
  return *this;
}

Fingerprint fingerprint(std::span<const std::string> texts) {
  Hash hash;
  add_integer(hash, static_cast<int64_t>(texts.size()));
  for (const std::string& text : texts) hash.add(std::string_view(text));
  return hash.finish();
}

void PageContents::add(const PageContents& more) {
  ranks.insert(ranks.end(), more.ranks.begin(), more.ranks.end());
  experts += more.experts;
}

RingContents ring_contents(const PageContents& ranks) {
  return {.common = fingerprint(ranks.ranks), .experts = ranks.experts};
}

Fingerprint page_fingerprint(std::span<const RingContents> rings, size_t own) {
  std::vector<Fingerprint> commons{rings[own].common};  // first: rings of other weights have names of their own
  Fingerprint experts;
  for (const RingContents& ring : rings) {
    if (std::ranges::find(commons, ring.common) == commons.end()) commons.push_back(ring.common);
    experts += ring.experts;
  }
  if (commons.size() == 1 && experts == Fingerprint{}) return commons.front();
  Hash hash;
  hash.add(std::string_view("experts"));
  commons.push_back(experts);
  for (const Fingerprint& part : commons) {
    hash.add(part.high);
    hash.add(part.low);
  }
  return hash.finish();
}

void WeightsFingerprint::add(const std::string& name, const Fingerprint& tensor, bool is_expert) {
  const bool is_new = (is_expert ? experts_ : tensors_).emplace(name, tensor).second;
  CHECK(is_new, "tensor '{}' is added twice", name);
}

void WeightsFingerprint::add(const tensor::HostTensor& tensor, bool is_expert) {
  add(tensor.name, fingerprint_of(tensor), is_expert);
}

void WeightsFingerprint::add(const tensor::W8Matrix& matrix, bool is_expert) {
  add(matrix.name, fingerprint_of(matrix), is_expert);
}

void WeightsFingerprint::add(const weights::StoredWeight& weight, bool is_expert) {
  add(weight.name, fingerprint_of(weight), is_expert);
}

StageFingerprint WeightsFingerprint::finish(const ModelConfig& config, StageSpan span,
                                            tensor::RankPosition position) const {
  Hash hash;
  add_config(hash, config);
  add_integer(hash, span.layers.begin);
  add_integer(hash, span.layers.end);
  if (position.size > 1) {
    hash.add(std::string_view("rank"));
    for (const int32_t number : {position.rank, position.size}) add_integer(hash, number);
  }
  for (const auto& [name, tensor] : tensors_) {
    hash.add(std::string_view(name));
    hash.add(tensor.high);
    hash.add(tensor.low);
  }
  StageFingerprint found{.common = hash.finish(), .experts = {}};
  for (const auto& [name, tensor] : experts_) {
    Hash one;
    one.add(std::string_view(name));
    one.add(tensor.high);
    one.add(tensor.low);
    found.experts += one.finish();
  }
  return found;
}

}  // namespace millrace::model
