#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/layer_inputs.h"
#include "model/layer_range.h"
#include "model/layer_runner.h"
#include "model/output_head.h"
#include "model/stage_caches.h"
#include "model/weights.h"
#include "tensor/backend.h"
#include "tensor/collective.h"
#include "tensor/expert_exchange.h"

namespace millrace::model {

/// The inputs of one forward pass, borrowed for the duration of the call.
struct ForwardInput {
  std::span<const TokenId> tokens;   ///< [T]; unused by later stages, unless layers have inputs of their own
  const tensor::BatchLayout& batch;  ///< of T rows, with the pages of cache group 0
  /// The residual stream, computed in place, in a buffer from allocate_hidden. The first stage computes it from the
  /// tokens; the others start from what the previous stage sent. On return it holds the input of the next stage, or of
  /// `logits`. Buffer rows after these may be overwritten.
  tensor::Matrix hidden;  // [T, hidden]
  /// Pending copies into pages of the batch. A layer's attention waits for the copies of that layer.
  std::span<const std::shared_ptr<tensor::LayerGate>> loads = {};
  /// Last stage: how many of each sequence's last rows go on to `logits`. For the other rows the last layer computes
  /// keys and values only. Empty: all rows.
  std::span<const int32_t> tails = {};  // [sequences], max_tail_rows in all
  /// What the previous stage sent, to be copied into `hidden`. Empty on the first stage, or when `hidden` holds it
  /// already.
  std::span<const std::byte> received = {};  // [T, hidden]
  /// Says whether each sequence takes a decode step, whose rows after the first are drafts. A batch of one row per
  /// sequence always is.
  bool is_decode = false;
  uint64_t step = 0;  ///< number of the step, where rings share experts
  /// Batches of the same rows with the pages of each window group. Empty: all groups use the pages of `batch`.
  std::span<const tensor::BatchLayout> windows = {};  // [CacheGroups::windows]
  /// First stage of an encoder: the position of each sequence's second text, whose tokens have type 1. 0: it has none.
  /// Empty: none has.
  std::span<const int32_t> second_texts = {};  // [sequences]
};

/// The layers [begin, end) of a model on a backend, or one rank's part of them. The first stage also embeds; the last
/// also normalises and projects. All ranks of a stage make the same calls, have the same residual stream, and return
/// the same bits as a single rank. Owned by a stage. Loading runs on any thread; `forward` and `logits` run inside
/// Backend::submit only, one at a time. Activations are allocated on loading and the cache by allocate_cache(): nothing
/// at run time. The checkpoint and the backend outlive it.
class StageModel {
 public:
  /// Loads the span's weights. Errors: those of load_weights. Rethrows what the backend throws when memory is short.
  [[nodiscard]] static Result<std::unique_ptr<StageModel>> load(const Checkpoint& checkpoint, const ModelConfig& config,
                                                                StageSpan span, tensor::Backend& backend,
                                                                StageLimits limits, const LoadOptions& options = {});
  /// Makes a model that computes with the weights of this one on another backend. Both backends are of the host, with
  /// one compute dtype and one set of kernels. The checkpoint outlives both models.
  [[nodiscard]] std::unique_ptr<StageModel> share(tensor::Backend& backend) const;

  /// Sets the exchange with the other ranks of the stage, which outlives its use. Its position is that of LoadOptions.
  /// Call it before the first forward pass, and between two for another one. A single rank needs none.
  void set_collective(tensor::Collective* collective);
  /// Sets the exchange of experts with other rings, in the same way. Its position is LoadOptions::experts.
  void set_expert_exchange(tensor::ExpertExchange* exchange);

  /// Reserves the device's scratch for all work within the limits, with sequences of up to `context` tokens. Call it
  /// before the remaining memory is divided into pages.
  void reserve(int32_t sequences, int32_t context, int32_t page_size);
  /// Replaces the caches by new ones, which discards their contents. Call it before the first forward pass, or between
  /// two.
  void allocate_cache(int32_t page_size, std::span<const uint32_t> page_counts);  // [groups]
  /// Does so with equal page counts.
  void allocate_cache(int32_t page_size, int32_t page_count);
  void free_cache();
  /// Returns the bytes per page of a group's cache that allocate_cache() makes; 0 if no layer of the stage is in the
  /// group.
  [[nodiscard]] uint64_t page_bytes(int32_t page_size, size_t group = 0) const {
    return caches_.page_bytes(page_size, group);
  }

  /// Computes the stage's layers for at most max_batch_tokens rows and stores their keys and values in the pages.
  /// Returns the stage's output, valid until the next call: `hidden`, or the rows that `tails` names, in order.
  tensor::Matrix forward(const ForwardInput& input);
  /// Takes part in a step of the rings that share experts: computes what their rows want of the rank's experts.
  void step_without_rows(uint64_t step);

  using BlockFn = OutputHead::BlockFn;
  /// Last stage: see OutputHead, for rows of a matrix that `forward` returned.
  void normed_rows(tensor::Matrix hidden, std::span<const int32_t> rows, const BlockFn& block);
  void logits(tensor::Matrix hidden, std::span<const int32_t> rows, const BlockFn& block);

  /// Returns a buffer for `hidden` of the largest batch.
  [[nodiscard]] tensor::Buffer allocate_hidden();
  /// Returns the matrix of a buffer's first `rows` rows.
  [[nodiscard]] tensor::Matrix hidden_view(const tensor::Buffer& buffer, int64_t rows) const;

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] StageSpan span() const { return span_; }
  [[nodiscard]] StageLimits limits() const { return limits_; }
  [[nodiscard]] const RankLayout& rank() const { return layout_; }
  [[nodiscard]] tensor::Backend& backend() const { return backend_; }
  [[nodiscard]] const CacheGroups& cache_groups() const { return caches_.groups(); }
  /// Returns whether a layer of the stage is in a cache group.
  [[nodiscard]] bool has_cache(size_t group) const { return caches_.has_cache(group); }
  [[nodiscard]] tensor::KvCache& cache(size_t group = 0) const { return caches_.cache(group); }
  /// Returns where the `index`th layer of the stage keeps keys and values, and states, of its own.
  [[nodiscard]] std::vector<CacheLayer> cache_layers(int32_t index) const { return caches_.own_layers(index); }
  /// Returns the bytes of the stage's weights as stored in the checkpoint.
  [[nodiscard]] uint64_t checkpoint_bytes() const { return weights_->checkpoint_bytes; }
  /// Returns the counts of decode steps. They outlive the model.
  [[nodiscard]] std::shared_ptr<const tensor::GraphStats> graph_stats() const { return graph_stats_; }
  /// Returns the fingerprints of the stage's weights, if LoadOptions requested them.
  [[nodiscard]] const std::optional<StageFingerprint>& fingerprint() const { return weights_->fingerprint; }

 private:
  StageModel(const ModelConfig& config, StageSpan span, tensor::Backend& backend, StageLimits limits,
             const RankLayout& layout, std::shared_ptr<const StageWeights> weights);
  [[nodiscard]] bool has_ranks() const { return layout_.position.size > 1; }
  [[nodiscard]] bool takes_tokens() const { return config_.embeds(span_.first); }
  struct Tails;
  struct ForwardPass;
  /// Returns the size to which a replay pads a batch when the buffers hold `max_rows`.
  [[nodiscard]] tensor::BatchSize padded(const tensor::BatchSize& size, int32_t max_rows) const;
  void upload_inputs(const ForwardInput& input, ForwardPass& pass);
  void upload_tails(const ForwardInput& input, ForwardPass& pass);
  void fill(const ForwardPass& pass);
  static void wait_for_loads(const ForwardPass& pass, int32_t index);
  void run_layers(const ForwardPass& pass);
  [[nodiscard]] BegunLayer begin_layer(const ForwardPass& pass, int32_t index);
  void run_tails(const ForwardPass& pass);
  /// Returns the own inputs of all layers; an empty matrix where there are none.
  [[nodiscard]] tensor::Matrix own_inputs() const;

  ModelConfig config_;
  StageSpan span_;
  tensor::Backend& backend_;
  StageLimits limits_;
  RankLayout layout_;
  tensor::Collective* collective_ = nullptr;
  tensor::ExpertExchange* expert_exchange_ = nullptr;
  const std::shared_ptr<const StageWeights> weights_;  // of all models that share() them
  LayerRunner runner_;
  std::optional<LayerInputs> layer_inputs_;  // of a model whose layers have inputs of their own
  StageCaches caches_;
  std::optional<OutputHead> head_;          // of the last stage
  tensor::Buffer tail_hidden_;              // hidden [max_tail_rows, hidden], of the last stage
  std::unique_ptr<tensor::Replay> replay_;  // of decode steps
  const std::shared_ptr<tensor::GraphStats> graph_stats_ = std::make_shared<tensor::GraphStats>();
};

}  // namespace millrace::model
