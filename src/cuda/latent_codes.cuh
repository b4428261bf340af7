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
  for (int32_t first = 0; first < chunks; first += kLanes) {
    const int32_t chunk = first + static_cast<int32_t>(threadIdx.x % kLanes);
#pragma unroll
    for (int key = 0; key < kKeys; ++key) {
      const size_t offset = __shfl_sync(kAllLanes, own_offset, first_lane + key);
      const bool known = offset != kNoKey;
      if (chunk < chunks)
        copy_async(to + (key * chunks + chunk) * 16, data + (known ? offset + chunk * 16 : 0), known ? 16 : 0);
    }
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

/// Returns the eight channels from `channel` on of a token in bf16, of which some are no latent's. Channels after the
/// last are zeros.
__device__ inline uint4 coded_latent_tail(const DeviceKvCache& cache, const std::byte* token, int32_t channel) {
  const int32_t dim = cache.latent_dim;
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

/// Dequantizes the chunks of a warp's keys that are the latents' alone. A lane has the same chunks of all keys.
template <KvElement kElement, int kKeys, int kLatentChunks, class At>
__device__ void dequantize_latent_chunks(const DeviceKvCache& cache, const std::byte* from, const At& at) {
  constexpr int kScaleChunks = (kElement == KvElement::kInt8 ? kInt8ScaleChannels : kLatentScaleChannels) / 8;
  const int32_t bytes = latent_token_bytes(cache);
  const std::byte* const scales = from + latent_scales_offset(cache);
#pragma unroll
  for (int first = 0; first < kLatentChunks; first += kLanes) {
    const int chunk = first + static_cast<int>(threadIdx.x % kLanes);
    if (chunk >= cache.latent_dim / 8) break;
    const std::byte* const codes = from + chunk * 8;
    const std::byte* const scale = scales + chunk / kScaleChunks * 2;
#pragma unroll
    for (int key = 0; key < kKeys; ++key) {
      *reinterpret_cast<uint4*>(at(key, chunk)) =
          dequantize_codes<kElement>(*reinterpret_cast<const uint2*>(codes + key * bytes),
                                     *reinterpret_cast<const uint16_t*>(scale + key * bytes));
    }
  }
}

/// Dequantizes a warp's keys, whose copies are complete: chunk i of a key has its channels from 8·i on and goes to
/// at(key, i). The latents alone have at most kLatentChunks. All lanes of the warp call it, which may then start other
/// copies to `from`.
template <int kKeys, int kLatentChunks, int kChunks, class At>
__device__ void dequantize_latents(const DeviceKvCache& cache, const std::byte* from, const At& at) {
  constexpr int kTailLanes = 8;  // of a key
  const int lane = threadIdx.x % kLanes;
  __syncwarp();
  if (cache.element == KvElement::kInt8) {
    dequantize_latent_chunks<KvElement::kInt8, kKeys, kLatentChunks>(cache, from, at);
  } else {
    dequantize_latent_chunks<KvElement::kE4M3, kKeys, kLatentChunks>(cache, from, at);
  }
  const int32_t bytes = latent_token_bytes(cache);
  for (int key = lane / kTailLanes; key < kKeys; key += kLanes / kTailLanes) {
    for (int chunk = cache.latent_dim / 8 + lane % kTailLanes; chunk < kChunks; chunk += kTailLanes)
      *reinterpret_cast<uint4*>(at(key, chunk)) = coded_latent_tail(cache, from + key * bytes, chunk * 8);
  }
  __syncwarp();
}

}  // namespace
}  // namespace millrace::cuda
