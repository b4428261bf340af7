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
#include "model/decoded_matrix.h"
#include "model/fingerprint.h"
#include "model/latent_attention.h"
#include "model/layer_range.h"
#include "model/rank_layout.h"
#include "model/recurrent_mixer.h"
#include "tensor/backend.h"
#include "tensor/slices.h"

namespace millrace::model {

/// Progress of loading a stage's weights.
struct LoadProgress {
  size_t tensors_done = 0;
  size_t tensors_total = 0;
  uint64_t bytes_done = 0;  ///< as stored in the checkpoint
  uint64_t bytes_total = 0;
};
/// A callback that the loading thread calls after each step; may be empty.
using ProgressFn = std::function<void(const LoadProgress&)>;

/// Options of load_weights.
struct LoadOptions {
  ProgressFn progress;
  int32_t threads = 0;            ///< for quantizing weights to 8 bits on loading; 0: one per processor
  bool with_fingerprint = false;  ///< compute StageWeights::fingerprint, which hashes all bytes
  tensor::RankPosition position;  ///< the rank whose part is loaded
  /// The rank's position among those of all rings that share experts; empty: the ring has all of them.
  std::optional<tensor::RankPosition> experts;
};

/// A rank's part of one layer on the device. Weights that the layer's description lacks are null. Sizes are the rank's
/// (see LayerLayout). A norm has a bias where NormKind::kLayerInPlace asks for it.
struct LayerWeights {
  std::unique_ptr<tensor::DeviceVector> input_norm;       // [hidden]
  std::unique_ptr<tensor::DeviceVector> input_norm_bias;  // [hidden]
  std::unique_ptr<RecurrentWeights> recurrent;            ///< of a recurrent mixer
  std::unique_ptr<LatentWeights> latent;                  ///< of latent attention; then all up to `sinks` are null
  std::unique_ptr<tensor::PackedWeight> qkv;              // [(heads + 2·kv_heads)·head_dim, hidden]
  std::unique_ptr<tensor::PackedWeight> query_gate;       // [heads·head_dim, hidden], with an output gate
  std::unique_ptr<tensor::DeviceVector> qkv_bias;         // [(heads + 2·kv_heads)·head_dim]
  std::unique_ptr<tensor::DeviceVector> q_norm;           // [head_dim] or [heads·head_dim]
  std::unique_ptr<tensor::DeviceVector> k_norm;           // [head_dim] or [kv_heads·head_dim]
  std::unique_ptr<tensor::DeviceVector> sinks;            // [heads]
  std::unique_ptr<tensor::PackedWeight> output;           // [hidden, heads·head_dim]
  std::unique_ptr<tensor::DeviceVector> output_bias;      // [hidden]
  std::unique_ptr<tensor::DeviceVector> attention_norm;   // [hidden], after attention
  std::unique_ptr<tensor::DeviceVector> mlp_norm;         // [hidden]
  std::unique_ptr<tensor::DeviceVector> mlp_norm_bias;    // [hidden]
  std::unique_ptr<tensor::PackedWeight> gate_up;      // [intermediate] twice, hidden; with SiLU made by pack_gate_up
  std::unique_ptr<tensor::PackedWeight> up;           // [intermediate, hidden], without a gate
  std::unique_ptr<tensor::DeviceVector> up_bias;      // [intermediate]; of gate and up in turn with a gate
  std::unique_ptr<tensor::PackedWeight> down;         // [hidden, intermediate]
  std::unique_ptr<tensor::DeviceVector> down_bias;    // [hidden]
  std::unique_ptr<tensor::DeviceVector> output_norm;  // [hidden], after the feed-forward block
  // A layer with an input of its own has these as well.
  std::unique_ptr<tensor::PackedWeight> input_gate;         // [width, hidden]
  std::unique_ptr<tensor::PackedWeight> input_projection;   // [hidden, width]
  std::unique_ptr<tensor::DeviceVector> input_output_norm;  // [hidden]
  float output_scale = 1.0f;                                ///< of the layer
  // A sparse layer has these as well; gate_up and down are then the shared expert's.
  std::unique_ptr<tensor::PackedWeight> router;              // [experts, hidden]
  std::unique_ptr<tensor::DeviceVector> router_bias;         // [experts]
  std::unique_ptr<tensor::Experts> experts;                  // of [moe.intermediate_size, moe.input_size()]
  std::unique_ptr<tensor::PackedWeight> experts_input;       // [latent, hidden], of experts with a latent
  std::unique_ptr<tensor::PackedWeight> experts_output;      // [hidden, latent], of experts with a latent
  std::unique_ptr<tensor::PackedWeight> shared_expert_gate;  // [1, hidden]
  // Norms of a block of experts that has its own.
  std::unique_ptr<tensor::DeviceVector> shared_output_norm;   // [hidden]
  std::unique_ptr<tensor::DeviceVector> router_norm;          // [hidden]
  std::unique_ptr<tensor::DeviceVector> experts_norm;         // [hidden]
  std::unique_ptr<tensor::DeviceVector> experts_output_norm;  // [hidden]
};

/// What makes the own inputs of a stage's layers.
struct LayerInputWeights {
  std::unique_ptr<DecodedMatrix> decoded_table;      ///< what `table` reads where it is not stored as floats
  tensor::HostSlice slice;                           ///< what `table` reads where the stage has a part of the columns
  std::unique_ptr<tensor::EmbeddingTable> table;     // [vocab · table_layers, width]
  int32_t table_layers = 0;                          ///< layers of which the table has rows
  int32_t table_first = 0;                           ///< row of the stage's first layer among those of a token
  std::unique_ptr<tensor::PackedWeight> projection;  // [layers of the stage · width, hidden]
  std::unique_ptr<tensor::DeviceVector> norm;        // [width], times the factor of the whole sum
};

/// The weights of one stage on its device.
struct StageWeights {
  std::unique_ptr<DecodedMatrix> decoded_embedding;   ///< what `embedding` reads where it is not stored as floats
  std::unique_ptr<tensor::EmbeddingTable> embedding;  ///< first stage, or any with `layer_inputs`
  std::unique_ptr<DecodedMatrix> decoded_positions;   ///< as `decoded_embedding`
  std::unique_ptr<DecodedMatrix> decoded_types;
  std::unique_ptr<tensor::EmbeddingTable> positions;  ///< first stage of an encoder
  std::unique_ptr<tensor::EmbeddingTable> types;      ///< first stage of an encoder
  std::optional<LayerInputWeights> layer_inputs;      ///< of a model whose layers have inputs of their own
  std::vector<LayerWeights> layers;
  std::unique_ptr<tensor::DeviceVector> final_norm;       // [hidden], last stage
  std::unique_ptr<tensor::DeviceVector> final_norm_bias;  // [hidden], last stage of an encoder
  std::unique_ptr<tensor::PackedWeight> head;             // [logit_columns, hidden], last stage with the output head
  uint64_t checkpoint_bytes = 0;                          ///< of the rank's parts of the span's tensors, as stored
  std::optional<StageFingerprint> fingerprint;            ///< of the config, the span and the rank's parts, on request
};

/// Refuses a model that needs what the backend lacks. Error: kInvalidArgument with the backend's name.
[[nodiscard]] Result<void> check_backend(const ModelConfig& config, const tensor::Backend& backend);

/// Loads a rank's parts of the tensors of a span. All are found and their shapes checked before the first is packed, so
/// that a bad checkpoint fails at once. Nothing outside the span is touched. Errors: those of Checkpoint::find,
/// reject_unknown_tensors, check_ranks and check_backend.
[[nodiscard]] Result<StageWeights> load_weights(const Checkpoint& checkpoint, const ModelConfig& config, StageSpan span,
                                                tensor::Backend& backend, const LoadOptions& options);

}  // namespace millrace::model
