#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "model/quantization.h"
#include "model/rope.h"
#include "tensor/dtype.h"

namespace millrace::model {

/// How a family names the router and the experts of a layer.
enum class ExpertNaming : uint8_t { kMlp, kBlockSparseMoe };

/// The experts that a sparse layer has instead of its feed-forward; each is one, of another width.
struct MoeConfig {
  int32_t expert_count = 0;       ///< 0: the model has none, and the others mean nothing
  int32_t experts_per_token = 0;  ///< at most expert_count
  int32_t intermediate_size = 0;  ///< of an expert
  bool renormalize = false;       ///< the weights of a token's experts are divided by their sum
  ExpertNaming names = ExpertNaming::kMlp;
  friend bool operator==(const MoeConfig&, const MoeConfig&) = default;
};

/// What config.json says of a decoder-only model: the dimensions and the switches by which the families of one block
/// differ. Every number is within bounds, so that no product of two of them overflows an int64.
///
/// Block: x += Wo·attention(rotary(norm?(Wqkv·rms(x) + bias?))); x += F(rms(x)), F(x) = Wdown·(silu(Wgate·x) · Wup·x).
/// Of a sparse layer the latter is x += Σ p_e F_e(rms(x)) over the experts_per_token experts e with the largest p, a
/// softmax of Wrouter·rms(x).
struct ModelConfig {
  std::string architecture;                   ///< e.g. "LlamaForCausalLM"
  tensor::DType dtype = tensor::DType::kF32;  ///< in which the checkpoint says it is stored
  int32_t vocab_size = 0;
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;  ///< of the layers that are not sparse
  int32_t layer_count = 0;
  int32_t head_count = 0;
  int32_t kv_head_count = 0;
  int32_t head_dim = 0;      ///< head_count · head_dim may differ from hidden_size
  int32_t max_position = 0;  ///< max_position_embeddings
  /// Tokens up to which a model made for dual chunk attention is served by plain attention, which is computed here.
  int32_t max_plain_attention_context = std::numeric_limits<int32_t>::max();
  float norm_epsilon = 0.0f;
  bool tied_embeddings = false;  ///< lm_head is the embedding; see untie_separate_head
  bool qkv_bias = false;
  bool output_bias = false;  ///< of o_proj
  bool qk_norm = false;      ///< RMS norm of each head of q and k before the rotation
  RopeConfig rope;
  std::vector<int32_t> sliding_windows;  // [layer_count], tokens; 0: full attention
  MoeConfig moe;
  std::vector<bool> sparse_layers;     // [layer_count]; empty: none is
  std::vector<TokenId> eos_token_ids;  ///< may be empty
  std::optional<TokenId> bos_token_id;
  Quantization quantization = Quantization::kNone;  ///< of the projections and the head, which may be stored otherwise
  /// Those that are stored otherwise stay so: its author chose which are of 8 bits.
  bool keeps_unquantized_projections = false;

  [[nodiscard]] int64_t query_width() const { return int64_t{head_count} * head_dim; }
  [[nodiscard]] int64_t kv_width() const { return int64_t{kv_head_count} * head_dim; }
  [[nodiscard]] bool is_sparse(int32_t layer) const {
    return !sparse_layers.empty() && sparse_layers[static_cast<size_t>(layer)];
  }
  /// Tokens of prompt and output together: max_position, or what yarn stretches its original context to; at most
  /// max_plain_attention_context.
  [[nodiscard]] int32_t context_length() const;
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

/// Parses the text of a config.json: LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM,
/// Qwen3MoeForCausalLM, MixtralForCausalLM; both spellings of rope (rope_theta + rope_scaling, rope_parameters) and of
/// dtype. Every error is kData and begins with `source`; what is known but not computed here (weights quantised by
/// others, MLP biases, another activation) is refused by name.
[[nodiscard]] Result<ModelConfig> parse_config(std::string_view json, std::string_view source = "config.json");
/// Reads `folder`/config.json.
[[nodiscard]] Result<ModelConfig> read_config(const std::filesystem::path& folder);

}  // namespace millrace::model
