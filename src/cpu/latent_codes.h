#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu/kernels.h"
#include "tensor/dtype.h"
#include "tensor/kv_dtype.h"

namespace millrace::cpu {

/// The layout of tokens in a cache of latents of 8 bits: [codes of the latent][rotated key][scales]. The key keeps the
/// dtype that attention reads. Every scale is a bf16 that follows from the token's own values. Int8 has a scale per 32
/// channels of the latent, E4M3 one per 128.
class LatentCodeLayout {
 public:
  LatentCodeLayout(tensor::KvDType dtype, tensor::DType key_dtype, int32_t latent_dim, int32_t rope_dim);

  [[nodiscard]] size_t token_bytes() const;
  /// Encodes a latent and its key, f32 [latent_dim + rope_dim]. The latent's magnitudes are below kMinCodedFault.
  void encode(std::span<const float> values, std::byte* token) const;
  /// Describes tokens that become latents of `padded_dim` channels.
  [[nodiscard]] LatentCodes describe(std::span<const std::byte* const> tokens, int32_t padded_dim) const;

 private:
  [[nodiscard]] size_t key_bytes() const { return static_cast<size_t>(rope_dim_) * tensor::size_of(key_dtype_); }

  tensor::KvDType dtype_;
  tensor::DType key_dtype_;
  int32_t latent_dim_;
  int32_t rope_dim_;
  int32_t scale_channels_;
};

}  // namespace millrace::cpu
