#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "model/config.h"

namespace millrace::test {

/// The sizes of a model whose layers are Llama's, all alike.
struct PlainModel {
  std::string architecture = "LlamaForCausalLM";
  int32_t vocab_size = 0;
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;
  int32_t layer_count = 0;
  int32_t head_count = 0;
  int32_t kv_head_count = 0;
  int32_t head_dim = 0;
  int32_t max_position = 0;
};

/// Calls `change` with every layer.
inline void for_layers(model::ModelConfig& config, const std::function<void(model::LayerConfig&)>& change) {
  for (model::LayerConfig& layer : config.layers) change(layer);
}

/// Gives every layer attention heads of these sizes.
inline void set_heads(model::ModelConfig& config, int32_t head_count, int32_t kv_head_count, int32_t head_dim) {
  for_layers(config, [&](model::LayerConfig& layer) {
    layer.attention.head_count = head_count;
    layer.attention.kv_head_count = kv_head_count;
    layer.attention.head_dim = head_dim;
    layer.attention.scale = static_cast<float>(1.0 / std::sqrt(head_dim));
  });
}

/// Gives every layer the biases and norms that attention may have.
inline void set_biases_and_norms(model::ModelConfig& config) {
  for_layers(config, [](model::LayerConfig& layer) {
    layer.attention.qkv_bias = layer.attention.output_bias = true;
    layer.attention.qk_norm = model::QkNorm::kPerHead;
  });
}

inline void set_windows(model::ModelConfig& config, const std::vector<int32_t>& windows) {
  for (size_t i = 0; i < windows.size(); ++i) config.layers[i].attention.window = windows[i];
}

/// Gives experts to the layers that `sparse` marks, and to no other.
inline void set_experts(model::ModelConfig& config, const model::MoeConfig& moe, const std::vector<bool>& sparse) {
  for (size_t i = 0; i < sparse.size(); ++i) {
    auto& experts = config.layers.at(i).feed_forward.moe;
    experts.reset();
    if (sparse[i]) experts = moe;
  }
}

/// Changes the experts of every layer that has some.
inline void for_experts(model::ModelConfig& config, const std::function<void(model::MoeConfig&)>& change) {
  for_layers(config, [&](model::LayerConfig& layer) {
    if (layer.feed_forward.moe) change(*layer.feed_forward.moe);
  });
}

/// Returns the windows of all layers.
inline std::vector<int32_t> windows_of(const model::ModelConfig& config) {
  std::vector<int32_t> windows;
  for (const model::LayerConfig& layer : config.layers) windows.push_back(layer.attention.window);
  return windows;
}

/// Returns which layers have experts.
inline std::vector<bool> sparse_layers_of(const model::ModelConfig& config) {
  std::vector<bool> sparse;
  for (int32_t layer = 0; layer < config.layer_count(); ++layer) sparse.push_back(config.is_sparse(layer));
  return sparse;
}

inline model::ModelConfig plain_model(const PlainModel& sizes) {
  model::ModelConfig config;
  config.architecture = sizes.architecture;
  config.vocab_size = sizes.vocab_size;
  config.hidden_size = sizes.hidden_size;
  config.max_position = sizes.max_position;
  config.norm_epsilon = 1e-5f;
  config.ropes.emplace_back();
  model::LayerConfig layer;
  layer.attention.rope = 0;
  layer.feed_forward.width = sizes.intermediate_size;
  config.layers.assign(static_cast<size_t>(sizes.layer_count), layer);
  set_heads(config, sizes.head_count, sizes.kv_head_count, sizes.head_dim);
  return config;
}

/// Returns a small dense model of five layers.
inline model::ModelConfig five_layer_model() {
  return plain_model({.vocab_size = 50,
                      .hidden_size = 24,
                      .intermediate_size = 40,
                      .layer_count = 5,
                      .head_count = 6,
                      .kv_head_count = 2,
                      .head_dim = 8,
                      .max_position = 128});
}

/// Returns that model with seven experts on layers 0, 2 and 4, of which each token takes three.
inline model::ModelConfig five_layer_mixture() {
  model::ModelConfig config = five_layer_model();
  set_experts(config, {.expert_count = 7, .experts_per_token = 3, .intermediate_size = 20},
              {true, false, true, false, true});
  return config;
}

/// Returns tokens that differ from their neighbours, the same at each call.
inline std::vector<TokenId> spread_tokens(size_t count, int32_t vocab) {
  std::vector<TokenId> tokens;
  for (size_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<TokenId>((i * i + 7 * i + 3) % static_cast<size_t>(vocab)));
  return tokens;
}

}  // namespace millrace::test
