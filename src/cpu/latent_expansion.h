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
  /// Packs rows in E4M3. Queries go through the transpose of a head's rows for the key, where groups of inputs are
  /// groups of rows. So it stays in E4M3 if blocks divide each head into whole groups, or have the scale of a whole
  /// row, by which queries are multiplied first.
  CpuLatentExpansion(Device& device, const tensor::Fp8Matrix& kv_b, const tensor::LatentShape& shape);
  /// Packs Backend::pack_latent_codes' `queries` and `values`.
  CpuLatentExpansion(Device& device, const tensor::CodeMatrix& queries, const tensor::CodeMatrix& values,
                     const tensor::LatentShape& shape);
  /// Packs Backend::pack_latent_code_rows' `kv_b`.
  CpuLatentExpansion(Device& device, const tensor::CodeMatrix& kv_b, const tensor::LatentShape& shape);

  /// Returns the groups of latents for which a query has factors of their own.
  [[nodiscard]] int64_t query_groups() const { return query_groups_; }
  /// Returns the factors of a head's query [nope_dim] for a group of latents, before it is rounded to the compute
  /// dtype; null: none.
  [[nodiscard]] const float* query_factors(int64_t head, int64_t group) const {
    if (query_factors_.empty()) return nullptr;
    return query_factors_.data() + (head * query_groups_ + group) * queries_.front()->in_features();
  }
  /// Returns the matrices [latent_dim, nope_dim], one per head, that take a query to the space of latents. Each group
  /// has as many panels, of which the last one may end with zeros.
  [[nodiscard]] const std::vector<std::unique_ptr<CpuPackedWeight>>& queries() const { return queries_; }
  /// Returns the matrices [value_dim, latent_dim], one per head, that take a result from there.
  [[nodiscard]] const std::vector<std::unique_ptr<CpuPackedWeight>>& values() const { return values_; }

 private:
  void add_queries(Device& device, const tensor::CodeMatrix& keys, bool keeps_codes);
  /// Packs the transpose of a head's rows for the key [rows, cols].
  void add_decoded_queries(Device& device, const std::string& name, const std::vector<float>& keys, int64_t rows,
                           int64_t cols);

  int64_t query_groups_ = 1;
  std::vector<float> query_factors_;  // [heads, query_groups_, nope_dim], or empty
  std::vector<std::unique_ptr<CpuPackedWeight>> queries_;
  std::vector<std::unique_ptr<CpuPackedWeight>> values_;
};

}  // namespace millrace::cpu
