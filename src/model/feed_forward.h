#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"
#include "model/exchanged_batch.h"
#include "model/layer_range.h"
#include "model/rank_layout.h"
#include "model/residual_stream.h"
#include "model/weights.h"
#include "tensor/backend.h"
#include "tensor/expert_exchange.h"

namespace millrace::model {

/// Computes the feed-forward blocks of a stage on one rank: dense ones, experts, and shared experts. It owns the
/// activations inside a block, which every block overwrites. Layers are numbered within the stage. Owned by a
/// LayerRunner, whose rules of calls hold; what the constructor takes outlives it.
class FeedForward {
 public:
  /// Allocates for `max_rows` rows.
  FeedForward(const ModelConfig& config, LayerRange range, tensor::Backend& backend, const RankLayout& layout,
              const std::vector<LayerWeights>& weights, ResidualStream& stream, int32_t max_rows);

  /// Sets the exchange of experts with other rings, whose memory it reserves; null: the ring has all experts.
  void set_expert_exchange(tensor::ExpertExchange* exchange);
  /// Begins a step of the rings that share experts. Returns whether some ring has rows.
  [[nodiscard]] bool begin_step(uint64_t step, bool has_rows) {
    exchanged_batch_.forget();
    return expert_exchange_->begin_step(step, has_rows);
  }
  /// Returns the most rows of one pass of all rings that share experts.
  [[nodiscard]] int64_t exchanged_rows() const {
    return int64_t{max_rows_} * layout_.experts.size / layout_.position.size;
  }

  /// Computes a layer's block, if it has one, into `hidden`. In a parallel layer `attention_input` is its input.
  void run(int32_t index, const tensor::UploadedBatch& batch, tensor::Matrix attention_input, tensor::Matrix hidden);
  /// Takes part in the exchange of a layer's experts, if it has some, without rows of this ring.
  void exchange_without_rows(int32_t index);

 private:
  [[nodiscard]] const LayerConfig& layer_config(int32_t index) const { return config_.layer(range_.begin + index); }
  [[nodiscard]] int64_t features(int32_t index) const {
    return layout_.layer(range_.begin + index).features.owned().size();
  }
  /// Returns the most experts of a layer; 0: no layer is sparse.
  [[nodiscard]] int64_t max_experts() const;
  /// Returns the channels of what the experts of a layer take; 0: it is not sparse.
  [[nodiscard]] int64_t expert_inputs(int32_t index) const;
  /// Returns the columns of a layer's activations before its activation function, where they are stored.
  [[nodiscard]] int64_t expanded_columns(int32_t index) const;
  void allocate();
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
  /// Returns the inputs of the block's last matrix.
  [[nodiscard]] tensor::Matrix activate(int32_t index, tensor::Matrix x);

  const ModelConfig& config_;
  const LayerRange range_;
  tensor::Backend& backend_;
  const RankLayout& layout_;
  const std::vector<LayerWeights>& weights_;
  ResidualStream& stream_;
  const int32_t max_rows_;
  tensor::ExpertExchange* expert_exchange_ = nullptr;
  ExchangedBatch exchanged_batch_;  // of the step under way
  // Widths are the rank's, of the widest layer.
  tensor::Buffer activated_;     // compute [max_rows, intermediate]
  tensor::Buffer expanded_;      // f32     [max_rows, expanded_columns()]
  tensor::Buffer routed_;        // f32     [max_rows, experts]
  tensor::Buffer all_rows_;      // compute [exchanged_rows(), expert_inputs()], if rings share experts
  tensor::Buffer all_routed_;    // f32     [exchanged_rows(), experts], if rings share experts
  tensor::Buffer all_sums_;      // f32     [exchanged_rows(), expert_inputs()], if rings share experts
  tensor::Buffer latent_rows_;   // compute [max_rows, latent], if experts have one, as the next one
  tensor::Buffer latent_sums_;   // f32     [max_rows, latent]
  tensor::Buffer joined_sums_;   // f32     [max_rows, hidden], if experts have norms of their own
  tensor::Buffer shared_sums_;   // f32     [max_rows, hidden], if a layer has a shared expert
  tensor::Buffer shared_gates_;  // f32     [max_rows, 1], if a shared expert has a gate
};

}  // namespace millrace::model
