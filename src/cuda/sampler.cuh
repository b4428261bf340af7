#pragma once

// The part that sample and score share: one block per row of logits. Weights are summed as integers, so that no sum
// depends on the order of threads.

#include "cuda/kernels.h"
#include "cuda/mma.cuh"
#include "cuda/order_key.cuh"

namespace millrace::cuda {

constexpr int kSamplerThreads = 1024;
constexpr int kBins = 2048;
/// Ids per segment of a draw.
constexpr int kSegmentIds = 1024;
static_assert(kSegmentIds <= kBins && kMaxVocab <= kBins * kSegmentIds);
/// Rows processed at a time; each has scratch in the workspace.
constexpr int32_t kMaxSlots = 128;

using FixedPoint = unsigned long long;  // what atomicAdd takes

/// The fixed-point weight of the most probable token. Weights below e^-29 of it become zero, and a whole vocabulary of
/// equal weights does not overflow.
constexpr float kFullWeight = 0x1p42f;
static_assert(static_cast<double>(kFullWeight) * kMaxVocab < 0x1p64);

/// Throws when the vocabulary or the top lists exceed what the kernels support.
void check_sampler(const char* op, int32_t vocab, const SampleOutputs& outputs);

struct SamplerShared {
  FixedPoint values[kBins];
  FixedPoint top[kMaxTopLogprobs];
  FixedPoint threshold_before;
  FixedPoint total;
  FixedPoint best;
  int32_t threshold_index;
  uint32_t flag;
  uint32_t listed;
};

/// The scratch of one slot. Counts are first, at an offset that no other part ever uses.
struct SamplerSlot {
  float* logits = nullptr;     // [vocab] after bans, bias and penalties
  uint32_t* counts = nullptr;  // [vocab] zeros between rows
  int32_t* list = nullptr;     // [vocab]
};
__device__ inline SamplerSlot slot_at(void* workspace, int32_t slot, int32_t vocab) {
  auto* const words = static_cast<uint32_t*>(workspace) + static_cast<size_t>(slot) * 3 * vocab;
  return {reinterpret_cast<float*>(words + vocab), words,
          reinterpret_cast<int32_t*>(words + 2 * static_cast<size_t>(vocab))};
}

__device__ inline SamplerShared& sampler_shared() {
  return *reinterpret_cast<SamplerShared*>(shared_memory());
}

/// Calls f(id, logit) for every id, distributed over the block.
template <class F>
__device__ void for_each_logit(const float* logits, int32_t vocab, const F& f) {
#pragma unroll 4
  for (int32_t id = threadIdx.x; id < vocab; id += kSamplerThreads) f(id, logits[id]);
}

/// Returns the sum over the block to every thread.
__device__ inline FixedPoint block_sum(FixedPoint value) {
  SamplerShared& shared = sampler_shared();
  for (int bits = kLanes / 2; bits > 0; bits /= 2) value += __shfl_xor_sync(kAllLanes, value, bits);
  __syncthreads();
  if (threadIdx.x == 0) shared.total = 0;
  __syncthreads();
  if (threadIdx.x % kLanes == 0) atomicAdd(&shared.total, value);
  __syncthreads();
  return shared.total;
}

struct Extremes {
  float max = 0.0f;
  int32_t id = 0;  ///< the lowest id with the maximum
  int32_t fault = 0;
};
__device__ inline Extremes find_extremes(const float* logits, int32_t vocab) {
  constexpr int32_t kNan = 1;
  constexpr int32_t kInfinite = 2;
  constexpr int32_t kAllNegativeInfinity = 3;
  SamplerShared& shared = sampler_shared();
  FixedPoint best = 0;  // key, then the complement of the id
  bool has_nan = false;
  for_each_logit(logits, vocab, [&](int32_t id, float logit) {
    has_nan = has_nan || logit != logit;
    best = max(best, static_cast<FixedPoint>(order_key(logit)) << 32 | ~static_cast<uint32_t>(id));
  });
  for (int bits = kLanes / 2; bits > 0; bits /= 2) best = max(best, __shfl_xor_sync(kAllLanes, best, bits));
  __syncthreads();
  if (threadIdx.x == 0) {
    shared.best = 0;
    shared.flag = 0;
  }
  __syncthreads();
  if (threadIdx.x % kLanes == 0) atomicMax(&shared.best, best);
  if (has_nan) atomicOr(&shared.flag, 1u);
  __syncthreads();
  Extremes found;
  found.max = value_of_key(static_cast<uint32_t>(shared.best >> 32));
  found.id = static_cast<int32_t>(~static_cast<uint32_t>(shared.best));
  const float infinity = __uint_as_float(0x7F800000u);
  if (shared.flag != 0) {
    found.fault = kNan;
  } else if (found.max == infinity) {
    found.fault = kInfinite;
  } else if (found.max == -infinity) {
    found.fault = kAllNegativeInfinity;
  }
  return found;
}

/// The point where a running sum over shared.values[0, count) reaches a target.
struct Threshold {
  int32_t index = 0;
  FixedPoint before = 0;  ///< sum of the earlier values
  FixedPoint wanted = 0;
};
/// Finds the threshold for a target `wanted_of(total)` between 1 and the total.
template <class WantedOf>
__device__ Threshold find_threshold(int32_t count, const WantedOf& wanted_of) {
  SamplerShared& shared = sampler_shared();
  __syncthreads();
  if (threadIdx.x < kLanes) {
    const int lane = threadIdx.x;
    const int32_t each = (count + kLanes - 1) / kLanes;
    const int32_t first = min(count, lane * each);
    const int32_t end = min(count, first + each);
    FixedPoint own = 0;
    for (int32_t i = first; i < end; ++i) own += shared.values[i];
    FixedPoint until = own;
    for (int distance = 1; distance < kLanes; distance *= 2) {
      const FixedPoint before = __shfl_up_sync(kAllLanes, until, distance);
      if (lane >= distance) until += before;
    }
    const FixedPoint wanted = wanted_of(__shfl_sync(kAllLanes, until, kLanes - 1));
    const uint32_t reached = __ballot_sync(kAllLanes, until >= wanted);
    if (lane == __ffs(static_cast<int>(reached)) - 1) {
      FixedPoint before = until - own;
      int32_t index = first;
      for (; index + 1 < end && before + shared.values[index] < wanted; ++index) before += shared.values[index];
      shared.threshold_index = index;
      shared.threshold_before = before;
      shared.total = wanted;
    }
  }
  __syncthreads();
  return {shared.threshold_index, shared.threshold_before, shared.total};
}

__device__ inline void clear_values(int32_t count) {
  SamplerShared& shared = sampler_shared();
  __syncthreads();
  for (int32_t i = threadIdx.x; i < count; i += kSamplerThreads) shared.values[i] = 0;
  __syncthreads();
}

/// Keeps everything larger than the key, and of equals those up to an id.
struct Cutoff {
  uint32_t key = 0;
  int32_t last_id = 0x7FFFFFFF;
  FixedPoint before = 0;  ///< measure of everything larger than the key
  FixedPoint wanted = 0;
  [[nodiscard]] __device__ bool keeps(float logit, int32_t id) const {
    const uint32_t own = order_key(logit);
    return own > key || (own == key && id <= last_id);
  }
};

/// Finds, among the listed ids with the given logits, the word at which the running measure over ascending words
/// reaches the target. It examines word(id) 8 bits at a time.
template <class Word, class Measure>
__device__ Threshold radix_select(const int32_t* list, int32_t listed, FixedPoint wanted, const Word& word,
                                  const Measure& measure) {
  constexpr int32_t kDigits = 256;
  SamplerShared& shared = sampler_shared();
  uint32_t prefix = 0;
  FixedPoint before = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    clear_values(kDigits);
    for (int32_t i = threadIdx.x; i < listed; i += kSamplerThreads) {
      const uint32_t own = word(list[i]);
      if (shift < 24 && own >> (shift + 8) != prefix) continue;
      atomicAdd(&shared.values[own >> shift & 0xFFu], measure(list[i]));
    }
    const Threshold found = find_threshold(kDigits, [&](FixedPoint) { return wanted - before; });
    before += found.before;
    prefix = prefix << 8 | static_cast<uint32_t>(found.index);
  }
  return {static_cast<int32_t>(prefix), before, wanted};
}

/// Finds the largest key such that ids at or above it reach the target wanted_of(measure of all). An id has measure(id,
/// logit), or zero when it does not count. All equals of the key are kept.
template <class Measure, class WantedOf>
__device__ Cutoff select_largest(const float* logits, int32_t vocab, float max_logit, float bins_per_unit,
                                 int32_t* list, const Measure& measure, const WantedOf& wanted_of) {
  SamplerShared& shared = sampler_shared();
  // Bins by distance from the maximum spread likely logits; the last holds all that is far away.
  const auto bin_of = [&](float logit) {
    return static_cast<int32_t>(fminf((max_logit - logit) * bins_per_unit, static_cast<float>(kBins - 1)));
  };
  clear_values(kBins);
  for_each_logit(logits, vocab, [&](int32_t id, float logit) {
    const FixedPoint own = measure(id, logit);
    if (own != 0) atomicAdd(&shared.values[bin_of(logit)], own);
  });
  const Threshold bin = find_threshold(kBins, wanted_of);
  if (threadIdx.x == 0) shared.listed = 0;
  __syncthreads();
  for_each_logit(logits, vocab, [&](int32_t id, float logit) {
    if (bin_of(logit) == bin.index && measure(id, logit) != 0) list[atomicAdd(&shared.listed, 1u)] = id;
  });
  __syncthreads();
  const auto listed = static_cast<int32_t>(shared.listed);
  // Descending keys are ascending complements.
  const Threshold found = radix_select(
      list, listed, bin.wanted - bin.before, [&](int32_t id) { return ~order_key(logits[id]); },
      [&](int32_t id) { return measure(id, logits[id]); });
  return {.key = ~static_cast<uint32_t>(found.index),
          .last_id = 0x7FFFFFFF,
          .before = bin.before + found.before,
          .wanted = bin.wanted};
}

/// Keeps, of the equals of the cut's key, only the lowest ids that the target needs; each has the measure `each`. Call
/// it right after select_largest, whose list it reads.
__device__ inline void keep_needed_ties(const float* logits, const int32_t* list, FixedPoint each, Cutoff& cut) {
  SamplerShared& shared = sampler_shared();
  const FixedPoint needed = (cut.wanted - cut.before + each - 1) / each;
  __syncthreads();
  const auto listed = static_cast<int32_t>(shared.listed);
  const auto is_equal = [&](int32_t id) { return static_cast<FixedPoint>(order_key(logits[id]) == cut.key); };
  FixedPoint own = 0;
  for (int32_t i = threadIdx.x; i < listed; i += kSamplerThreads) own += is_equal(list[i]);
  if (block_sum(own) <= needed) return;
  cut.last_id =
      radix_select(list, listed, needed, [](int32_t id) { return static_cast<uint32_t>(id); }, is_equal).index;
}

}  // namespace millrace::cuda
