#pragma once

// Copies blocks of 32 keys and values to shared memory for attention's kernels. Included by attention.cu only.

#include "cuda/attention_block.cuh"
#include "cuda/kv_codes.cuh"

namespace millrace::cuda {
namespace {

/// Pages in bf16: the copies are what attend_block reads.
template <int kDim, bool kCoded>
struct BlockKeys {
  using Address = size_t;  ///< of a key, as key_offset returns it
  static constexpr int kStageBytes = HeadTile<kDim>::kStageBytes;
  static constexpr int kTileBytes = 0;
  static __device__ Address address(const KvSource& source, int32_t token) { return key_offset(source, token); }
  /// Starts the copies of a block; contract: load_keys.
  static __device__ void load(const KvSource& source, Address own, int thread, int threads, std::byte* stage) {
    load_keys<kDim>(source, own, thread, threads, stage);
  }
};

/// Pages of codes: copied as they are to a stage of [K|V][32 keys][kDim] bytes and scales [kDim / 32][32 keys][K|V].
/// They become bf16 in a tile of their own before attend_block reads them.
template <int kDim>
struct BlockKeys<kDim, true> {
  using Tile = HeadTile<kDim>;
  using Address = CodedToken;  ///< kNoKey: there is no such key
  static constexpr int kCodeBytes = 2 * kBlockKeys * kDim;
  static constexpr int kStageBytes = kCodeBytes + kDim / kInt8ScaleChannels * kBlockKeys * 4;
  static constexpr int kTileBytes = Tile::kStageBytes;

  static __device__ Address address(const KvSource& source, int32_t token) {
    if (token >= source.limit) return {kNoKey, kNoKey};
    const DeviceKvCache& cache = source.cache;
    return coded_token(cache, source.pages[token / cache.page_size], source.layer, source.head,
                       token % cache.page_size);
  }

  /// Starts the copies of a block. Missing keys become zeros.
  static __device__ void load(const KvSource& source, const Address& own, int thread, int threads, std::byte* stage) {
    constexpr int kChunks = kDim / 16;
    const auto* const data = static_cast<const std::byte*>(source.cache.data);
    const int32_t stride = code_stride(source.cache.head_dim);
    const size_t value = coded_value_offset(source.cache);
    for (int i = thread; i < kBlockKeys * kChunks; i += threads) {
      const int chunk = i % kChunks;
      const size_t offset = __shfl_sync(kAllLanes, own.key, i / kChunks);
      const bool known = offset != kNoKey && chunk * 16 < stride;
      const std::byte* const from = data + (known ? offset + chunk * 16 : 0);
      std::byte* const to = stage + i * 16;
      copy_async(to, from, known ? 16 : 0);
      copy_async(to + kBlockKeys * kDim, known ? from + value : data, known ? 16 : 0);
    }
    // A thread's lane is its own key.
    const bool known = own.scales != kNoKey;
    for (int part = thread / kLanes; part < kv_scale_count(source.cache); part += threads / kLanes) {
      copy_word_async(stage + kCodeBytes + (part * kBlockKeys + thread % kLanes) * 4,
                      data + (known ? own.scales + part * 4 : 0), known ? 4 : 0);
    }
  }

  /// Dequantizes a stage to a tile as load_keys leaves it. Other threads may read it after a barrier.
  static __device__ void dequantize(const KvSource& source, const std::byte* stage, int thread, int threads,
                                    std::byte* tile) {
    constexpr int kChunks = kDim / 8;
    const bool is_int8 = source.cache.element == KvElement::kInt8;
    const int last_part = kv_scale_count(source.cache) - 1;
    const auto* const scales = reinterpret_cast<const uint16_t*>(stage + kCodeBytes);
    for (int i = thread; i < 2 * kBlockKeys * kChunks; i += threads) {
      const int row = i / kChunks;  // keys, then values
      const int chunk = i % kChunks;
      const int part = min(chunk * 8 / kInt8ScaleChannels, last_part);
      const uint32_t scale = scales[(part * kBlockKeys + row % kBlockKeys) * 2 + row / kBlockKeys];
      const uint2 codes = *reinterpret_cast<const uint2*>(stage + i * 8);
      *reinterpret_cast<uint4*>(tile + row * Tile::kRowBytes + chunk * 16) = dequantize_codes(is_int8, codes, scale);
    }
  }
};

}  // namespace
}  // namespace millrace::cuda
