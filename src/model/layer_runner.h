#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "model/config.h"
#include "model/feed_forward.h"
#include "model/latent_attention.h"
#include "model/layer_range.h"
#include "model/rank_layout.h"
#include "model/recurrent_mixer.h"
#include "model/residual_stream.h"
#include "model/weights.h"
#include "tensor/backend.h"
#include "tensor/collective.h"
#include "tensor/expert_exchange.h"

namespace millrace::model {

/// Upper bounds of one forward pass, by which activations are allocated.
struct StageLimits {
  int32_t max_batch_tokens = 0;  ///< rows of one forward pass
  int32_t max_logit_rows = 0;    ///< rows of logits that exist at once
  int32_t max_tail_rows = 0;     ///< rows that go on from the last layer's keys and values
};

/// Where a layer keeps its keys and values, or its states: the cache of a group, its number there, and the batch with
/// the group's pages. Borrowed for one call.
struct LayerCache {
  const tensor::UploadedBatch& batch;
  tensor::KvCache& cache;
  int32_t layer = 0;
};
/// What a layer keeps of each sequence: keys and values if it has attention, states if it has a mixer. Borrowed for one
/// call.
struct LayerCaches {
  const tensor::UploadedBatch& batch;  ///< the rows, with the pages of the first group
  std::optional<LayerCache> attention = {};
  std::optional<LayerCache> states = {};
  tensor::Matrix inputs = {};  ///< the rows' own inputs of all layers of the stage, where layers have them
};
/// What the second half of a layer takes from the first: queries (compute) of its attention, and what the last matrix
/// of its mixer takes. A matrix that the layer lacks has no rows.
struct BegunLayer {
  tensor::Matrix query;
  tensor::Matrix mixed;
  tensor::IntMatrix chosen;  ///< the tokens that rows see, by an indexer; without columns: all
};

/// Computes the layers of a stage on one rank, as their descriptions say. It owns the activations inside a layer, which
/// every layer overwrites. Layers are numbered within the stage. Owned by a StageModel, whose rules of calls hold; what
/// the constructor takes outlives it.
class LayerRunner {
 public:
  LayerRunner(const LayerRunner&) = delete;  // its parts refer to each other
  LayerRunner& operator=(const LayerRunner&) = delete;
  LayerRunner(const ModelConfig& config, LayerRange range, tensor::Backend& backend, const RankLayout& layout,
              const std::vector<LayerWeights>& weights, const StageLimits& limits);
  /// Sets the exchange with the other ranks of the stage; null: there are none.
  void set_collective(tensor::Collective* collective) { stream_.set_collective(collective); }
  /// Returns the feed-forward blocks, which exchange experts with other rings.
  [[nodiscard]] FeedForward& feed_forward() { return feed_forward_; }
  [[nodiscard]] ResidualStream& stream() { return stream_; }

  [[nodiscard]] const LayerConfig& layer_config(int32_t index) const { return config_.layer(range_.begin + index); }
  [[nodiscard]] const LayerLayout& layer_layout(int32_t index) const { return layout_.layer(range_.begin + index); }
  [[nodiscard]] tensor::AttentionShape attention_shape(int32_t index) const;

  /// Returns whether begin() reads what earlier passes stored: a state, or the keys of an indexer.
  [[nodiscard]] bool begins_with_reads(int32_t index) const {
    return layer_config(index).recurrent.has_value() || has_indexer(index);
  }
  /// Stores the keys and values of all rows, and states, in the pages. What it returns is valid until the layer is
  /// finished.
  [[nodiscard]] BegunLayer begin(int32_t index, tensor::Matrix hidden, const LayerCaches& kept);
  /// Computes the rest of the layer into `hidden`.
  void finish(int32_t index, const BegunLayer& begun, const LayerCaches& kept, tensor::Matrix hidden);
  /// Computes the rest of the layer for some rows of `hidden` into `tails`; the batches of `kept` have these rows only.
  void finish_tails(int32_t index, const BegunLayer& begun, tensor::Matrix hidden, const tensor::UploadedIndices& rows,
                    const LayerCaches& kept, tensor::Matrix tails);

 private:
  /// Scratch of one layer. Widths are the rank's, of the widest layer.
  struct Activations {
    tensor::Buffer qkv;           // f32     [max_batch_tokens, (heads + 2·kv_heads)·head_dim]
    tensor::Buffer query;         // compute [max_batch_tokens, heads·head_dim]
    tensor::Buffer mixed;         // compute [max_batch_tokens, a mixer's outputs]
    tensor::Buffer gates;         // f32     [max_batch_tokens, heads·head_dim], with an output gate
    tensor::Buffer tail_gates;    // f32     [max_tail_rows, heads·head_dim], with an output gate
    tensor::Buffer attended;      // compute [max_batch_tokens, heads·head_dim]
    tensor::Buffer input_gates;   // f32     [max_batch_tokens, width of own inputs]
    tensor::Buffer gated_inputs;  // compute [max_batch_tokens, width of own inputs]
    tensor::Buffer tail_query;    // as `query`, or what LatentProjection returns, of max_tail_rows
    tensor::Buffer tail_mixed;    // as `mixed`, of max_tail_rows
    tensor::Buffer tail_normed;   // compute [max_tail_rows, hidden], if a layer is parallel
  };
  /// The rotation of one entry of ModelConfig::ropes, or none.
  struct Rotation {
    std::unique_ptr<tensor::DeviceVector> inverse_frequency;  // [rotary_dim / 2]
    float attention_factor = 1.0f;
  };
  /// Returns whether the layer has an indexer of its own.
  [[nodiscard]] bool has_indexer(int32_t index) const {
    const auto& latent = weights_[static_cast<size_t>(index)].latent;
    return latent && latent->indexer;
  }
  void make_rotations();
  void allocate(const StageLimits& limits);
  /// Allocates what attention and recurrent mixers need.
  void allocate_mixers(const StageLimits& limits);
  [[nodiscard]] tensor::RotaryTable rotary_table(const AttentionConfig& attention) const;
  [[nodiscard]] LatentProjection::Layer latent_layer(int32_t index, int32_t cache_layer) const;
  /// Stores the keys and values of a block's input and returns its queries.
  [[nodiscard]] tensor::Matrix begin_attention(int32_t index, tensor::Matrix input, const LayerCache& kept);
  /// Adds the outputs of attention and of the recurrent mixer. `gates` are those of the rows, with an output gate.
  void add_mixed(int32_t index, const BegunLayer& begun, const tensor::Buffer& gates, const LayerCaches& kept,
                 tensor::Matrix hidden);
  /// Returns the output gates (f32) [rows, heads·head_dim] of a layer in a buffer.
  [[nodiscard]] tensor::Matrix gates_in(const tensor::Buffer& buffer, int32_t index, int64_t rows) const;
  /// Computes attention of the queries.
  [[nodiscard]] tensor::Matrix attended(int32_t index, const BegunLayer& begun, const LayerCache& kept);
  /// Ends a layer: adds what its own input gives, and scales its output.
  void end_layer(int32_t index, tensor::Matrix inputs, tensor::Matrix hidden);

  const ModelConfig& config_;
  const LayerRange range_;
  tensor::Backend& backend_;
  const RankLayout& layout_;
  const std::vector<LayerWeights>& weights_;
  ResidualStream stream_;
  FeedForward feed_forward_;
  std::vector<Rotation> rotations_;  // [ropes + 1]; the last one rotates nothing
  Activations activations_;
  std::optional<LatentProjection> latent_;  // if a layer's attention is latent
  std::optional<RecurrentMixer> mixer_;     // if a layer is recurrent
};

}  // namespace millrace::model
