#include "model/families/block.h"
#include "model/families/families.h"
#include "model/families/mistral.h"

namespace millrace::model {
namespace {

void read_scaling_object(FieldReader& fields, const char* key, const char* beta_key, AttentionConfig& attention) {
  const auto object = fields.object(key);
  if (!object) return;
  FieldReader scaling(fields.source() + ": " + key, *object);
  const double beta = scaling.number_or(beta_key, 0.0, 0.0, 1e3);
  if (beta > 0.0)
    attention.query_scaling = {
        .beta = beta, .original_max_position = scaling.integer("original_max_position_embeddings", 1, kMaxPosition)};
  fields.take_error_of(scaling);
}

}  // namespace

void read_query_scaling(FieldReader& fields, AttentionConfig& attention) {
  read_scaling_object(fields, "rope_parameters", "llama_4_scaling_beta", attention);
  read_scaling_object(fields, "llama_4_scaling", "beta", attention);
}

/// Mistral's block, in which the query grows with the logarithm of its position beyond the original context.
void describe_ministral3(FieldReader& fields, ModelConfig& config) {
  require_activation(fields, "silu");
  LayerConfig layer = read_block(fields, config, {.kv_head_count = 8, .head_dim = 128, .epsilon = 1e-5});
  layer.attention.rope = add_rope(fields, config, layer);
  layer.attention.window = fields.integer_or("sliding_window", 0, 1, kMaxPosition);
  read_query_scaling(fields, layer.attention);
  config.layers.assign(config.layers.size(), layer);
}

/// The text part of Mistral Small 3.1 and later, or of Ministral 3, by its model_type.
void describe_mistral3(FieldReader& fields, ModelConfig& config) {
  const std::string type = fields.text_or("model_type", "mistral");
  if (type == "ministral3") {
    describe_ministral3(fields, config);
  } else if (type == "mistral") {
    describe_mistral(fields, config);
  } else if (type == "mistral4") {
    describe_mistral4(fields, config);
  } else {
    fields.fail_with("model_type '{}' is not supported, wanted 'mistral', 'ministral3' or 'mistral4'", type);
  }
  config.names.skipped_parts = "vision_tower. multi_modal_projector. model.vision_tower. model.multi_modal_projector.";
}

}  // namespace millrace::model
