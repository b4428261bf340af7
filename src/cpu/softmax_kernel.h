#pragma once

// The softmax of rows of scores over one block of 64 keys. Included only by kernels.cc.

#include "cpu/simd.h"

namespace millrace::cpu {
namespace {

/// The running maximum before any visible key. It is finite, so that differences of maxima are never NaN.
constexpr float kInitialMax = -1e30f;
/// The score of a key that a row cannot see. Even scaled it is below kInitialMax.
constexpr float kMaskedScore = -3e38f;
/// Converts maxima to units of ln 2, so that probabilities are powers of 2.
constexpr float kLog2E = 1.44269504088896341f;
/// The magnitude of a maximum from which its rounding may count: scores are then rounded like it, before they are
/// subtracted. Below, fused operations are more accurate.
constexpr float kCoarseMax = 0x1p22f;

static_assert(kBandRows == kLanes);  // the maxima of a band fill a vector

/// A band of up to 16 rows against a block. Its first `groups` groups of keys are visible to some of the rows.
struct SoftmaxBand {
  int first = 0;  ///< row
  int count = 0;
  int groups = 0;
};

/// Returns the groups of the block that rows up to `row` can see. Positions of rows never decrease.
MILLRACE_INLINE int visible_groups(const QueryTile& rows, int row, int32_t first_key) {
  const int32_t keys = rows.position[row] + 1 - first_key;
  if (keys >= kBlockKeys) return kBlockGroups;
  return keys <= 0 ? 0 : (keys + kGroupKeys - 1) / kGroupKeys;
}

MILLRACE_INLINE SoftmaxBand band_at(const QueryTile& rows, int first, int32_t first_key) {
  const int remaining = rows.rows - first;
  const int count = remaining < kBandRows ? remaining : kBandRows;
  return {first, count, visible_groups(rows, first + count - 1, first_key)};
}

MILLRACE_INLINE bool all_visible(const QueryTile& rows, const SoftmaxBand& band, int32_t first_key) {
  const int32_t oldest = rows.position[band.first + band.count - 1] - rows.window + 1;
  return first_key + kBlockKeys - 1 <= rows.position[band.first] && (rows.window <= 0 || first_key >= oldest);
}

/// Returns in lane i the largest lane of rows[i].
MILLRACE_INLINE Vec lane_maxima(const Vec (&rows)[kBandRows]) {
  Vec halves[8];  // lanes 0 to 7 of row i, then those of row i + 8
  for (int i = 0; i < 8; ++i) {
    const Vec a = rows[i];
    const Vec b = rows[i + 8];
    halves[i] = max(__builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
                    __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31));
  }
  Vec quarters[4];  // four lanes each of rows i, i + 8, i + 4, i + 12
  for (int i = 0; i < 4; ++i) {
    const Vec a = halves[i];
    const Vec b = halves[i + 4];
    quarters[i] = max(__builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27),
                      __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31));
  }
  Vec pairs[2];  // in each quarter two lanes of row i, two of row i + 2
  for (int i = 0; i < 2; ++i) {
    const Vec a = quarters[i];
    const Vec b = quarters[i + 2];
    pairs[i] = max(__builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
                   __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31));
  }
  const Vec a = pairs[0];
  const Vec b = pairs[1];
  const Vec mixed = max(__builtin_shufflevector(a, b, 0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30),
                        __builtin_shufflevector(a, b, 1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15, 29, 31));
  return __builtin_shufflevector(mixed, mixed, 0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
}

/// The softmax of rows over the first groups of a block. Keys that a row cannot see weigh exactly zero.
template <class Format, bool kAllVisible>
struct BlockSoftmax {
  const QueryTile& rows;
  int32_t first_key;
  int groups;  ///< all groups if kAllVisible

  [[nodiscard]] MILLRACE_INLINE float* scores(int row) const { return rows.scores + row * kBlockKeys; }
  [[nodiscard]] MILLRACE_INLINE int vectors() const { return kAllVisible ? kBlockGroups : groups; }

  /// Returns whether the row sees the keys of the `v`th vector.
  [[nodiscard]] MILLRACE_INLINE Ints visible(int row, int v) const {
    const int32_t position = rows.position[row];
    const int32_t oldest = rows.window > 0 ? position - rows.window + 1 : 0;
    const Ints key = Ints{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} + (first_key + v * kLanes);
    return (key <= position) & (key >= oldest);
  }

  /// Returns a vector one of whose lanes is the largest score that the row sees.
  [[nodiscard]] MILLRACE_INLINE Vec largest_lanes(int row) const {
    const auto score = [&](int v) __attribute__((always_inline)) {
      const Vec all = load(scores(row) + v * kLanes);
      return kAllVisible ? all : visible(row, v) ? all : splat(kMaskedScore);
    };
    Vec largest = score(0);
    for (int v = 1; v < vectors(); ++v) largest = max(score(v), largest);
    return largest;
  }

  /// Replaces the scores by probabilities relative to the maximum, as an LHS operand. `factor` scales the earlier sums.
  template <class InterleavedWork>
  MILLRACE_INLINE void apply_softmax(int row, float maximum, float factor, InterleavedWork& interleaved) const {
    constexpr size_t kLhsBytes = kLanes * (Format::kLhsStep / Format::kDepth);
    const float scale = rows.scale * kLog2E;
    auto* const lhs = reinterpret_cast<std::byte*>(scores(row));
    const bool is_coarse = maximum > kCoarseMax || maximum < -kCoarseMax;
    Vec p[kBlockGroups];
    for (int v = 0; v < vectors(); ++v) {
      interleaved.at_vector();
      const Vec score = load(scores(row) + v * kLanes);
      p[v] = exp2_nonpositive(is_coarse ? score * scale - maximum : fma(score, splat(scale), splat(-maximum)));
      if constexpr (!kAllVisible) p[v] = visible(row, v) ? p[v] : Vec{};
    }
    float* const sum = rows.state.sum + row * kLanes;
    Vec total = load(sum) * factor;
    for (int v = 0; v < vectors(); ++v) {
      total = total + p[v];
      Format::store_lhs(lhs + v * kLhsBytes, p[v]);
    }
    for (int v = vectors(); v < kBlockGroups; ++v) Format::store_lhs(lhs + v * kLhsBytes, Vec{});
    store(sum, total);
  }
};

/// An empty work item to interleave with the softmax.
struct NoInterleavedWork {
  MILLRACE_INLINE void at_row(int) {}
  MILLRACE_INLINE void at_vector() {}
};

/// Computes all maxima first, then the rows.
template <class Softmax, class InterleavedWork>
MILLRACE_INLINE void softmax_rows(const Softmax& softmax, const SoftmaxBand& band, float* factor,
                                  InterleavedWork& interleaved) {
  const QueryTile& rows = softmax.rows;
  interleaved.at_row(0);
  Vec largest[kBandRows];
  for (int r = 0; r < band.count; ++r) largest[r] = softmax.largest_lanes(band.first + r);
  for (int r = band.count; r < kBandRows; ++r) largest[r] = splat(kMaskedScore);
  float* const state = rows.state.max + band.first;
  const Vec before = load(state);
  const Vec now = max(lane_maxima(largest) * (rows.scale * kLog2E), before);
  store(factor, exp2_nonpositive(before - now));
  alignas(64) float maxima[kLanes];
  store(maxima, now);
  for (int r = 0; r < band.count; ++r) state[r] = maxima[r];  // the next entries may be another head's
  for (int r = 0; r < band.count; ++r) {
    if (r > 0) interleaved.at_row(r);
    softmax.apply_softmax(band.first + r, maxima[r], factor[r], interleaved);
  }
}

/// Replaces the scores of a band by tanh(tanh_factor · score).
MILLRACE_INLINE void cap_scores(const QueryTile& rows, const SoftmaxBand& band) {
  for (int row = band.first; row < band.first + band.count; ++row) {
    float* const scores = rows.scores + row * kBlockKeys;
    for (int v = 0; v < band.groups; ++v) {
      store(scores + v * kLanes, tanh(load(scores + v * kLanes) * rows.tanh_factor));
    }
  }
}

/// Replaces the scores of a band by probabilities relative to the new maxima. `factor` [16] scales the earlier sums; it
/// is 1 where the maximum stays. Calls interleaved.at_row(r) before the `r`th row and at_vector() before every 16
/// probabilities, for work that overlaps with the softmax.
template <class Format, class InterleavedWork>
MILLRACE_INLINE void softmax_band(const QueryTile& rows, const SoftmaxBand& band, int32_t first_key, float* factor,
                                  InterleavedWork& interleaved) {
  if (rows.tanh_factor != 0.0f) cap_scores(rows, band);
  if (all_visible(rows, band, first_key)) {
    softmax_rows(BlockSoftmax<Format, true>{rows, first_key, kBlockGroups}, band, factor, interleaved);
  } else {
    softmax_rows(BlockSoftmax<Format, false>{rows, first_key, band.groups}, band, factor, interleaved);
  }
}

}  // namespace
}  // namespace millrace::cpu
