#include "model/families/block.h"
#include "model/families/families.h"

namespace millrace::model {
namespace {

/// Returns for each layer whether it is rotated: by no_rope_layers, where 1 means that it is, or all but each
/// no_rope_layer_interval-th.
std::vector<bool> read_rotated_layers(FieldReader& fields, const ModelConfig& config) {
  const int32_t interval = fields.integer_or("no_rope_layer_interval", 4, 1, kMaxLayerCount);
  std::vector<bool> rotated;
  for (int32_t index = 0; index < config.layer_count(); ++index) rotated.push_back((index + 1) % interval != 0);
  const std::vector<int32_t> listed = fields.integers("no_rope_layers", 0, 1);
  if (listed.empty()) return rotated;
  if (listed.size() != rotated.size()) {
    fields.fail_with("no_rope_layers names {} layers, num_hidden_layers {}", listed.size(), rotated.size());
    return rotated;
  }
  for (size_t index = 0; index < listed.size(); ++index) rotated[index] = listed[index] == 1;
  return rotated;
}

}  // namespace

/// Llama's block, of which some layers are not rotated. Those may slide.
void describe_smollm3(FieldReader& fields, ModelConfig& config) {
  require_activation(fields, "silu");
  LayerConfig layer = read_block(fields, config, {.kv_head_count = 4, .tied_embeddings = true});
  layer.attention.qkv_bias = layer.attention.output_bias = fields.flag_or("attention_bias", false);
  const std::vector<bool> rotated = read_rotated_layers(fields, config);
  const int32_t rope = add_rope(fields, config, layer, {.theta = 2e6});
  const bool has_windows = fields.flag_or("use_sliding_window", false);
  const int32_t given = fields.integer_or("sliding_window", 0, 1, kMaxPosition);
  const int32_t window = has_windows ? given : 0;
  set_layers(fields, config, layer, window, read_layer_types(fields, config, [&](int32_t index) {
               return window > 0 && !rotated[static_cast<size_t>(index)];
             }));
  for (size_t index = 0; index < rotated.size(); ++index) {
    if (rotated[index]) config.layers[index].attention.rope = rope;
  }
}

}  // namespace millrace::model
