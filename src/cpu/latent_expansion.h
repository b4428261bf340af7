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
  /// Returns the matrices [latent_dim, nope_dim], one per head, that take a query to the space of latents.
  [[nodiscard]] const std::vector<std::unique_ptr<CpuPackedWeight>>& queries() const { return queries_; }
  /// Returns the matrices [value_dim, latent_dim], one per head, that take a result from there.
  [[nodiscard]] const std::vector<std::unique_ptr<CpuPackedWeight>>& values() const { return values_; }

 private:
  std::vector<std::unique_ptr<CpuPackedWeight>> queries_;
  std::vector<std::unique_ptr<CpuPackedWeight>> values_;
};

}  // namespace millrace::cpu
