#pragma once

#include "weights/stored_weight.h"

namespace millrace::model {

/// The expansion of latents of all heads, of which a checkpoint stores the parts for keys and for values apart.
struct StoredLatents {
  weights::StoredWeight queries;  ///< [heads·latents, key]: the transpose of each head's rows for the key
  weights::StoredWeight values;   ///< [heads·value, latents]

  [[nodiscard]] int64_t head_count() const { return queries.rows / values.cols; }
  [[nodiscard]] int64_t key_dim() const { return queries.cols; }
  [[nodiscard]] int64_t value_dim() const { return values.rows / head_count(); }
};

}  // namespace millrace::model
