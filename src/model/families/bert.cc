#include <cmath>

#include "model/families/block.h"
#include "model/families/families.h"

namespace millrace::model {
namespace {

constexpr int32_t kMaxEncoderRows = 1 << 22;

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

AttentionConfig read_encoder_attention(FieldReader& fields, const ModelConfig& config) {
  AttentionConfig attention{.qkv_bias = true, .output_bias = true};
  attention.head_count = attention.kv_head_count = fields.integer("num_attention_heads", 1, kMaxWidth);
  if (config.hidden_size % attention.head_count != 0)
    fields.fail_with("hidden_size {} is not a multiple of num_attention_heads {}", config.hidden_size,
                     attention.head_count);
  attention.head_dim = std::max(config.hidden_size / attention.head_count, 1);
  if (attention.head_dim % 2 != 0 || attention.head_dim > kMaxHeadDim)
    fields.fail_with("heads of {} channels, wanted an even number from 2 to {}", attention.head_dim, kMaxHeadDim);
  attention.scale = static_cast<float>(1.0 / std::sqrt(attention.head_dim));
  return attention;
}

/// `pads_positions`: positions are numbered from the padding token's id on, as RoBERTa's are.
void read_positions(FieldReader& fields, bool pads_positions, ModelConfig& config) {
  EncoderConfig& encoder = config.encoder.emplace();
  encoder.position_rows = fields.integer("max_position_embeddings", 1, kMaxEncoderRows);
  encoder.type_rows = fields.integer_or("type_vocab_size", 2, 1, kMaxEncoderRows);
  if (pads_positions) encoder.first_position = fields.integer_or("pad_token_id", 1, 0, kMaxEncoderRows) + 1;
  config.max_position = encoder.position_rows - encoder.first_position;
  if (config.max_position < 1)
    fields.fail_with("max_position_embeddings {} leaves no position after pad_token_id {}", encoder.position_rows,
                     encoder.first_position - 1);
}

/// x = norm(embeddings); x = norm(x + Wo·attention(Wqkv·x)); x = norm(x + Wdown·gelu(Wup·x)); biases everywhere.
void describe_encoder(FieldReader& fields, bool pads_positions, ModelConfig& config) {
  refuse_other_kinds(fields);
  config.vocab_size = fields.integer("vocab_size", 1, kMaxEncoderRows);
  config.hidden_size = fields.integer("hidden_size", 1, kMaxWidth);
  config.norm = NormKind::kLayerInPlace;
  config.norm_epsilon = static_cast<float>(fields.number_or("layer_norm_eps", 1e-12, 0.0, 1.0));
  config.has_output_head = false;
  LayerConfig layer;
  layer.feed_forward = {.width = fields.integer("intermediate_size", 1, kMaxEncoderRows),
                        .activation = MlpActivation::kGelu,
                        .gated = false,
                        .bias = true};
  layer.attention = read_encoder_attention(fields, config);
  config.layers.assign(static_cast<size_t>(fields.integer("num_hidden_layers", 1, kMaxLayerCount)), layer);
  read_positions(fields, pads_positions, config);
  config.names = {.embedding = "embeddings.word_embeddings.weight",
                  .position_embedding = "embeddings.position_embeddings.weight",
                  .type_embedding = "embeddings.token_type_embeddings.weight",
                  .embedding_norm = "embeddings.LayerNorm",
                  .layers = "encoder.layer.",
                  .attention_norm = "output.LayerNorm",
                  .query = "attention.self.query",
                  .key = "attention.self.key",
                  .value = "attention.self.value",
                  .output = "attention.output.dense",
                  .feed_forward_norm = "attention.output.LayerNorm",
                  .up = "intermediate.dense",
                  .down = "output.dense"};
}

}  // namespace

void describe_bert(FieldReader& fields, ModelConfig& config) {
  describe_encoder(fields, false, config);
}

void describe_roberta(FieldReader& fields, ModelConfig& config) {
  describe_encoder(fields, true, config);
}

}  // namespace millrace::model
