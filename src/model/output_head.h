#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "model/config.h"
#include "model/rank_layout.h"
#include "model/residual_stream.h"
#include "model/weights.h"
#include "tensor/backend.h"
#include "tensor/collective.h"

namespace millrace::model {

/// The end of the last stage on one rank: the final norm of some rows, and their logits. Owned by a StageModel, whose
/// rules of calls hold; what the constructor takes outlives it.
class OutputHead {
 public:
  /// Receives what is computed of `rows[first, first + R)`, valid during the call. R is at most max_logit_rows.
  using BlockFn = std::function<void(size_t first, tensor::Matrix block)>;

  /// Allocates for blocks of `max_rows` rows.
  OutputHead(const ModelConfig& config, tensor::Backend& backend, const RankLayout& layout, const StageWeights& weights,
             ResidualStream& stream, int32_t max_rows);
  /// Sets the exchange with the other ranks of the stage; null: there are none.
  void set_collective(tensor::Collective* collective) { collective_ = collective; }

  /// Computes the final norm (compute) [R, hidden] of the given rows of `hidden`, block by block.
  void normed_rows(tensor::Matrix hidden, std::span<const int32_t> rows, const BlockFn& block);
  /// Projects such rows to logits (f32) [R, vocab]. With several ranks, columns after the vocabulary make equal slices
  /// of all ranks. The model has an output head.
  void logits(tensor::Matrix hidden, std::span<const int32_t> rows, const BlockFn& block);

 private:
  const ModelConfig& config_;
  tensor::Backend& backend_;
  const RankLayout& layout_;
  const StageWeights& weights_;
  ResidualStream& stream_;
  const int32_t max_rows_;
  tensor::Collective* collective_ = nullptr;
  tensor::Buffer row_hidden_;   // hidden  [max_rows, hidden]
  tensor::Buffer row_normed_;   // compute [max_rows, hidden]
  tensor::Buffer logit_slice_;  // f32     [max_rows, logit_columns], with several ranks
  tensor::Buffer logits_;       // f32     [max_rows, logit_columns · ranks]
};

}  // namespace millrace::model
