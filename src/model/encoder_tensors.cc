#include "model/encoder_tensors.h"

#include <fmt/format.h>

namespace millrace::model {
namespace {

void add_with_bias(std::vector<TensorSpec>& specs, const std::string& name, tensor::Shape shape) {
  specs.push_back({name + ".weight", shape, shape.rank() == 2});
  specs.push_back({name + ".bias", {shape[0]}});
}

void add_encoder_layer(const ModelConfig& config, int32_t layer, std::vector<TensorSpec>& specs) {
  const int64_t hidden = config.hidden_size;
  const int64_t intermediate = config.intermediate_size;
  const auto add = [&](std::string_view part, tensor::Shape shape) {
    add_with_bias(specs, encoder_tensor_name(layer, part), shape);
  };
  add_with_bias(specs, encoder_norm_name(layer), {hidden});
  for (const char* part : {"query", "key", "value"}) add(fmt::format("attention.self.{}", part), {hidden, hidden});
  add("attention.output.dense", {hidden, hidden});
  add("attention.output.LayerNorm", {hidden});
  add("intermediate.dense", {intermediate, hidden});
  add("output.dense", {hidden, intermediate});
}

}  // namespace

std::string encoder_tensor_name(int32_t layer, std::string_view part) {
  return fmt::format("encoder.layer.{}.{}", layer, part);
}

std::string encoder_norm_name(int32_t layer) {
  return layer == 0 ? "embeddings.LayerNorm" : encoder_tensor_name(layer - 1, "output.LayerNorm");
}

std::vector<TensorSpec> encoder_tensors(const ModelConfig& config, StageSpan span) {
  const int64_t hidden = config.hidden_size;
  std::vector<TensorSpec> specs;
  if (span.first) {
    specs.push_back({std::string(kEncoderWords), {config.vocab_size, hidden}});
    specs.push_back({std::string(kEncoderPositions), {config.encoder->position_rows, hidden}});
    specs.push_back({std::string(kEncoderTypes), {config.encoder->type_rows, hidden}});
  }
  for (int32_t layer = span.layers.begin; layer < span.layers.end; ++layer) add_encoder_layer(config, layer, specs);
  if (span.last) add_with_bias(specs, encoder_norm_name(config.layer_count), {hidden});
  return specs;
}

bool is_encoder_part(std::string_view name) {
  return name.starts_with("encoder.layer.") || (name.starts_with("embeddings.") && name != "embeddings.position_ids");
}

}  // namespace millrace::model
