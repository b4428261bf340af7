#include "model/encoder_config.h"

#include <algorithm>

namespace millrace::model {
namespace {

constexpr int32_t kMaxEncoderRows = 1 << 22;
constexpr int32_t kMaxEncoderWidth = 1 << 18;
constexpr int32_t kMaxEncoderLayers = 1024;
constexpr int32_t kMaxEncoderHeadDim = 256;  // limit of the attention kernels

void refuse_other_kinds(FieldReader& fields) {
  const std::string activation = fields.text_or("hidden_act", "gelu");
  if (activation != "gelu") fields.fail_with("hidden_act '{}' is not computed here, wanted 'gelu'", activation);
  const std::string positions = fields.text_or("position_embedding_type", "absolute");
  if (positions != "absolute")
    fields.fail_with("position_embedding_type '{}' is not computed here, wanted 'absolute'", positions);
  for (const char* key : {"is_decoder", "add_cross_attention"}) {
    if (fields.flag_or(key, false)) fields.fail_with("{} true is not computed here, wanted an encoder", key);
  }
}

}  // namespace

void read_encoder(FieldReader& fields, bool pads_positions, ModelConfig& config) {
  refuse_other_kinds(fields);
  config.vocab_size = fields.integer("vocab_size", 1, kMaxEncoderRows);
  config.hidden_size = fields.integer("hidden_size", 1, kMaxEncoderWidth);
  config.intermediate_size = fields.integer("intermediate_size", 1, kMaxEncoderRows);
  config.layer_count = fields.integer("num_hidden_layers", 1, kMaxEncoderLayers);
  config.head_count = config.kv_head_count = fields.integer("num_attention_heads", 1, kMaxEncoderWidth);
  config.norm_epsilon = static_cast<float>(fields.number_or("layer_norm_eps", 1e-12, 0.0, 1.0));
  config.qkv_bias = config.output_bias = true;
  config.has_output_head = false;
  config.sliding_windows.assign(static_cast<size_t>(config.layer_count), 0);
  EncoderConfig& encoder = config.encoder.emplace();
  encoder.position_rows = fields.integer("max_position_embeddings", 1, kMaxEncoderRows);
  encoder.type_rows = fields.integer_or("type_vocab_size", 2, 1, kMaxEncoderRows);
  if (pads_positions) encoder.first_position = fields.integer_or("pad_token_id", 1, 0, kMaxEncoderRows) + 1;
  config.max_position = encoder.position_rows - encoder.first_position;
  if (config.max_position < 1)
    fields.fail_with("max_position_embeddings {} leaves no position after pad_token_id {}", encoder.position_rows,
                     encoder.first_position - 1);
  if (config.hidden_size % config.head_count != 0)
    fields.fail_with("hidden_size {} is not a multiple of num_attention_heads {}", config.hidden_size,
                     config.head_count);
  config.head_dim = std::max(config.hidden_size / config.head_count, 1);
  if (config.head_dim % 2 != 0 || config.head_dim > kMaxEncoderHeadDim)
    fields.fail_with("heads of {} channels, wanted an even number from 2 to {}", config.head_dim, kMaxEncoderHeadDim);
}

}  // namespace millrace::model
