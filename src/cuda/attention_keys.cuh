#pragma once

// Copies blocks of 32 keys and values to shared memory for attention's kernels. Included by attention.cu only.

#include "cuda/attention_codes.cuh"

namespace millrace::cuda {
namespace {

/// Pages in bf16: the copies are what attend_block reads.
template <int kDim, KvElement kElement>
struct BlockKeys {
  using Address = size_t;  ///< of a key, as key_offset returns it
  using Block = PlainBlock<kDim>;
  static constexpr int kStageBytes = HeadTile<kDim>::kStageBytes;
  static constexpr int kDequantizedBytes = 0;
  static __device__ Address address(const KvSource& source, int32_t token) { return key_offset(source, token); }
  /// Starts the copies of a block; contract: load_keys.
  template <int kThreads>
  static __device__ void load(const KvSource& source, Address own, int thread, std::byte* stage) {
    load_keys<kDim>(source, own, thread, kThreads, stage);
  }
};

/// Pages of codes: copied as they are to the layout of CodedBlock.
template <int kDim, KvElement kElement>
  requires(kElement != KvElement::kBf16)
struct BlockKeys<kDim, kElement> {
  using Address = CodedToken;
  using Block = CodedBlock<kDim, kElement>;
  static constexpr int kStageBytes = Block::kBytes;
  static constexpr int kDequantizedBytes = HeadTile<kDim>::kStageBytes;  ///< where warps share a block of keys

  /// Returns where a key is. After the last key, which no row sees, the last one takes its place.
  static __device__ Address address(const KvSource& source, int32_t token) {
    const DeviceKvCache& cache = source.cache;
    const int32_t known = min(token, source.limit - 1);
    return coded_token(cache, source.pages[known / cache.page_size], source.layer, source.head,
                       known % cache.page_size);
  }

  /// Starts the copies of a block. Channels and scales after the last become zeros.
  template <int kThreads>
  static __device__ void load(const KvSource& source, const Address& own, int thread, std::byte* stage) {
    constexpr int kChunks = kDim / 16;
    const auto* const data = static_cast<const std::byte*>(source.cache.data);
    const int32_t stride = code_stride(source.cache.head_dim);
    const size_t value = coded_value_offset(source.cache);
#pragma unroll
    for (int first = 0; first < kBlockKeys * kChunks; first += kThreads) {
      const int i = first + thread;
      if (first + kThreads > kBlockKeys * kChunks && i >= kBlockKeys * kChunks) break;
      const int key = i / kChunks;
      const int chunk = i % kChunks;
      const int bytes = chunk * 16 < stride ? 16 : 0;
      const std::byte* const from = data + __shfl_sync(kAllLanes, own.key, key) + chunk * bytes;
      std::byte* const to = stage + key * Block::kRowBytes + chunk * 16;
      copy_async(to, from, bytes);
      copy_async(to + Block::kKeyBytes, from + value, bytes);
    }
    // A thread's lane is its own key.
    const int warp = kThreads == kLanes ? 0 : thread / kLanes;
    const int32_t scale_count = kv_scale_count(source.cache);
#pragma unroll
    for (int first = 0; first < Block::kScaleParts; first += kThreads / kLanes) {
      const int part = first + warp;
      if (part >= Block::kScaleParts) break;
      const bool known = part < scale_count;
      copy_word_async(stage + Block::kCodeBytes + (part * kBlockKeys + thread % kLanes) * 4,
                      data + own.scales + (known ? part * 4 : 0), known ? 4 : 0);
    }
  }
};

}  // namespace
}  // namespace millrace::cuda
