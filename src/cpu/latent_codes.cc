#include "cpu/latent_codes.h"

#include <cstring>

#include "base/check.h"
#include "cpu/kv_codes.h"

namespace millrace::cpu {
LatentCodeLayout::LatentCodeLayout(tensor::KvDType dtype, tensor::DType key_dtype, int32_t latent_dim, int32_t rope_dim)
    : dtype_(dtype),
      key_dtype_(key_dtype),
      latent_dim_(latent_dim),
      rope_dim_(rope_dim),
      scale_channels_(scale_channels_of(dtype, tensor::kLatentScaleChannels)) {
  CHECK(dtype != tensor::KvDType::kAuto && latent_dim > 0 && rope_dim > 0, "codes of latents of {} and keys of {}",
        latent_dim, rope_dim);
}

size_t LatentCodeLayout::token_bytes() const {
  const auto scale_count = static_cast<size_t>((latent_dim_ + scale_channels_ - 1) / scale_channels_);
  return static_cast<size_t>(coded_channels(latent_dim_)) + key_bytes() + scale_count * sizeof(tensor::BFloat16);
}

void LatentCodeLayout::encode(std::span<const float> values, std::byte* token) const {
  const auto latent_dim = static_cast<size_t>(latent_dim_);
  const auto coded = static_cast<size_t>(coded_channels(latent_dim_));
  std::byte* const key = token + coded;
  encode_values(dtype_, scale_channels_, values.first(latent_dim), token, key + key_bytes());
  std::memset(token + latent_dim, 0, coded - latent_dim);
  const std::span rotated = values.subspan(latent_dim, static_cast<size_t>(rope_dim_));
  if (key_dtype_ == tensor::DType::kF32) {
    std::memcpy(key, rotated.data(), rotated.size_bytes());
    return;
  }
  for (size_t i = 0; i < rotated.size(); ++i) {
    const auto narrow = tensor::BFloat16::from_float(rotated[i]);
    std::memcpy(key + i * sizeof(narrow), &narrow, sizeof(narrow));
  }
}

LatentCodes LatentCodeLayout::describe(std::span<const std::byte* const> tokens, int32_t padded_dim) const {
  return {.tokens = tokens.data(),
          .count = static_cast<int>(tokens.size()),
          .has_int8 = dtype_ == tensor::KvDType::kInt8,
          .bf16 = key_dtype_ == tensor::DType::kBF16,
          .latent_dim = latent_dim_,
          .rope_dim = rope_dim_,
          .scale_channels = scale_channels_,
          .padded_dim = padded_dim};
}

}  // namespace millrace::cpu
