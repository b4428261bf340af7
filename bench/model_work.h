#pragma once

#include <vector>

#include "model/config.h"

namespace millrace::bench {

/// What the forwards of a model read and compute, by its shape alone: bytes are those of the dtype that its checkpoint
/// is stored in, or of 8 bits where its config says that projections are held so, an operation is a multiplication or
/// an addition. Of a mixture, a row's own experts count.
class ModelWork {
 public:
  explicit ModelWork(const model::ModelConfig& config);

  /// Weights that a decode step reads, the embedding's table aside. Of a mixture that depends on what its rows choose:
  /// see reads_all().
  [[nodiscard]] double weight_bytes() const { return weight_bytes_; }
  /// Whether every step reads all weights.
  [[nodiscard]] bool reads_all() const { return reads_all_; }
  /// Keys and values that the attention of one row over `keys` tokens reads, in all layers.
  [[nodiscard]] double kv_bytes(double keys) const;
  /// Returns the operations of a decode row over `keys` tokens that is projected to logits.
  [[nodiscard]] double drawn_operations(double keys) const;
  /// Returns the operations of a prompt of `tokens`, whose last row alone is projected to logits.
  [[nodiscard]] double prompt_operations(double tokens) const;

 private:
  /// Keys that a row behind `keys` others sees, over all layers.
  [[nodiscard]] double seen(double keys) const;

  double weight_bytes_ = 0;
  double row_operations_ = 0;   // products of all layers
  double head_operations_ = 0;  // of a row that is projected to logits
  double kv_token_bytes_ = 0;   // of one layer
  double key_operations_ = 0;   // of one row and one key in one layer
  bool reads_all_ = true;
  std::vector<double> windows_;  // [layers]
};

}  // namespace millrace::bench
