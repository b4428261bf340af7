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
#include "weights/weight_format.h"
#include "tensor/dtype.h"

namespace millrace::model {

/// How a family names the router and the experts of a layer.
enum class ExpertNaming : uint8_t { kMlp, kBlockSparseMoe };

/// The experts of a sparse layer, which replace its feed-forward block. Each expert is a feed-forward block of another
/// width.
struct MoeConfig {
  int32_t expert_count = 0;       ///< 0: none; the other members are then meaningless
  int32_t experts_per_token = 0;  ///< at most expert_count
  int32_t intermediate_size = 0;  ///< of one expert
  bool renormalize = false;       ///< the weights of a token's experts are divided by their sum
  ExpertNaming names = ExpertNaming::kMlp;
  friend bool operator==(const MoeConfig&, const MoeConfig&) = default;
};

/// The further shape of an encoder like BERT. Its attention looks ahead, LayerNorm follows each block, and positions
/// come from a table. Its MLP is F(x) = Wdown·gelu(Wup·x + bup) + bdown.
///
/// x = norm(words[t] + types[0] + positions[p]). Block: x = norm(x + Wo·attention(Wqkv·x + bqkv) + bo), then
/// x = norm(x + F(x)). Here each norm is applied by the block that follows it.
struct EncoderConfig {
  int32_t position_rows = 0;   ///< of the table
  int32_t first_position = 0;  ///< row of a sequence's first token
  int32_t type_rows = 0;       ///< kinds of tokens; all tokens are of kind 0
  friend bool operator==(const EncoderConfig&, const EncoderConfig&) = default;
};

/// The contents of a decoder-only model's config.json: dimensions, and switches by which the families of one block
/// differ. All numbers are bounded, so that no product of two overflows an int64.
///
///
/// Block: x += Wo·attention(rotary(norm?(Wqkv·rms(x) + bias?))); x += F(rms(x)), F(x) = Wdown·(silu(Wgate·x) · Wup·x).
/// In a sparse layer the latter is x += Σ p_e F_e(rms(x)) over the experts_per_token experts e with the largest p. p is
/// a softmax of Wrouter·rms(x).
struct ModelConfig {
  std::string architecture;                   ///< e.g. "LlamaForCausalLM"
  tensor::DType dtype = tensor::DType::kF32;  ///< dtype of the checkpoint, as config.json states it
  int32_t vocab_size = 0;
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;  ///< of layers that are not sparse
  int32_t layer_count = 0;
  int32_t head_count = 0;
  int32_t kv_head_count = 0;
  int32_t head_dim = 0;      ///< head_count · head_dim may differ from hidden_size
  int32_t max_position = 0;  ///< max_position_embeddings
  /// The tokens up to which a model made for dual chunk attention equals plain attention, the only kind computed here.
  int32_t max_plain_attention_context = std::numeric_limits<int32_t>::max();
  float norm_epsilon = 0.0f;
  bool tied_embeddings = false;  ///< lm_head is the embedding; see untie_separate_head
  bool has_output_head = true;   ///< lm_head is computed; a model that only pools ends with the final norm
  bool qkv_bias = false;
  bool output_bias = false;  ///< of o_proj
  bool qk_norm = false;      ///< RMS norm of each head of q and k, before the rotation
  RopeConfig rope;
  std::vector<int32_t> sliding_windows;  // [layer_count], tokens; 0: full attention
  std::optional<EncoderConfig> encoder;  ///< the model is an encoder; rope, moe and heads' norms do not count then
  MoeConfig moe;
  std::vector<bool> sparse_layers;     // [layer_count]; empty: none is
  std::vector<TokenId> eos_token_ids;  ///< may be empty
  std::optional<TokenId> bos_token_id;
  Quantization quantization = Quantization::kNone;  ///< of projections and head, which may be stored otherwise
  /// Keeps projections that are stored unquantized as they are, since the checkpoint's author chose the quantized ones.
  bool keeps_unquantized_projections = false;
  /// The format of weights that are decoded when they are loaded; kNone: they are stored as plain floating point, or as
  /// `quantization` says.
  weights::WeightFormat weight_format;

  [[nodiscard]] int64_t query_width() const { return int64_t{head_count} * head_dim; }
  [[nodiscard]] int64_t kv_width() const { return int64_t{kv_head_count} * head_dim; }
  [[nodiscard]] bool is_sparse(int32_t layer) const {
    return !sparse_layers.empty() && sparse_layers[static_cast<size_t>(layer)];
  }
  /// Returns the tokens of prompt and output together: max_position, or the length to which yarn stretches its original
  /// context. It is at most max_plain_attention_context.
  [[nodiscard]] int32_t context_length() const;
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

/// Parses the text of a config.json. Families: LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM,
/// Qwen3ForCausalLM, Qwen3MoeForCausalLM, MixtralForCausalLM. The architectures LlamaModel,
/// LlamaForSequenceClassification and so on are the same families without an output head. BertModel, RobertaModel,
/// XLMRobertaModel and CamembertModel are encoders. Both spellings of rope
/// (rope_theta + rope_scaling, rope_parameters) and of dtype are read. Every error is kData and begins with `source`.
/// Known features that are not computed here (foreign quantization, MLP biases, other activations) are refused by name.
[[nodiscard]] Result<ModelConfig> parse_config(std::string_view json, std::string_view source = "config.json");
/// Reads `folder`/config.json, or what describes the GGUF file of that path. Errors: those of parse_config, read_file
/// and read_gguf_config.
[[nodiscard]] Result<ModelConfig> read_config(const std::filesystem::path& folder);

}  // namespace millrace::model
