#pragma once

#include <cstdint>

namespace millrace::tensor {

/// The dimensions of one layer's multi-head latent attention. A head's query is [nope_dim | rope_dim], and its output
/// [value_dim]. A token's key and value follow from its latent, which all heads share.
struct LatentShape {
  int32_t head_count = 0;
  int32_t nope_dim = 0;  ///< channels of a head that are not rotated
  int32_t rope_dim = 0;
  int32_t value_dim = 0;
  int32_t latent_dim = 0;
  float scale = 0.0f;
  /// Returns the values that the cache keeps per token: the latent, then the rotated key.
  [[nodiscard]] int32_t key_dim() const { return latent_dim + rope_dim; }
  [[nodiscard]] int64_t query_width() const { return int64_t{head_count} * (nope_dim + rope_dim); }
  [[nodiscard]] int64_t output_width() const { return int64_t{head_count} * value_dim; }
};

/// The dimensions of an indexer, which chooses the tokens that a row of latent attention sees. A token has one key of
/// head_dim values for all heads of the indexer.
struct IndexerShape {
  int32_t head_count = 0;
  int32_t head_dim = 0;
  int32_t rope_dim = 0;      ///< the first channels of a query and of a key, which are rotated
  int32_t chosen_count = 0;  ///< tokens that a row sees; a row with no more than these before it sees all
  [[nodiscard]] int64_t query_width() const { return int64_t{head_count} * head_dim; }
};

/// The matrices of latent attention that expand a latent to the keys and the values of a rank's heads.
class LatentExpansion {
 public:
  virtual ~LatentExpansion() = default;
};

}  // namespace millrace::tensor
