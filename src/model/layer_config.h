#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "model/recurrent_config.h"
#include "tensor/attention_shape.h"
#include "tensor/routing.h"

/// The parts of one layer of a model. The forward pass interprets them; a family's file (families/) fills them in.
namespace millrace::model {

/// How a vector x is normalised with a weight w.
enum class NormKind : uint8_t {
  kRms,           ///< x / sqrt(mean(x²) + epsilon) · w
  kRmsPlusOne,    ///< x / sqrt(mean(x²) + epsilon) · (1 + w)
  kLayer,         ///< (x - mean) / sqrt(variance + epsilon) · w
  kLayerInPlace,  ///< LayerNorm with a bias, whose result also replaces the residual stream, as in BERT
};

/// The norms of a layer. One before a block normalises its input, one after it what the block adds.
struct LayerNorms {
  bool before_attention = true;
  bool after_attention = false;     ///< not in a layer with both attention and a recurrent mixer
  bool before_feed_forward = true;  ///< without effect in a parallel layer, whose blocks have the same input
  bool after_feed_forward = false;
  friend bool operator==(const LayerNorms&, const LayerNorms&) = default;
};

/// The norm of q and k: an RMS norm before the rotation, unless it says otherwise.
enum class QkNorm : uint8_t {
  kNone,
  kPerHead,         ///< of each head, with one weight [head_dim]
  kAllHeads,        ///< of all heads together, with weights [heads · head_dim]
  kUnit,            ///< of each head, without weights
  kLayerPerHead,    ///< LayerNorm of each head, with weights of its own, stored as [heads, head_dim]
  kRotatedPerHead,  ///< of each head after the rotation, with one weight [head_dim]
};

/// Returns the norm of q and k as an op computes it.
[[nodiscard]] constexpr tensor::HeadNorm head_norm(QkNorm norm) {
  switch (norm) {
    case QkNorm::kLayerPerHead: return tensor::HeadNorm::kLayer;
    case QkNorm::kRotatedPerHead: return tensor::HeadNorm::kRotatedRms;
    default: return tensor::HeadNorm::kRms;
  }
}

/// Multiplies the rotated query at position p by 1 + beta · ln(1 + floor((p + offset) / original_max_position)).
struct QueryScaling {
  double beta = 0.0;
  int32_t original_max_position = 1;
  int32_t offset = 0;
  friend bool operator==(const QueryScaling&, const QueryScaling&) = default;
};

/// The indexer of sparse attention (DeepSeek-V3.2, arXiv 2512.02556). It chooses the tokens that a row of latent
/// attention sees by scores Σ_h w_h · max(q_h · k, 0). Queries q_h come from the low rank of the attention's queries;
/// w = Ww · x, and k = LayerNorm(Wk · x) is kept per token. The first rope_dim channels are rotated as the attention's.
struct IndexerConfig {
  int32_t head_count = 0;
  int32_t head_dim = 0;
  int32_t chosen_count = 0;    ///< tokens that a row sees
  bool interleaved = false;    ///< neighbouring channels are rotated together
  bool is_shared = false;      ///< the layer has none and sees what the layer before it sees
  float norm_epsilon = 1e-6f;  ///< of the key's norm
  friend bool operator==(const IndexerConfig&, const IndexerConfig&) = default;
};

/// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434), in place of keys and values per head. All heads share a
/// latent c = norm(Wc · x) and a rotated key per token. Head h has the key [Wk_h · c, rotated key] and the value Wv_h ·
/// c.
struct LatentConfig {
  int32_t query_rank = 0;  ///< rows of Wa, with which queries are Wb · norm(Wa · x); 0: W · x
  int32_t latent_dim = 0;
  int32_t nope_dim = 0;  ///< channels of a head's query that are not rotated
  int32_t rope_dim = 0;
  float norm_epsilon = 1e-6f;                 ///< of both norms
  bool bias = false;                          ///< of Wa and Wc
  std::optional<IndexerConfig> indexer = {};  ///< none: a row sees all tokens before it; else query_rank is above 0
  friend bool operator==(const LatentConfig&, const LatentConfig&) = default;
};

/// Attention with keys and values per head: Wo · softmax(mask(cap(scale · q·k))) · v.
struct AttentionConfig {
  int32_t head_count = 0;
  int32_t kv_head_count = 0;
  int32_t head_dim = 0;  ///< head_count · head_dim may differ from hidden_size
  bool qkv_bias = false;
  bool output_bias = false;  ///< of o_proj
  float bias_factor = 1.0f;  ///< multiplies the biases of q, k, v and o_proj as they are loaded
  QkNorm qk_norm = QkNorm::kNone;
  std::optional<int32_t> rope = {};     ///< index into ModelConfig::ropes; none: q and k are not rotated
  float scale = 0.0f;                   ///< of the scores, usually head_dim^-0.5
  float soft_cap = 0.0f;                ///< scores s become soft_cap · tanh(s / soft_cap); 0: they do not
  int32_t window = 0;                   ///< tokens that a query sees, itself included; 0: all before it
  bool chunked = false;                 ///< a query sees only tokens since the last multiple of `window`
  bool value_norm = false;              ///< v of each head is divided by its root mean square
  bool values_are_keys = false;         ///< v is k before its norm and rotation, and has no matrix
  std::optional<int32_t> keys_of = {};  ///< the layer before it whose keys and values it sees; it has none of its own
  bool output_gate = false;             ///< sigmoid(Wgate · x) multiplies what o_proj takes
  bool sinks = false;          ///< each head has a learned score that takes part in the softmax and has no value
  float output_factor = 1.0f;  ///< multiplies what the block adds
  std::optional<QueryScaling> query_scaling = {};
  /// head_dim is then that of values, kv_head_count is 1, and q, k and v do not exist.
  std::optional<LatentConfig> latent = {};

  [[nodiscard]] int64_t query_width() const { return int64_t{head_count} * head_dim; }
  [[nodiscard]] int64_t kv_width() const { return int64_t{kv_head_count} * head_dim; }
  friend bool operator==(const AttentionConfig&, const AttentionConfig&) = default;
};

/// The function between the matrices of a feed-forward block. Fingerprints have its numbers.
enum class MlpActivation : uint8_t {
  kSilu,         ///< x / (1 + exp(-x))
  kGelu,         ///< x/2 · (1 + erf(x/√2))
  kGeluTanh,     ///< x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))
  kReluSquared,  ///< max(x, 0)²
};

/// A feed-forward block that every token of a sparse layer takes besides its chosen experts.
struct SharedExpertConfig {
  int32_t width = 0;
  bool has_gate = false;  ///< sigmoid(Wgate · x), one number per token, weighs its output
  friend bool operator==(const SharedExpertConfig&, const SharedExpertConfig&) = default;
};

/// The experts of a sparse layer, which replace its feed-forward block. Each expert is a feed-forward block of another
/// width, gated where the layer's is. How a token chooses and weighs them: tensor::Routing.
struct MoeConfig {
  int32_t expert_count = 0;
  int32_t experts_per_token = 0;  ///< at most expert_count
  int32_t intermediate_size = 0;  ///< of one expert
  /// Above 0: experts take Win · x, with this many channels, and Wout · (their sum) is what they add, as in Nemotron 3
  /// Super. Router and shared expert take x. Not with own_norms.
  int32_t latent_size = 0;
  bool renormalize = false;  ///< the weights of a token's experts are divided by their sum
  tensor::RouterScore score = tensor::RouterScore::kSoftmax;
  float weight_scale = 1.0f;  ///< Routing::scale
  double sum_epsilon = 0.0;
  double min_sum = 0.0;
  int32_t group_count = 1;  ///< divides expert_count
  int32_t groups_per_token = 1;
  tensor::GroupScore group_score = tensor::GroupScore::kMax;
  bool choice_bias = false;  ///< Routing::choice_bias is a tensor
  bool router_bias = false;
  bool f32_router = false;  ///< logits are computed in f32 where the router is stored so
  tensor::GatedActivation activation = {};
  bool biases = false;  ///< of gate, up and down
  /// Experts and shared expert are blocks with norms n of their own, and the router has another one, as in Gemma 4:
  /// F(x) = n1(Shared(norm(x))) + n2(Experts(n3(x))), routed by Wrouter · n4(x).
  bool own_norms = false;
  bool weighs_inputs = false;  ///< Routing::weighs_inputs
  bool expert_scales = false;  ///< Routing::expert_scales is a tensor
  std::optional<SharedExpertConfig> shared = {};

  /// Returns the channels of what experts take.
  [[nodiscard]] int32_t input_size(int32_t hidden_size) const { return latent_size > 0 ? latent_size : hidden_size; }
  /// Returns the routing without its choice_bias and expert_scales.
  [[nodiscard]] tensor::Routing routing() const;
  friend bool operator==(const MoeConfig&, const MoeConfig&) = default;
};

/// The feed-forward block: Wdown · (f(gate_factor · Wgate·x) · Wup·x), or Wdown · f(Wup·x) without a gate.
struct FeedForwardConfig {
  int32_t width = 0;  ///< rows of Wup; of no meaning with experts, see inner_width. 0: the layer has no such block
  MlpActivation activation = MlpActivation::kSilu;
  bool gated = true;
  float gate_factor = 1.0f;    ///< other than 1 with kSilu only
  float output_factor = 1.0f;  ///< multiplies what the block adds
  bool bias = false;           ///< of every matrix
  std::optional<MoeConfig> moe = {};

  /// Returns whether the activation is part of the GEMM of gate and up.
  [[nodiscard]] bool fuses_activation() const {
    return gated && activation == MlpActivation::kSilu && gate_factor == 1.0f && !bias;
  }
  /// Returns the width of the block that all tokens take: of a sparse layer the shared expert's, 0 without one.
  [[nodiscard]] int32_t inner_width() const {
    if (!moe) return width;
    return moe->shared ? moe->shared->width : 0;
  }
  friend bool operator==(const FeedForwardConfig&, const FeedForwardConfig&) = default;
};

/// One layer: x += m · Mix(norm(x)); x += m · FeedForward(norm(x)), each with a norm after it where `norms` says so.
/// Mix is attention, a recurrent mixer, or the sum of both. In a parallel layer all blocks have the input norm(x) of
/// the first. A layer may lack attention and mixer, or the feed-forward block. A number of the checkpoint may multiply
/// x at the end of the layer.
struct LayerConfig {
  LayerNorms norms;
  bool attends = true;  ///< else `attention` is that of the model's other layers and has no effect
  AttentionConfig attention;
  std::optional<RecurrentConfig> recurrent = {};
  FeedForwardConfig feed_forward;
  float residual_multiplier = 1.0f;  ///< m
  bool parallel = false;
  /// Channels of the layer's own input p (ModelConfig::layer_inputs). After the blocks x += norm(Wproj · (g(Wgate·x) ·
  /// p)), with g of kGeluTanh. 0: there is none.
  int32_t input_width = 0;
  bool output_scale = false;  ///< a number of the checkpoint multiplies x at the end of the layer
  /// Returns whether the layer has attention or a recurrent mixer.
  [[nodiscard]] bool mixes() const { return attends || recurrent; }
  [[nodiscard]] bool has_feed_forward() const { return feed_forward.width > 0 || feed_forward.moe; }
  friend bool operator==(const LayerConfig&, const LayerConfig&) = default;
};

}  // namespace millrace::model
