#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/layer_range.h"
#include "model/weights.h"
#include "tensor/backend.h"

namespace millrace::model {

struct StageLimits {
  int32_t max_batch_tokens = 0;  ///< rows of one forward
  int32_t max_logit_rows = 0;    ///< rows of logits that exist at once
  int32_t max_tail_rows = 0;     ///< rows that ForwardInput::tails may name
};

/// One forward. Everything is borrowed for the length of the call.
struct ForwardInput {
  std::span<const TokenId> tokens;   ///< [T], first stage only
  const tensor::BatchLayout& batch;  ///< of T rows
  /// Hidden dtype, computed in place: the first stage writes it from the tokens, the others from what the stage before
  /// sent. On return it holds what goes on to the next stage, or into `logits`. In a buffer from
  /// allocate_hidden, whose rows behind these may be written to.
  tensor::Matrix hidden;  // [T, hidden]
  /// Copies under way into pages of the batch: a layer's attention comes after their copies of that layer.
  std::span<const std::shared_ptr<tensor::LayerGate>> loads = {};
  /// Last stage: how many of each sequence's last rows go on to `logits`; the last layer computes no more of the others
  /// than their keys and values. Empty: all rows.
  std::span<const int32_t> tails = {};  // [sequences], max_tail_rows in all
  /// Not the first stage: what the stage before sent, which is copied into `hidden`. Empty: it is there already.
  std::span<const std::byte> received = {};  // [T, hidden]
  /// Each sequence takes a decode step; its rows behind the first are drafts. Rows of one each are that anyway.
  bool is_decode = false;
};

/// The layers [begin, end) of a model on a backend; the first stage also embeds, the last also normalises and projects.
/// Owned by a stage. Loading runs on any thread; `forward` and `logits` are called inside Backend::submit only, one at
/// a time. Activations are allocated when it is loaded, the cache once its size is agreed: nothing at run time. The
/// checkpoint and the backend outlive it.
class StageModel {
 public:
  /// Errors: those of Checkpoint::find. Throws what the backend throws when memory is short.
  [[nodiscard]] static Result<std::unique_ptr<StageModel>> load(const Checkpoint& checkpoint, const ModelConfig& config,
                                                                StageSpan span, tensor::Backend& backend,
                                                                StageLimits limits, const LoadOptions& options = {});

  /// Takes the device's scratch for everything within the limits and sequences of up to `context` tokens; before the
  /// memory that is left is divided into pages.
  void reserve(int32_t sequences, int32_t context, int32_t page_size);
  /// Before the first forward, and between any two: the cache is new then, and what the one before held is gone.
  void allocate_cache(int32_t page_size, int32_t page_count);
  void free_cache();
  /// Bytes that a page takes of a cache that allocate_cache() makes.
  [[nodiscard]] uint64_t page_bytes(int32_t page_size) const;

  /// Computes the stage's layers for a batch of at most max_batch_tokens rows; their keys and values go to the pages.
  /// Returns what goes on: `hidden`, or the rows that `tails` names, in order, valid until the next forward.
  tensor::Matrix forward(const ForwardInput& input);

  /// Logits (f32) [R, vocab] of the rows `rows[first, first + R)`, R at most max_logit_rows, valid during the call.
  using LogitsFn = std::function<void(size_t first, tensor::Matrix logits)>;
  /// Last stage: projects the given rows of a `hidden` that `forward` has returned, block by block.
  void logits(tensor::Matrix hidden, std::span<const int32_t> rows, const LogitsFn& block);

  /// A buffer for `hidden` of the largest batch, and the matrix of its first `rows`.
  [[nodiscard]] tensor::Buffer allocate_hidden();
  [[nodiscard]] tensor::Matrix hidden_view(const tensor::Buffer& buffer, int64_t rows) const;

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] StageSpan span() const { return span_; }
  [[nodiscard]] StageLimits limits() const { return limits_; }
  [[nodiscard]] tensor::Backend& backend() const { return backend_; }
  [[nodiscard]] tensor::KvCache& cache() const;
  /// Bytes of the stage's weights as stored in the checkpoint.
  [[nodiscard]] uint64_t checkpoint_bytes() const { return weights_.checkpoint_bytes; }
  /// Outlives the model.
  [[nodiscard]] std::shared_ptr<const tensor::GraphStats> graph_stats() const { return graph_stats_; }
  /// Of the stage's weights, if it was loaded with it.
  [[nodiscard]] const std::optional<Fingerprint>& fingerprint() const { return weights_.fingerprint; }

 private:
  /// Scratch of one forward; each is overwritten by every layer.
  struct Activations {
    tensor::Buffer normed;       // compute [max_batch_tokens, hidden]
    tensor::Buffer qkv;          // f32     [max_batch_tokens, (heads + 2·kv_heads)·head_dim]
    tensor::Buffer query;        // compute [max_batch_tokens, heads·head_dim]
    tensor::Buffer attended;     // compute [max_batch_tokens, heads·head_dim]
    tensor::Buffer activated;    // compute [max_batch_tokens, intermediate], if a layer is not sparse
    tensor::Buffer routed;       // f32     [max_batch_tokens, experts], if one is
    tensor::Buffer tail_query;   // compute [max_tail_rows, heads·head_dim]
    tensor::Buffer tail_hidden;  // hidden  [max_tail_rows, hidden]
    tensor::Buffer row_hidden;   // hidden  [max_logit_rows, hidden]
    tensor::Buffer row_normed;   // compute [max_logit_rows, hidden]
    tensor::Buffer logits;       // f32     [max_logit_rows, vocab]
  };

  StageModel(const ModelConfig& config, StageSpan span, tensor::Backend& backend, StageLimits limits,
             StageWeights weights);
  void allocate_activations();
  [[nodiscard]] tensor::AttentionShape attention_shape(int32_t index) const;
  [[nodiscard]] tensor::KvCacheShape cache_shape(int32_t page_size, int32_t page_count) const;
  struct Tails;
  struct ForwardPass;
  /// What a replay pads a batch to, where the buffers hold `max_rows`.
  [[nodiscard]] tensor::BatchSize padded(const tensor::BatchSize& size, int32_t max_rows) const;
  void upload_inputs(const ForwardInput& input, ForwardPass& pass);
  void upload_tails(const ForwardInput& input, ForwardPass& pass);
  void fill(const ForwardPass& pass);
  void run_layers(const ForwardPass& pass);
  [[nodiscard]] tensor::Matrix project_qkv(const LayerWeights& layer, int32_t index, const ForwardPass& pass);
  void attend(const LayerWeights& layer, int32_t index, tensor::Matrix query, const tensor::UploadedBatch& batch,
              tensor::Matrix hidden);
  void finish_tails(const LayerWeights& layer, int32_t index, const ForwardPass& pass, tensor::Matrix query);
  void feed_forward(const LayerWeights& layer, const tensor::UploadedBatch& batch, tensor::Matrix hidden);
  /// Whether the stage has a layer with experts, or one without.
  [[nodiscard]] bool has_layer(bool sparse) const;

  ModelConfig config_;
  StageSpan span_;
  tensor::Backend& backend_;
  StageLimits limits_;
  StageWeights weights_;
  std::unique_ptr<tensor::DeviceVector> inverse_frequency_;  // [head_dim / 2]
  float attention_factor_ = 1.0f;
  Activations activations_;
  std::unique_ptr<tensor::KvCache> cache_;
  std::unique_ptr<tensor::Replay> replay_;  // of decode steps
  const std::shared_ptr<tensor::GraphStats> graph_stats_ = std::make_shared<tensor::GraphStats>();
};

}  // namespace millrace::model
