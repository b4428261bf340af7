#pragma once

// The pairs of row and head of latent attention, and the keys that they see: all of their sequence, or those that a row
// has chosen.

#include "cuda/attention_block.cuh"
#include "cuda/latent_kernels.h"

namespace millrace::cuda {
namespace {

struct LatentParams {
  const uint16_t* latents = nullptr;  // queries in the space of latents [heads][rows][latent_dim]
  const uint16_t* keys = nullptr;     // their rotated channels [heads][rows][rope_dim]
  uint16_t* out = nullptr;            // [heads][rows][latent_dim]
  int32_t head_count = 0;
  int32_t latent_dim = 0;
  int32_t rope_dim = 0;
  int32_t first_row = 0;  ///< the slice of the batch's rows that the matrices hold
  int32_t rows = 0;
  float scale_log2 = 0.0f;
  DeviceBatch batch;
  DeviceKvCache cache;
  int32_t layer = 0;
  int32_t split_rows = 0;          ///< sequences of at most this number of rows go split by split
  int32_t split_keys = 0;          ///< a multiple of kSplitKeys
  float* totals = nullptr;         ///< memory for the sums of blocks that walk over several splits
  float* partial_acc = nullptr;    // [split][split_rows · heads][kLatent]
  float2* partial_sums = nullptr;  // the same without channels: maximum, sum
};

/// The pairs of row and head of one sequence that a slice has. Pair i is head i % heads of row i / heads. A row that
/// has chosen its tokens is alone: its keys are the chosen ones, in ascending order, and its position is the last of
/// them.
struct LatentRows {
  int32_t sequence = -1;
  int32_t first = 0;                ///< first pair of the block
  int32_t total = 0;                ///< pairs of the sequence
  int32_t row_begin = 0;            ///< its first row in the slice
  int32_t prefix = 0;               ///< the position of that row
  const int32_t* chosen = nullptr;  ///< the tokens that the only row sees; null: all
  [[nodiscard]] __device__ int32_t position(const LatentParams& a, int32_t pair) const {
    return prefix + min(pair, total - 1) / a.head_count;
  }
  /// Returns the row of the slice's matrices for a pair.
  [[nodiscard]] __device__ size_t matrix_row(const LatentParams& a, int32_t pair) const {
    return static_cast<size_t>(pair % a.head_count) * a.rows + row_begin + pair / a.head_count;
  }
};

__device__ LatentRows rows_of(const LatentParams& a, int32_t sequence, int32_t first) {
  const int32_t whole = a.batch.row_begin[sequence];
  const int32_t begin = max(whole, a.first_row);
  const int32_t end = min(a.batch.row_begin[sequence + 1], a.first_row + a.rows);
  return {.sequence = sequence,
          .first = first,
          .total = max(0, end - begin) * a.head_count,
          .row_begin = begin - a.first_row,
          .prefix = a.batch.prefix[sequence] + begin - whole};
}

/// What rows see of their sequences: rows at positions from `count` on the tokens that they have chosen, the others
/// all.
struct SparseRows {
  const int32_t* chosen = nullptr;  // [rows of the batch, count]
  int32_t count = 0;
  int32_t splits = 0;  ///< of a row; 0: rows walk over all their keys

  /// Returns the pairs of a block, which has kPairs heads of one row. Padding has the sequence -1.
  template <int kPairs>
  [[nodiscard]] __device__ LatentRows rows_of(const LatentParams& a, int32_t tile) const {
    const int32_t tiles = ceil_div(a.head_count, kPairs);
    return row_of(a, tile / tiles, tile % tiles * kPairs);
  }
  /// Returns the pairs of a row of the slice, from pair `first` on.
  [[nodiscard]] __device__ LatentRows row_of(const LatentParams& a, int32_t row, int32_t first) const {
    const int32_t in_batch = a.first_row + row;
    const int32_t sequence = sequence_of(a.batch, in_batch);
    if (sequence < 0) return {};
    const int32_t position = a.batch.prefix[sequence] + in_batch - a.batch.row_begin[sequence];
    const bool sees_all = position < count;
    return {.sequence = sequence,
            .first = first,
            .total = a.head_count,
            .row_begin = row,
            .prefix = sees_all ? position : count - 1,
            .chosen = sees_all ? nullptr : chosen + static_cast<size_t>(in_batch) * count};
  }
  /// Returns the number of a row's split among those of all rows.
  [[nodiscard]] __device__ int32_t slot(const LatentRows& rows, int32_t split) const {
    return rows.row_begin * splits + split;
  }
};

/// Returns the byte offset of the key that is number `key` of those that rows see; kNoKey: there is none.
__device__ inline size_t latent_offset(const KvSource& source, const int32_t* chosen, int32_t key) {
  if (key >= source.limit) return kNoKey;
  const int32_t token = chosen == nullptr ? key : chosen[key];
  const int32_t page_size = source.cache.page_size;
  const std::byte* const found =
      latent_in_page(source.cache, source.pages[token / page_size], source.layer, token % page_size);
  return static_cast<size_t>(found - static_cast<const std::byte*>(source.cache.data));
}

}  // namespace
}  // namespace millrace::cuda
