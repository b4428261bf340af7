#pragma once

// Copies latents in codes of 8 bits to shared memory and dequantizes them there. Each warp has the keys of a block that
// it copies, so that it needs no other warp's.

#include "cuda/attention_block.cuh"
#include "cuda/kv_codes.cuh"

namespace millrace::cuda {
namespace {

/// Starts the copies of a warp's keys as pages have them, one after another. Its lane first_lane + i knows the offset
/// of key i. Missing keys become zeros.
template <int kKeys>
__device__ void load_coded_latents(const DeviceKvCache& cache, size_t own_offset, int first_lane, std::byte* to) {
  const auto* const data = static_cast<const std::byte*>(cache.data);
  const int32_t chunks = latent_token_bytes(cache) / 16;
  int key = 0;
  auto chunk = static_cast<int32_t>(threadIdx.x % kLanes);
  for (int32_t done = 0; done < kKeys * chunks; done += kLanes, chunk += kLanes) {
    while (chunk >= chunks) {
      chunk -= chunks;
      ++key;
    }
    const size_t offset = __shfl_sync(kAllLanes, own_offset, first_lane + min(key, kKeys - 1));
    const bool known = offset != kNoKey;
    if (key < kKeys)
      copy_async(to + (key * chunks + chunk) * 16, data + (known ? offset + chunk * 16 : 0), known ? 16 : 0);
  }
}

/// Returns a channel of a token in bf16; after the last a zero.
__device__ inline uint16_t coded_latent_channel(const DeviceKvCache& cache, const std::byte* token, int32_t channel) {
  const int32_t dim = cache.latent_dim;
  if (channel >= cache.head_dim) return 0;
  if (channel >= dim) return reinterpret_cast<const uint16_t*>(token + code_stride(dim))[channel - dim];
  const auto* const scales = reinterpret_cast<const uint16_t*>(token + latent_scales_offset(cache));
  const uint2 code{static_cast<uint32_t>(token[channel]), 0};
  const uint32_t scale = scales[channel / latent_scale_channels(cache)];
  return static_cast<uint16_t>(dequantize_codes(cache.element == KvElement::kInt8, code, scale).x);
}

/// Returns the eight channels from `channel` on of a token in bf16. Channels after the last are zeros.
__device__ inline uint4 coded_latent_chunk(const DeviceKvCache& cache, const std::byte* token, int32_t channel) {
  const int32_t dim = cache.latent_dim;
  const bool is_int8 = cache.element == KvElement::kInt8;
  if (channel + 8 <= dim) {
    const auto* const scales = reinterpret_cast<const uint16_t*>(token + latent_scales_offset(cache));
    const uint32_t scale = scales[channel / (is_int8 ? kInt8ScaleChannels : kLatentScaleChannels)];
    return dequantize_codes(is_int8, *reinterpret_cast<const uint2*>(token + channel), scale);
  }
  if (dim % 8 == 0) {
    const int32_t at = channel - dim;
    if (at >= cache.head_dim - dim) return uint4{0, 0, 0, 0};
    return *reinterpret_cast<const uint4*>(token + code_stride(dim) + 2 * at);
  }
  const auto two = [&](int32_t i) {
    return coded_latent_channel(cache, token, channel + i) |
           static_cast<uint32_t>(coded_latent_channel(cache, token, channel + i + 1)) << 16;
  };
  return uint4{two(0), two(2), two(4), two(6)};
}

/// Dequantizes a warp's keys, whose copies are complete: chunk i of a key has its channels from 8·i on and goes to
/// at(key, i). All lanes of the warp call it, which may then start other copies to `from`.
template <int kKeys, int kChunks, class At>
__device__ void dequantize_latents(const DeviceKvCache& cache, const std::byte* from, const At& at) {
  const int32_t bytes = latent_token_bytes(cache);
  __syncwarp();
  for (int i = threadIdx.x % kLanes; i < kKeys * kChunks; i += kLanes) {
    const int key = i / kChunks;
    const int chunk = i % kChunks;
    *reinterpret_cast<uint4*>(at(key, chunk)) = coded_latent_chunk(cache, from + key * bytes, chunk * 8);
  }
  __syncwarp();
}

}  // namespace
}  // namespace millrace::cuda
