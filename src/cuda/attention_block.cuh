#pragma once

// One warp's share of attention: 16 rows against blocks of 32 keys. Both kernels of attention.cu use it, so that a
// row's sums are the same instructions in the same order in either. Two warps share the rows of the widest heads. Each
// computes all scores, and the sums of half of the channels, for which one warp has too few registers.

#include "cuda/batch.cuh"

namespace millrace::cuda {

constexpr int kWarpRows = 16;
constexpr int kBlockKeys = 32;
// Every row's softmax is computed split by split from key 0 and merged in that order, whether or not different blocks
// compute the splits.
static_assert(kSplitKeys % kBlockKeys == 0);
/// The running maximum before any visible key. It is finite, so that differences of maxima are never NaN.
constexpr float kInitialMax = -1e30f;
constexpr float kLog2E = 1.44269504088896341f;
/// Maximum bytes of partial results. Beyond it rows walk over their splits one after another.
constexpr size_t kMaxPartialBytes = size_t{256} << 20;
/// Returns the rows up to which sequences go split by split where partial results fit kMaxPartialBytes.
inline int32_t split_rows_wanted(const BatchBounds& bounds) {
  constexpr int32_t kMaxSequences = 65535;  // of a grid's second dimension
  if (bounds.splits == 0 || bounds.sequences > kMaxSequences) return 0;
  return bounds.sequence_rows < kMaxSplitKvRows ? bounds.sequence_rows : kMaxSplitKvRows;
}

/// How products of queries and keys become scores in units of log2.
struct ScoreScale {
  /// Above 0: products x become tanh(x · ln2/2 · cap_factor) before they are multiplied by `log2`.
  float cap_factor = 0.0f;
  float log2 = 0.0f;
};

/// The shared-memory layout for heads of up to kDim channels; further channels are zeros.
template <int kDim>
struct HeadTile {
  static constexpr int kRowBytes =
      kDim * 2 + 16;                        ///< in shared memory; the chunks of eight rows fall into different banks
  static constexpr int kChunks = kDim / 8;  ///< 16-byte chunks per row
  static constexpr int kKeyBytes = kBlockKeys * kRowBytes;
  static constexpr int kQueryBytes = kWarpRows * kRowBytes;
};

/// The warps that share the 16 rows of heads of up to kDim channels.
template <int kDim>
constexpr int kPartCount = kDim > 256 ? 2 : 1;
/// The channels of values that each of these warps has.
template <int kDim>
constexpr int kPartChannels = kDim / kPartCount<kDim>;

/// One lane's state for its rows g and g + 8 (g = lane / 4). It has maxima in units of log2, partial sums, and the
/// unnormalised output of the warp's own channels in mma's layout.
template <int kOwn>
struct RowState {
  float max[2] = {kInitialMax, kInitialMax};
  float sum[2] = {0.0f, 0.0f};
  float acc[kOwn / 8][4] = {};
};

struct Visibility {
  int32_t last_visible[2] = {0, 0};   ///< the last visible key of each of the lane's two rows
  int32_t first_visible[2] = {0, 0};  ///< the first visible key of each
};

/// The keys of one head of one sequence.
struct KvSource {
  const DeviceKvCache& cache;
  const uint32_t* pages;  // of the sequence
  int32_t layer = 0;
  int32_t head = 0;
  int32_t limit = 0;  ///< number of keys
};

/// The offset of a key that there is not.
constexpr size_t kNoKey = ~size_t{0};

/// Replaces products x by tanh(x · ln2/2 · factor), to about 2⁻²². NaNs stay.
__device__ inline void cap_scores(float (&scores)[4][4], float factor) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float& score = scores[i / 4][i % 4];
    score = 1.0f - __fdividef(2.0f, exp2_fast(score * factor) + 1.0f);
  }
}

/// Replaces scores by probabilities relative to the new maxima and returns the factors of the earlier sums. Invisible
/// keys weigh exactly zero: a block without visible keys changes no bit of the row's state.
template <int kOwn>
__device__ void online_softmax_block(float (&scores)[4][4], const Visibility& sees, int32_t first_key, float scale_log2,
                                     int lane, RowState<kOwn>& state, float (&factor)[2]) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int32_t own_first = first_key + lane % 4 * 2;
    const int32_t last_visible = sees.last_visible[row] - own_first;
    const int32_t first_visible = sees.first_visible[row] - own_first;
    float best = state.max[row];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& score = scores[i / 2][row * 2 + i % 2];
      const int32_t key = i / 2 * 8 + i % 2;
      score = key <= last_visible && key >= first_visible ? score * scale_log2 : kInitialMax;
      best = fmaxf(best, score);
    }
    best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, 1));
    best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, 2));
    factor[row] = exp2_fast(state.max[row] - best);
    // The power of kInitialMax is zero, also as long as no key was visible.
    const float subtrahend = best == kInitialMax ? 0.0f : best;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& score = scores[i / 2][row * 2 + i % 2];
      score = exp2_fast(score - subtrahend);
      sum += score;
    }
    state.sum[row] = state.sum[row] * factor[row] + sum;
    state.max[row] = best;
  }
}

/// Packs the probabilities of a half of the block's keys to mma's operand a.
__device__ inline void pack_probabilities(const float (&p)[4][4], int half, uint32_t (&a)[4]) {
  const float(&low)[4] = p[half * 2];
  const float(&high)[4] = p[half * 2 + 1];
  a[0] = pack_bf16(low[0], low[1]);
  a[1] = pack_bf16(low[2], low[3]);
  a[2] = pack_bf16(high[0], high[1]);
  a[3] = pack_bf16(high[2], high[3]);
}

/// acc += probabilities · values of 16 keys, in bf16, of kPairs · 16 channels. `values` is where this lane's row of
/// load_matrix_transposed() begins.
template <int kPairs>
__device__ void add_value_pairs(const uint32_t (&a)[4], const std::byte* values, float (*acc)[4]) {
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    uint32_t b[4];
    load_matrix_transposed(b, values + pair * 32);
    const uint32_t first[2] = {b[0], b[1]};
    const uint32_t second[2] = {b[2], b[3]};
    mma(acc[pair * 2], a, first);
    mma(acc[pair * 2 + 1], a, second);
  }
}

/// A block of 32 keys and values in bf16: [K|V][32 keys][kDim] in padded rows.
template <int kDim>
struct PlainBlock {
  using Tile = HeadTile<kDim>;
  static constexpr int kRowBytes = Tile::kRowBytes;
  static constexpr int kKeyBytes = Tile::kKeyBytes;
  static constexpr int kBytes = 2 * kKeyBytes;

  /// Computes scores[n] = queries · keys of tile n, in mma's layout.
  static __device__ void score(const std::byte* queries, const std::byte* keys, int lane, float (&scores)[4][4]) {
    const std::byte* const query = queries + (lane % 16) * Tile::kRowBytes + lane / 16 * 16;
    const std::byte* const key = keys + (lane / 16 * 8 + lane % 8) * Tile::kRowBytes + lane / 8 % 2 * 16;
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      uint32_t a[4];
      load_matrix(a, query + step * 32);
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        uint32_t b[4];
        load_matrix(b, key + pair * 16 * Tile::kRowBytes + step * 32);
        const uint32_t first[2] = {b[0], b[1]};
        const uint32_t second[2] = {b[2], b[3]};
        mma(scores[pair * 2], a, first);
        mma(scores[pair * 2 + 1], a, second);
      }
    }
  }

  /// acc += probabilities · values of a part of the channels.
  static __device__ void add_values(const float (&p)[4][4], const std::byte* stage, int lane, int part,
                                    RowState<kPartChannels<kDim>>& state) {
    const std::byte* const value =
        stage + Tile::kKeyBytes + (lane % 16) * Tile::kRowBytes + part * kPartChannels<kDim> * 2 + lane / 16 * 16;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t a[4];
      pack_probabilities(p, half, a);
      add_value_pairs<kPartChannels<kDim> / 16>(a, value + half * 16 * Tile::kRowBytes, state.acc);
    }
  }
};

/// Processes one block of keys, which `stage` holds in the layout of Block. `part` is the warp's part of the channels.
template <int kDim, class Block>
__device__ void attend_block(const std::byte* queries, const std::byte* stage, const Visibility& sees,
                             int32_t first_key, const ScoreScale& scale, int lane, int part,
                             RowState<kPartChannels<kDim>>& state) {
  constexpr int kOwn = kPartChannels<kDim>;
  float scores[4][4] = {};
  Block::score(queries, stage, lane, scores);
  if (scale.cap_factor > 0.0f) cap_scores(scores, scale.cap_factor);
  float factor[2];
  online_softmax_block<kOwn>(scores, sees, first_key, scale.log2, lane, state, factor);
  // A factor of 1 changes no bit, so the work can be left out where all rows agree.
  if (__ballot_sync(kAllLanes, factor[0] != 1.0f || factor[1] != 1.0f) != 0) {
#pragma unroll
    for (int tile = 0; tile < kOwn / 8; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) state.acc[tile][i] *= factor[i / 2];
    }
  }
  Block::add_values(scores, stage, lane, part, state);
}

/// Adds up the lanes' partial sums at the end of a split.
template <int kOwn>
__device__ void reduce_row_sums(RowState<kOwn>& state) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    state.sum[row] += __shfl_xor_sync(kAllLanes, state.sum[row], 1);
    state.sum[row] += __shfl_xor_sync(kAllLanes, state.sum[row], 2);
  }
}

/// The factors that merge the state of a further split. A split without visible keys changes no bit.
struct SoftmaxMerge {
  float keep;  ///< of the earlier state
  float add;   ///< of the further split
};
__device__ inline SoftmaxMerge merge_max(float& max, float further) {
  const float best = fmaxf(max, further);
  const SoftmaxMerge merge{exp2_fast(max - best), exp2_fast(further - best)};
  max = best;
  return merge;
}
__device__ inline float merge_value(const SoftmaxMerge& merge, float total, float further) {
  return total * merge.keep + further * merge.add;
}

}  // namespace millrace::cuda
