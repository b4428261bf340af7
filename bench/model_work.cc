#include "model_work.h"

#include <algorithm>
#include <limits>

#include "model/tensor_list.h"

namespace millrace::bench {

namespace {

/// Returns the bytes of one weight of a matrix with `cols` inputs, its share of the scales included.
double bytes_quantized(model::Quantization quantization, int64_t cols) {
  if (quantization == model::Quantization::kW4) return 0.5 + 2.0 / static_cast<double>(tensor::kCodeUnit);
  const bool by_row = model::w8_scaling_of(quantization) == tensor::W8Scaling::kPerChannel;
  return by_row ? 1.0 + 4.0 / static_cast<double>(cols) : 1.0 + 2.0 / static_cast<double>(tensor::kW8Group);
}

/// Returns the share of a layer's experts that a row uses.
double expert_share(const model::LayerConfig& layer) {
  const model::MoeConfig& moe = *layer.feed_forward.moe;
  return static_cast<double>(moe.experts_per_token) / moe.expert_count;
}

}  // namespace

ModelWork::ModelWork(const model::ModelConfig& config) {
  const auto value_bytes = static_cast<double>(tensor::size_of(config.dtype));
  for (const model::TensorSpec& spec : model::stage_tensors(config, {.layers = {0, config.layer_count()}})) {
    const auto values = static_cast<double>(spec.shape.elements());
    const bool is_head = spec.name == model::head_name(config);
    const bool small = config.quantization != model::Quantization::kNone && (spec.projection || is_head);
    const double bytes = values * (small ? bytes_quantized(config.quantization, spec.shape[1]) : value_bytes);
    if (is_head) {
      weight_bytes_ += bytes;
      head_operations_ += 2 * values;
    } else if (spec.name != model::kEmbeddingName) {
      const bool of_expert = spec.expert >= 0;
      weight_bytes_ += bytes;
      row_operations_ += 2 * values * (of_expert ? expert_share(config.layer(spec.layer)) : 1);
      reads_all_ = reads_all_ && !of_expert;
    }
  }
  const model::AttentionConfig& attention = config.layer(0).attention;  // equal heads on all layers
  kv_token_bytes_ = 2.0 * static_cast<double>(attention.kv_width()) * value_bytes;
  key_operations_ = 4.0 * static_cast<double>(attention.query_width());
  if (attention.latent) {  // in the absorbed form
    const auto& indexer = attention.latent->indexer;
    const double key = attention.latent->latent_dim + attention.latent->rope_dim;
    kv_token_bytes_ = (key + (indexer ? indexer->head_dim : 0)) * value_bytes;
    key_operations_ = 2.0 * attention.head_count * (key + attention.latent->latent_dim);
  }
  for (const model::LayerConfig& layer : config.layers) {
    if (!layer.attends) continue;
    const int32_t window = layer.attention.window;
    windows_.push_back(window == 0 ? std::numeric_limits<double>::infinity() : window);
  }
}

double ModelWork::seen(double keys) const {
  double sum = 0;
  for (const double window : windows_) sum += std::min(keys, window);
  return sum;
}

double ModelWork::kv_bytes(double keys) const {
  return seen(keys) * kv_token_bytes_;
}

double ModelWork::drawn_operations(double keys) const {
  return row_operations_ + head_operations_ + seen(keys) * key_operations_;
}

double ModelWork::prompt_operations(double tokens) const {
  double keys = 0;
  for (double row = 1; row <= tokens; ++row) keys += seen(row);
  return tokens * row_operations_ + keys * key_operations_ + head_operations_;
}

}  // namespace millrace::bench
