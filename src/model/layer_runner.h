#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "model/config.h"
#include "model/exchanged_batch.h"
#include "model/latent_attention.h"
#include "model/layer_range.h"
#include "model/rank_layout.h"
#include "model/recurrent_mixer.h"
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
  LayerRunner(const ModelConfig& config, LayerRange range, tensor::Backend& backend, const RankLayout& layout,
              const std::vector<LayerWeights>& weights, const StageLimits& limits);
  /// Sets the exchange with the other ranks of the stage; null: there are none.
  void set_collective(tensor::Collective* collective) { collective_ = collective; }
  /// Sets the exchange of experts with other rings, whose memory it reserves; null: the ring has all experts.
  void set_expert_exchange(tensor::ExpertExchange* exchange);
  /// Begins a step of the rings that share experts. Returns whether some ring has rows.
  [[nodiscard]] bool begin_step(uint64_t step, bool has_rows) {
    exchanged_batch_.forget();
    return expert_exchange_->begin_step(step, has_rows);
  }

  [[nodiscard]] const LayerConfig& layer_config(int32_t index) const { return config_.layer(range_.begin + index); }
  [[nodiscard]] const LayerLayout& layer_layout(int32_t index) const { return layout_.layer(range_.begin + index); }
  [[nodiscard]] tensor::AttentionShape attention_shape(int32_t index) const;
  /// Computes the model's norm of `hidden` into `out` (compute). An encoder's also replaces `hidden`.
  void norm(tensor::Matrix hidden, const tensor::DeviceVector& weight, const tensor::DeviceVector* bias,
            tensor::Matrix out);

  /// Returns whether the layer sees the keys and values of another one, and stores nothing.
  [[nodiscard]] bool shares_keys(int32_t index) const { return layer_config(index).attention.keys_of.has_value(); }
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
  /// Takes part in the exchange of a layer's experts, if it has some, without rows of this ring.
  void exchange_without_rows(int32_t index);
  /// Returns the most rows of one pass of all rings that share experts.
  [[nodiscard]] int64_t exchanged_rows() const {
    return int64_t{max_batch_tokens_} * layout_.experts.size / layout_.position.size;
  }

 private:
  /// Scratch of one layer. Widths are the rank's, of the widest layer.
  struct Activations {
    tensor::Buffer normed;           // compute [max_batch_tokens, hidden]
    tensor::Buffer sums;             // f32     [max_batch_tokens, hidden], if has_sums_
    tensor::Buffer joined_sums;      // f32     [max_batch_tokens, hidden], if experts have norms of their own
    tensor::Buffer magnitudes;       // f32     [max_batch_tokens, 1], with several ranks
    tensor::Buffer rank_magnitudes;  // f32     [max_batch_tokens, ranks], with several ranks
    tensor::Buffer qkv;              // f32     [max_batch_tokens, (heads + 2·kv_heads)·head_dim]
    tensor::Buffer query;            // compute [max_batch_tokens, heads·head_dim]
    tensor::Buffer mixed;            // compute [max_batch_tokens, a mixer's outputs]
    tensor::Buffer gates;            // f32     [max_batch_tokens, heads·head_dim], with an output gate
    tensor::Buffer tail_gates;       // f32     [max_tail_rows, heads·head_dim], with an output gate
    tensor::Buffer attended;         // compute [max_batch_tokens, heads·head_dim]
    tensor::Buffer activated;        // compute [max_batch_tokens, intermediate], if a layer is not sparse
    tensor::Buffer expanded;         // f32     [max_batch_tokens, expanded_columns()]
    tensor::Buffer routed;           // f32     [max_batch_tokens, experts], if a layer is sparse
    tensor::Buffer all_rows;         // compute [exchanged_rows(), expert_inputs()], if rings share experts
    tensor::Buffer all_routed;       // f32     [exchanged_rows(), experts], if rings share experts
    tensor::Buffer all_sums;         // f32     [exchanged_rows(), expert_inputs()], if rings share experts
    tensor::Buffer latent_rows;      // compute [max_batch_tokens, latent], if experts have one, as the next one
    tensor::Buffer latent_sums;      // f32     [max_batch_tokens, latent]
    tensor::Buffer shared_sums;      // f32     [max_batch_tokens, hidden], if a layer has a shared expert
    tensor::Buffer shared_gates;     // f32     [max_batch_tokens, 1], if a shared expert has a gate
    tensor::Buffer input_gates;      // f32     [max_batch_tokens, width of own inputs]
    tensor::Buffer gated_inputs;     // compute [max_batch_tokens, width of own inputs]
    tensor::Buffer tail_query;       // as `query`, or what LatentProjection returns, of max_tail_rows
    tensor::Buffer tail_mixed;       // as `mixed`, of max_tail_rows
    tensor::Buffer tail_normed;      // compute [max_tail_rows, hidden], if a layer is parallel
  };
  /// The rotation of one entry of ModelConfig::ropes, or none.
  struct Rotation {
    std::unique_ptr<tensor::DeviceVector> inverse_frequency;  // [rotary_dim / 2]
    float attention_factor = 1.0f;
  };
  /// The end of a block: hidden += multiplier · norm(sums + bias).
  struct BlockEnd {
    const tensor::DeviceVector* bias = nullptr;
    const tensor::DeviceVector* norm = nullptr;  ///< null: no norm
    float multiplier = 1.0f;
    [[nodiscard]] bool is_plain() const { return norm == nullptr && multiplier == 1.0f; }
  };

  /// Returns whether the layer has an indexer of its own.
  [[nodiscard]] bool has_indexer(int32_t index) const {
    const auto& latent = weights_[static_cast<size_t>(index)].latent;
    return latent && latent->indexer;
  }
  [[nodiscard]] bool has_ranks() const { return layout_.position.size > 1; }
  /// Returns the most experts of a layer; 0: no layer is sparse.
  [[nodiscard]] int64_t max_experts() const;
  /// Returns the channels of what the experts of a layer take; 0: it is not sparse.
  [[nodiscard]] int64_t expert_inputs(int32_t index) const;
  void make_rotations();
  void allocate(const StageLimits& limits);
  /// Allocates what attention and recurrent mixers need.
  void allocate_mixers(const StageLimits& limits);
  /// Returns the largest of a number that `of` gives for each layer.
  template <class Of>
  [[nodiscard]] int64_t largest(const Of& of) const {
    int64_t largest = 0;
    for (int32_t index = 0; index < range_.size(); ++index) largest = std::max<int64_t>(largest, of(index));
    return largest;
  }
  /// Returns the columns of a layer's activations before its activation function, where they are stored.
  [[nodiscard]] int64_t expanded_columns(int32_t index) const;
  [[nodiscard]] tensor::RotaryTable rotary_table(const AttentionConfig& attention) const;
  [[nodiscard]] LatentProjection::Layer latent_layer(int32_t index, int32_t cache_layer) const;
  /// Returns the first rows of the buffer of normed activations.
  [[nodiscard]] tensor::Matrix normed_rows(int64_t rows) const;
  /// Computes a block's input: the norm of `hidden`, or `hidden` itself where `weight` is null.
  [[nodiscard]] tensor::Matrix block_input(tensor::Matrix hidden, const tensor::DeviceVector* weight,
                                           const tensor::DeviceVector* bias);
  /// Stores the keys and values of a block's input and returns its queries.
  [[nodiscard]] tensor::Matrix begin_attention(int32_t index, tensor::Matrix input, const LayerCache& kept);
  /// Adds the outputs of attention and of the recurrent mixer. `gates` are those of the rows, with an output gate.
  void add_mixed(int32_t index, const BegunLayer& begun, const tensor::Buffer& gates, const LayerCaches& kept,
                 tensor::Matrix hidden);
  /// Returns the output gates (f32) [rows, heads·head_dim] of a layer in a buffer.
  [[nodiscard]] tensor::Matrix gates_in(const tensor::Buffer& buffer, int32_t index, int64_t rows) const;
  /// Computes attention of the queries.
  [[nodiscard]] tensor::Matrix attended(int32_t index, const BegunLayer& begun, const LayerCache& kept);
  /// Adds a block's output x · Wᵀ to hidden. The weight's inputs are divided over the ranks.
  void add_product(tensor::Matrix x, const tensor::PackedWeight& weight, const BlockEnd& end, tensor::Matrix hidden);
  [[nodiscard]] tensor::Matrix block_sums(int64_t rows) const;
  /// Computes x · Wᵀ (f32), added over all ranks. The weight's inputs are divided over the ranks.
  void multiply(tensor::Matrix x, const tensor::PackedWeight& weight, tensor::Matrix sums);
  /// Adds whole sums to hidden.
  void add_sums(tensor::Matrix sums, const BlockEnd& end, tensor::Matrix hidden);
  /// Computes a layer's feed-forward block, if it has one. In a parallel layer `attention_input` is its input.
  void feed_forward(int32_t index, const tensor::UploadedBatch& batch, tensor::Matrix attention_input,
                    tensor::Matrix hidden);
  /// Ends a layer: adds what its own input gives, and scales its output.
  void end_layer(int32_t index, tensor::Matrix inputs, tensor::Matrix hidden);
  void run_experts(int32_t index, tensor::Matrix x, const tensor::UploadedBatch& batch, tensor::Matrix hidden);
  [[nodiscard]] bool has_own_norms(int32_t index) const;
  /// Computes a block of experts and a shared expert with norms of their own. `x` is the shared expert's input.
  void run_normed_experts(int32_t index, tensor::Matrix x, const tensor::UploadedBatch& batch, tensor::Matrix hidden);
  /// Adds the outputs of experts with a latent to hidden. `x` is the block's input.
  void add_latent_experts(int32_t index, tensor::Matrix x, tensor::Matrix routed, const tensor::UploadedBatch& batch,
                          const BlockEnd& end, tensor::Matrix hidden);
  /// Computes the sums of a layer's experts over all ranks that have some.
  void sum_experts(const tensor::Experts& experts, tensor::Matrix x, tensor::Matrix routed,
                   const tensor::UploadedBatch& batch, tensor::Matrix sums);
  /// Computes the rank's experts for the rows of all rings, and the sums over all of their ranks for those of this
  /// ring.
  void exchange_experts(const tensor::Experts& experts, tensor::Matrix x, tensor::Matrix routed, tensor::Matrix sums);
  /// Adds a shared expert's output to hidden.
  void add_shared_expert(int32_t index, tensor::Matrix x, tensor::Matrix hidden);
  /// Returns the inputs of the feed-forward block's last matrix.
  [[nodiscard]] tensor::Matrix activate(int32_t index, tensor::Matrix x);

  const ModelConfig& config_;
  const LayerRange range_;
  tensor::Backend& backend_;
  const RankLayout& layout_;
  const std::vector<LayerWeights>& weights_;
  const int32_t max_batch_tokens_;
  tensor::Collective* collective_ = nullptr;
  tensor::ExpertExchange* expert_exchange_ = nullptr;
  std::vector<Rotation> rotations_;  // [ropes + 1]; the last one rotates nothing
  bool has_sums_ = false;            // blocks end with sums in a buffer of their own
  Activations activations_;
  std::optional<LatentProjection> latent_;  // if a layer's attention is latent
  std::optional<RecurrentMixer> mixer_;     // if a layer is recurrent
  ExchangedBatch exchanged_batch_;          // of the step under way
};

}  // namespace millrace::model
