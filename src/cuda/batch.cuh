#pragma once

#include "cuda/kernels.h"
#include "cuda/mma.cuh"

/// Access to a ragged batch and its pages in kernels.
namespace millrace::cuda {

/// Returns how many of the rows [first, first + limit) belong to sequences; these come first.
__device__ inline int32_t valid_rows(const DeviceBatch& batch, int32_t first, int32_t limit) {
  return max(0, min(limit, batch.row_begin[*batch.sequence_count] - first));
}

/// Returns i with begin[i] <= value < begin[i + 1], of `count` ranges from begin[0] = 0 on; -1 after the last.
__device__ inline int32_t range_of(const int32_t* begin, int32_t count, int32_t value) {
  if (value >= begin[count]) return -1;
  int32_t low = 0;
  int32_t high = count;  // begin[low] <= value < begin[high]
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    if (begin[middle] <= value) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}
/// Returns the sequence of a row; -1 for padding.
__device__ inline int32_t sequence_of(const DeviceBatch& batch, int32_t row) {
  return range_of(batch.row_begin, *batch.sequence_count, row);
}

enum class KeyOrValue : int32_t { kKey, kValue };

/// Returns token 0 of a head in a page. Tokens are channel_stride elements apart.
__device__ inline uint16_t* head_in_page(const DeviceKvCache& cache, uint32_t page, int32_t layer, KeyOrValue which,
                                         int32_t head) {
  const size_t head_elements = static_cast<size_t>(cache.page_size) * channel_stride(cache.head_dim);
  const size_t block = static_cast<size_t>(static_cast<int32_t>(which) * cache.kv_head_count + head);
  return reinterpret_cast<uint16_t*>(static_cast<std::byte*>(cache.data) + page * kv_page_bytes(cache) +
                                     layer * kv_layer_bytes(cache)) +
         block * head_elements;
}

/// Returns a token in a page of latents, [latent_token_bytes].
__device__ inline std::byte* latent_in_page(const DeviceKvCache& cache, uint32_t page, int32_t layer, int32_t token) {
  return static_cast<std::byte*>(cache.data) + page * kv_page_bytes(cache) + layer * kv_layer_bytes(cache) +
         static_cast<size_t>(token) * latent_token_bytes(cache);
}
/// Returns the indexer's key of a token in a page of latents, [channel_stride(index_dim)].
__device__ inline uint16_t* index_key_in_page(const DeviceKvCache& cache, uint32_t page, int32_t layer, int32_t token) {
  return reinterpret_cast<uint16_t*>(latent_in_page(cache, page, layer, cache.page_size)) +
         static_cast<size_t>(token) * channel_stride(cache.index_dim);
}

}  // namespace millrace::cuda
