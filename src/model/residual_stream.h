#pragma once

#include <cstdint>

#include "model/config.h"
#include "model/rank_layout.h"
#include "tensor/backend.h"
#include "tensor/collective.h"

namespace millrace::model {

/// The end of a block: hidden += multiplier · norm(sums + bias).
struct BlockEnd {
  const tensor::DeviceVector* bias = nullptr;
  const tensor::DeviceVector* norm = nullptr;  ///< null: no norm
  float multiplier = 1.0f;
  [[nodiscard]] bool is_plain() const { return norm == nullptr && multiplier == 1.0f; }
};

/// What blocks take from the residual stream and add to it, on one rank of a stage. It owns the buffers of both, which
/// every block overwrites. Owned by a LayerRunner, whose rules of calls hold; what the constructor takes outlives it.
class ResidualStream {
 public:
  /// Allocates for `max_rows` rows.
  ResidualStream(const ModelConfig& config, tensor::Backend& backend, const RankLayout& layout, int64_t max_rows);
  /// Sets the exchange with the other ranks of the stage; null: there are none.
  void set_collective(tensor::Collective* collective) { collective_ = collective; }
  [[nodiscard]] bool has_ranks() const { return ranks_ > 1; }

  /// Computes the model's norm of `hidden` into `out` (compute). An encoder's also replaces `hidden`.
  void norm(tensor::Matrix hidden, const tensor::DeviceVector& weight, const tensor::DeviceVector* bias,
            tensor::Matrix out);
  /// Returns the first rows of the buffer of inputs: compute [rows, hidden].
  [[nodiscard]] tensor::Matrix normed(int64_t rows) const;
  /// Computes a block's input: the norm of `hidden`, or `hidden` itself where `weight` is null.
  [[nodiscard]] tensor::Matrix input(tensor::Matrix hidden, const tensor::DeviceVector* weight,
                                     const tensor::DeviceVector* bias);
  /// Returns the first rows of the buffer of sums: f32 [rows, hidden].
  [[nodiscard]] tensor::Matrix sums(int64_t rows) const;
  /// Computes x · Wᵀ (f32), added over all ranks. The weight's inputs are divided over the ranks.
  void multiply(tensor::Matrix x, const tensor::PackedWeight& weight, tensor::Matrix sums);
  /// Adds sums of a rank to those of the others.
  void add_over_ranks(tensor::Matrix sums);
  /// Adds whole sums to hidden.
  void add(tensor::Matrix sums, const BlockEnd& end, tensor::Matrix hidden);
  /// Adds a block's output x · Wᵀ to hidden. The weight's inputs are divided over the ranks.
  void add_product(tensor::Matrix x, const tensor::PackedWeight& weight, const BlockEnd& end, tensor::Matrix hidden);

 private:
  const ModelConfig& config_;
  tensor::Backend& backend_;
  const int32_t ranks_;
  tensor::Collective* collective_ = nullptr;
  tensor::Buffer normed_;           // compute [max_rows, hidden]
  tensor::Buffer sums_;             // f32     [max_rows, hidden], where blocks end with sums in a buffer
  tensor::Buffer magnitudes_;       // f32     [max_rows, 1], with several ranks
  tensor::Buffer rank_magnitudes_;  // f32     [max_rows, ranks], with several ranks
};

}  // namespace millrace::model
