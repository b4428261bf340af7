#pragma once

// Widens latents from codes of 8 bits to the tokens that attention reads or gathers. Included only by kernels.cc.

#include "cpu/kernels.h"
#include "cpu/kv_codes_kernel.h"
#include "cpu/simd.h"

namespace millrace::cpu {
namespace {

/// Returns the numbers of 16 codes.
template <bool kInt8>
MILLRACE_INLINE Vec decode_codes(const char* codes) {
  typedef int8_t SignedBytes __attribute__((vector_size(16)));
  if constexpr (kInt8) return __builtin_convertvector(load_as<SignedBytes>(codes), Vec);
  return decode_byte<false, 0>(__builtin_convertvector(load_as<KvCodeBytes>(codes), Bits));
}

template <bool kInt8, bool kBf16>
MILLRACE_INLINE void widen_latent(const LatentCodes& latents, const char* codes, char* out) {
  constexpr int kElement = kBf16 ? 2 : 4;
  const int coded = coded_channels(latents.latent_dim);
  const char* const key = codes + coded;
  const char* scales = key + latents.rope_dim * kElement;
  for (int first = 0; first < coded; first += latents.scale_channels, scales += 2) {
    const int end = first + latents.scale_channels < coded ? first + latents.scale_channels : coded;
    const Vec scale = reinterpret_cast<Vec>(Bits{} + (uint32_t{load_as<uint16_t>(scales)} << 16));
    for (int channel = first; channel < end; channel += kLanes) {
      const Vec values = decode_codes<kInt8>(codes + channel) * scale;
      if constexpr (kBf16) {
        store_as(out + channel * kElement, narrow_bf16(values));
      } else {
        store_as(out + channel * kElement, values);
      }
    }
  }
  // The key overwrites the zeros of codes beyond the latent.
  const int dim = latents.latent_dim + latents.rope_dim;
  __builtin_memcpy(out + latents.latent_dim * kElement, key, static_cast<size_t>(latents.rope_dim * kElement));
  __builtin_memset(out + dim * kElement, 0, static_cast<size_t>((latents.padded_dim - dim) * kElement));
}

template <bool kInt8, bool kBf16>
MILLRACE_INLINE void widen_each_latent(const LatentCodes& latents, std::byte* out) {
  auto* to = reinterpret_cast<char*>(out);
  for (int i = 0; i < latents.count; ++i, to += latents.padded_dim * (kBf16 ? 2 : 4)) {
    widen_latent<kInt8, kBf16>(latents, reinterpret_cast<const char*>(latents.tokens[i]), to);
  }
}

void widen_latents(const LatentCodes& latents, std::byte* out) {
  if (latents.bf16) {
    latents.has_int8 ? widen_each_latent<true, true>(latents, out) : widen_each_latent<false, true>(latents, out);
  } else {
    latents.has_int8 ? widen_each_latent<true, false>(latents, out) : widen_each_latent<false, false>(latents, out);
  }
}

}  // namespace
}  // namespace millrace::cpu
