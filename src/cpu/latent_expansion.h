#pragma once

#include <memory>
#include <vector>

#include "cpu/packed_weight.h"

namespace millrace::cpu {

/// The expansion of latents per head, as latent attention multiplies by it.
class CpuLatentExpansion final : public tensor::LatentExpansion {
 public:
  /// Packs Backend::pack_latent_expansion's `kv_b`.
  CpuLatentExpansion(Device& device, const tensor::HostTensor& kv_b, const tensor::LatentShape& shape);
  /// Returns whether rows can stay in E4M3. Queries go through the transpose of a head's rows for the key, where groups
  /// of inputs are groups of rows. So blocks either divide each head into whole groups, or have the scale of a whole
  /// row, by which queries are multiplied first.
  [[nodiscard]] static bool keeps_fp8(const tensor::Fp8Matrix& kv_b, const tensor::LatentShape& shape);
  /// Packs such rows without decoding them.
  CpuLatentExpansion(Device& device, const tensor::Fp8Matrix& kv_b, const tensor::LatentShape& shape);
  /// Packs Backend::pack_latent_codes' `queries` and `values`.
  CpuLatentExpansion(Device& device, const tensor::CodeMatrix& queries, const tensor::CodeMatrix& values,
                     const tensor::LatentShape& shape);
  /// Returns the factors of a head's query [nope_dim] before it is rounded to the compute dtype; null: none.
  [[nodiscard]] const float* query_factors(int32_t head) const {
    return query_factors_.empty() ? nullptr : query_factors_.data() + head * queries_.front()->in_features();
  }
  /// Returns the matrices [latent_dim, nope_dim], one per head, that take a query to the space of latents.
  [[nodiscard]] const std::vector<std::unique_ptr<CpuPackedWeight>>& queries() const { return queries_; }
  /// Returns the matrices [value_dim, latent_dim], one per head, that take a result from there.
  [[nodiscard]] const std::vector<std::unique_ptr<CpuPackedWeight>>& values() const { return values_; }

 private:
  std::vector<float> query_factors_;  // [heads, nope_dim], or empty
  std::vector<std::unique_ptr<CpuPackedWeight>> queries_;
  std::vector<std::unique_ptr<CpuPackedWeight>> values_;
};

}  // namespace millrace::cpu
