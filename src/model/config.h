#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "model/layer_config.h"
#include "model/quantization.h"
#include "model/rope.h"
#include "model/tensor_names.h"
#include "weights/weight_format.h"
#include "tensor/dtype.h"

namespace millrace::model {

/// What an encoder like BERT has besides layers. Its attention looks ahead, and positions come from a table: x =
/// words[t] + types[k] + positions[p], where k is 1 in the second text of a pair. The norm that ends a block in the
/// checkpoint is applied by the block after it.
struct EncoderConfig {
  int32_t position_rows = 0;   ///< of the table
  int32_t first_position = 0;  ///< row of a sequence's first token
  int32_t type_rows = 0;       ///< kinds of tokens; all tokens are of kind 0
  friend bool operator==(const EncoderConfig&, const EncoderConfig&) = default;
};

/// Inputs of each layer's own, besides the residual stream, as in Gemma 4 E2B. Layer l has p = join_factor ·
/// (norm(projection_factor · W_l · x0) + table_factor · T_l[t]) of token t, whose scaled embedding is x0. The rows of
/// all W_l are one matrix, and the columns of all T_l one table.
struct LayerInputsConfig {
  int32_t width = 0;  ///< of p, in all layers
  float projection_factor = 1.0f;
  float table_factor = 1.0f;
  float join_factor = 1.0f;
  friend bool operator==(const LayerInputsConfig&, const LayerInputsConfig&) = default;
};

/// A file next to config.json in which a quantizer describes weights.
struct WeightFormatFile {
  std::string path;
  std::string fault;  ///< why it cannot be read; empty: it can
  friend bool operator==(const WeightFormatFile&, const WeightFormatFile&) = default;
};

/// The description of a model: what its config.json says, as a list of layers. All numbers are bounded, so that no
/// product of two overflows an int64.
///
/// x = embedding_scale · embed(t); the layers; logits = cap(logit_scale · Whead · norm(x)).
struct ModelConfig {
  std::string architecture;                   ///< e.g. "LlamaForCausalLM"
  tensor::DType dtype = tensor::DType::kF32;  ///< dtype of the checkpoint, as config.json states it
  int32_t vocab_size = 0;
  int32_t hidden_size = 0;
  int32_t max_position = 0;  ///< max_position_embeddings
  /// The tokens up to which a model made for other attention equals plain attention, the only kind computed here.
  int32_t max_plain_attention_context = std::numeric_limits<int32_t>::max();
  NormKind norm = NormKind::kRms;
  float norm_epsilon = 0.0f;
  bool tied_embeddings = false;  ///< lm_head is the embedding; see untie_separate_head
  bool has_output_head = true;   ///< lm_head is computed; a model that only pools ends with the final norm
  float embedding_scale = 1.0f;
  float logit_scale = 1.0f;
  float logit_soft_cap = 0.0f;  ///< logits l become logit_soft_cap · tanh(l / logit_soft_cap); 0: they do not
  std::vector<RopeConfig> ropes;
  std::vector<LayerConfig> layers;
  std::optional<EncoderConfig> encoder;  ///< the model is an encoder
  std::optional<LayerInputsConfig> layer_inputs;
  TensorNames names;
  std::vector<TokenId> eos_token_ids;  ///< may be empty
  std::optional<TokenId> bos_token_id;
  Quantization quantization = Quantization::kNone;  ///< of projections and head, which may be stored otherwise
  /// Keeps projections that are stored unquantized as they are, since the checkpoint's author chose the quantized ones.
  bool keeps_unquantized_projections = false;
  /// The format of weights that are decoded when they are loaded; kNone: they are stored as plain floating point, or as
  /// `quantization` says.
  weights::WeightFormat weight_format;
  /// Where `weight_format` is not of config.json. It counts only where the checkpoint holds codes: see
  /// settle_weight_format().
  std::optional<WeightFormatFile> format_file;

  [[nodiscard]] int32_t layer_count() const { return static_cast<int32_t>(layers.size()); }
  [[nodiscard]] const LayerConfig& layer(int32_t index) const { return layers[static_cast<size_t>(index)]; }
  /// Returns whether a layer has experts.
  [[nodiscard]] bool is_sparse(int32_t index) const { return layer(index).feed_forward.moe.has_value(); }
  /// Returns the tokens of prompt and output together: max_position, or the length to which yarn stretches its original
  /// context. It is at most max_plain_attention_context.
  [[nodiscard]] int32_t context_length() const;
  /// Returns whether a stage with such a part of the model looks up the embeddings of tokens.
  [[nodiscard]] bool embeds(bool is_first) const { return is_first || layer_inputs.has_value(); }
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

/// Returns the tokens that a row sees in a model with indexers; none: it has none.
[[nodiscard]] std::optional<int32_t> chosen_tokens(const ModelConfig& config);
/// Limits the context of a model with indexers to the tokens that they choose, and drops them: up to that many tokens a
/// row sees all.
void drop_indexers(ModelConfig& config);
/// Makes layers see all tokens whose window, or chunk, is as long as the context: a window group would keep room for a
/// whole window.
void drop_wide_windows(ModelConfig& config);
/// Returns the config for sequences of up to `context` tokens: without indexers where none needs them, and with
/// longrope's near frequencies where none is longer than the original context.
[[nodiscard]] ModelConfig for_context(ModelConfig config, int32_t context);

/// Returns the rotated channels of a layer's heads; 0 where there is no rotation.
[[nodiscard]] int32_t rotary_dim(const ModelConfig& config, const AttentionConfig& attention);

}  // namespace millrace::model
