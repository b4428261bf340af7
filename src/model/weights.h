#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/fingerprint.h"
#include "model/layer_range.h"
#include "tensor/backend.h"

namespace millrace::model {

struct LoadProgress {
  size_t tensors_done = 0;
  size_t tensors_total = 0;
  uint64_t bytes_done = 0;  ///< as stored in the checkpoint
  uint64_t bytes_total = 0;
};
/// Called on the loading thread after each step; may be empty.
using ProgressFn = std::function<void(const LoadProgress&)>;

struct LoadOptions {
  ProgressFn progress;
  int32_t threads = 0;            ///< that round weights to 8 bits, where they are not yet; 0: one per processor
  bool with_fingerprint = false;  ///< takes StageWeights::fingerprint, which costs a hash of all bytes
};

/// One decoder layer on the device; what a family, or this layer, lacks is null.
struct LayerWeights {
  std::unique_ptr<tensor::DeviceVector> input_norm;   // [hidden]
  std::unique_ptr<tensor::PackedWeight> qkv;          // [(heads + 2·kv_heads)·head_dim, hidden]
  std::unique_ptr<tensor::DeviceVector> qkv_bias;     // [(heads + 2·kv_heads)·head_dim]
  std::unique_ptr<tensor::DeviceVector> q_norm;       // [head_dim]
  std::unique_ptr<tensor::DeviceVector> k_norm;       // [head_dim]
  std::unique_ptr<tensor::PackedWeight> output;       // [hidden, heads·head_dim]
  std::unique_ptr<tensor::DeviceVector> output_bias;  // [hidden]
  std::unique_ptr<tensor::DeviceVector> mlp_norm;     // [hidden]
  std::unique_ptr<tensor::PackedWeight> gate_up;      // [intermediate] twice, hidden
  std::unique_ptr<tensor::PackedWeight> down;         // [hidden, intermediate]
  // A sparse layer has these in place of the two above.
  std::unique_ptr<tensor::PackedWeight> router;  // [experts, hidden]
  std::unique_ptr<tensor::Experts> experts;      // of [moe.intermediate_size, hidden]
};

struct StageWeights {
  std::unique_ptr<tensor::EmbeddingTable> embedding;  ///< first stage
  std::vector<LayerWeights> layers;
  std::unique_ptr<tensor::DeviceVector> final_norm;  // [hidden], last stage
  std::unique_ptr<tensor::PackedWeight> head;        // [vocab, hidden], last stage
  uint64_t checkpoint_bytes = 0;                     ///< of the span's tensors, as stored
  std::optional<Fingerprint> fingerprint;            ///< of the config, the span and its tensors, if it was asked for
};

/// What the backend lacks that the model wants is kInvalidArgument, with the backend's name.
[[nodiscard]] Result<void> check_backend(const ModelConfig& config, const tensor::Backend& backend);

/// Every tensor of the span is found and its shape checked before the first is packed, so that a bad checkpoint fails
/// at once. Nothing outside the span is touched. Errors: those of Checkpoint::find; kData for a tensor of the span that
/// the config gives no meaning to; those of check_backend.
[[nodiscard]] Result<StageWeights> load_weights(const Checkpoint& checkpoint, const ModelConfig& config, StageSpan span,
                                                tensor::Backend& backend, const LoadOptions& options);

}  // namespace millrace::model
