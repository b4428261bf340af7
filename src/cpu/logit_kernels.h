#pragma once

// Passes over the logits of one row. Included only by kernels.cc.

#include "cpu/kernels.h"
#include "cpu/simd.h"

namespace millrace::cpu {
namespace {

constexpr float kLowest = -__builtin_inff();

LogitExtremes extremes(const float* logits, int64_t count) {
  constexpr int kStreams = 4;
  Vec best[kStreams] = {splat(kLowest), splat(kLowest), splat(kLowest), splat(kLowest)};
  Ints nan[kStreams] = {};
  int64_t i = 0;
  for (; i + kStreams * kLanes <= count; i += kStreams * kLanes) {
    for (int s = 0; s < kStreams; ++s) {
      const Vec x = load(logits + i + s * kLanes);
      best[s] = max(x, best[s]);
      nan[s] |= x != x;
    }
  }
  for (; i < count; i += kLanes) {
    const Vec x = load_part(logits + i, count - i < kLanes ? count - i : kLanes, kLowest);
    best[0] = max(x, best[0]);
    nan[0] |= x != x;
  }
  const bool has_nan = any_lane((nan[0] | nan[1]) | (nan[2] | nan[3]));
  return {lane_max(max(max(best[0], best[1]), max(best[2], best[3]))), has_nan};
}

double exp_sum(const float* logits, float max_logit, float factor, float floor, int64_t count, float* terms,
               double* sums) {
  // Blocks keep the f32 lanes short; the sum over blocks is a double.
  double total = 0.0;
  for (int64_t begin = 0; begin < count; begin += kSumBlock) {
    const int64_t end = count - begin < kSumBlock ? count : begin + kSumBlock;
    Vec sum = {};
    for (int64_t i = begin; i < end; i += kLanes) {
      const int64_t part = end - i < kLanes ? end - i : kLanes;
      Vec term = exp((load_part(logits + i, part, kLowest) - max_logit) * factor);
      term = term < splat(floor) ? Vec{} : term;
      sum = sum + term;
      if (terms != nullptr) store_part(terms + i, term, part);
    }
    const auto block = static_cast<double>(lane_sum(sum));
    if (sums != nullptr) sums[begin / kSumBlock] = block;
    total += block;
  }
  return total;
}

int64_t find(const float* logits, float value, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t part = count - i < kLanes ? count - i : kLanes;
    if (!any_lane(load_part(logits + i, part, kLowest) == value)) continue;
    for (int64_t lane = 0; lane < part; ++lane) {
      if (logits[i + lane] == value) return i + lane;
    }
  }
  return count;
}

int64_t count_above(const float* logits, float value, int64_t count) {
  Ints above = {};
  for (int64_t i = 0; i < count; i += kLanes) {
    above -= load_part(logits + i, count - i < kLanes ? count - i : kLanes, kLowest) > value;
  }
  return __builtin_reduce_add(above);
}

void block_max(const float* logits, int64_t count, float* out) {
  for (int64_t begin = 0; begin < count; begin += kMaxBlock) {
    const int64_t end = count - begin < kMaxBlock ? count : begin + kMaxBlock;
    Vec best = splat(kLowest);
    for (int64_t i = begin; i < end; i += kLanes) {
      best = max(load_part(logits + i, end - i < kLanes ? end - i : kLanes, kLowest), best);
    }
    out[begin / kMaxBlock] = lane_max(best);
  }
}

/// Writes first + lane for each chosen lane, and up to 16 entries in all. Returns the number of chosen lanes.
MILLRACE_INLINE int64_t store_ids(Ints chosen, int32_t first, int32_t* ids) {
#if defined(__AVX512F__)
  const Ints lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const __mmask16 mask = _mm512_movepi32_mask(reinterpret_cast<__m512i>(chosen));
  store_as(ids, _mm512_maskz_compress_epi32(mask, reinterpret_cast<__m512i>(lane + first)));
  return __builtin_popcount(mask);
#else
  int64_t count = 0;
  for (int32_t lane = 0; lane < kLanes; ++lane) {
    ids[count] = first + lane;
    count -= chosen[lane];
  }
  return count;
#endif
}

int64_t collect(const float* logits, float threshold, int64_t count, int32_t* ids, int64_t capacity) {
  int64_t found = 0;
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t part = count - i < kLanes ? count - i : kLanes;
    const Vec x = load_part(logits + i, part, kLowest);
    if (!any_lane(x >= threshold)) continue;
    if (part == kLanes && found + kLanes <= capacity) {
      found += store_ids(x >= threshold, static_cast<int32_t>(i), ids + found);
      continue;
    }
    for (int64_t lane = 0; lane < part; ++lane) {
      if (x[lane] < threshold) continue;
      if (found < capacity) ids[found] = static_cast<int32_t>(i + lane);
      ++found;
    }
  }
  return found;
}

}  // namespace
}  // namespace millrace::cpu
