#pragma once

#include <vector>

#include "model/config.h"

namespace millrace::bench {

/// The bytes and operations of a model's forward passes, from its shape alone. Bytes count the checkpoint's dtype, or 8
/// bits where its config quantizes projections. An operation is a multiplication or an addition. Of a sparse model, a
/// row's own experts count.
class ModelWork {
 public:
  explicit ModelWork(const model::ModelConfig& config);

  /// Returns the weights that a decode step reads, without the embedding table. For a sparse model the experts chosen
  /// matter: see reads_all(). Until they are set, those of a model whose files are not quantized.
  [[nodiscard]] double weight_bytes() const { return weight_bytes_; }
  void set_weight_bytes(double bytes) { weight_bytes_ = bytes; }
  /// Returns whether every step reads all weights.
  [[nodiscard]] bool reads_all() const { return reads_all_; }
  /// Returns the keys and values that the attention of one row over `keys` tokens reads, in all layers.
  [[nodiscard]] double kv_bytes(double keys) const;
  /// Returns the operations of a row over `keys` tokens that is projected to logits, as in a decode step.
  [[nodiscard]] double drawn_operations(double keys) const;
  /// Returns the operations of a prompt of `tokens`, of which only the last row is projected to logits.
  [[nodiscard]] double prompt_operations(double tokens) const;

 private:
  /// Returns the keys that a row after `keys` others sees, over all layers.
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
