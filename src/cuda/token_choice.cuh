#pragma once

// The tokens with the largest scores of each row. A block chooses of one part of a row; what the blocks of a row have
// chosen is a shorter row, until one part is left. Tokens keep their order, so that of equal scores the lower position
// stays.

#include "cuda/batch.cuh"
#include "cuda/order_key.cuh"

namespace millrace::cuda {
namespace {

constexpr int kChoiceThreads = 512;
constexpr int kChoiceWarps = kChoiceThreads / kLanes;
/// Adjacent items of a thread.
constexpr int kChoiceItems = 4;
constexpr int kBinBits = 11;
constexpr int kBins = 1 << kBinBits;
/// Passes that find a key, kBinBits of it at a time from the most significant on.
constexpr int kPasses = 3;

struct ChoiceParams {
  const float* scores = nullptr;  // [rows of the slice, stride]
  const int32_t* ids = nullptr;   // the same; null: an item's id is its number
  int32_t stride = 0;
  int32_t level = 0;  ///< 0: the items are the tokens up to the row's own
  int32_t part = 0;   ///< items per block, at least chosen_count
  int32_t chosen_count = 0;
  int32_t first_row = 0;
  DeviceBatch batch;
  float* out_scores = nullptr;  // [rows of the slice, out_stride]; null: not wanted
  int32_t* out_ids = nullptr;   // the same
  int32_t out_stride = 0;
};

struct ChoiceShared {
  uint32_t bins[kBins];
  uint32_t warp_counts[2][kChoiceWarps];
  int32_t bin = 0;
  int32_t above = 0;  ///< items in the bins above it
};

/// Returns the items of a row with `tokens` tokens at a level. Each part but the last gives chosen_count items.
[[nodiscard]] __host__ __device__ inline int32_t items_at(int32_t tokens, int32_t level, int32_t part,
                                                          int32_t chosen_count) {
  int32_t items = tokens;
  for (int32_t i = 0; i < level; ++i) {
    const int32_t before_last = ceil_div(items, part) - 1;
    const int32_t last = items - before_last * part;
    items = before_last * chosen_count + (last < chosen_count ? last : chosen_count);
  }
  return items;
}

/// Returns a word that orders scores. NaN counts as infinity; no score has the key 0.
__device__ inline uint32_t score_key(float score) {
  return score == score ? order_key(score) : order_key(__uint_as_float(0x7F800000u));
}

/// Calls use(key, number) for a thread's items of [0, count), each thread in ascending order.
template <class Use>
__device__ void for_items(const float* scores, int32_t count, const Use& use) {
  for (int32_t first = static_cast<int32_t>(threadIdx.x) * kChoiceItems; first < count;
       first += kChoiceThreads * kChoiceItems) {
    const auto four = *reinterpret_cast<const float4*>(scores + first);
    const float each[kChoiceItems] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < kChoiceItems; ++i) {
      if (first + i < count) use(score_key(each[i]), first + i);
    }
  }
}

/// Finds the bin with the `wanted`-th item, from the last bin on. The first warp calls it.
__device__ inline void find_bin(ChoiceShared& shared, int32_t wanted, int lane) {
  constexpr int kOwn = kBins / kLanes;
  const int last = kBins - 1 - lane * kOwn;  // lane 0 has the last bins
  int32_t sum = 0;
  for (int i = 0; i < kOwn; ++i) sum += static_cast<int32_t>(shared.bins[last - (i + lane) % kOwn]);  // spreads banks
  int32_t above = sum;
  for (int distance = 1; distance < kLanes; distance *= 2) {
    const int32_t before = __shfl_up_sync(kAllLanes, above, distance);
    if (lane >= distance) above += before;
  }
  above -= sum;
  if (above >= wanted || above + sum < wanted) return;
  int bin = last;
  while (above + static_cast<int32_t>(shared.bins[bin]) < wanted) above += static_cast<int32_t>(shared.bins[bin--]);
  shared.bin = bin;
  shared.above = above;
}

/// The smallest key that is chosen, and how many of the items with it.
struct ChoiceLimit {
  uint32_t key = 0;
  int32_t equal = 0;
};

/// Finds the limit of the `wanted` largest of `count` scores, which are more.
__device__ inline ChoiceLimit find_limit(ChoiceShared& shared, const float* scores, int32_t count, int32_t wanted) {
  ChoiceLimit limit{.key = 0, .equal = wanted};
  uint32_t known = 0;  // mask of the key's bits that are found
  for (int pass = 0; pass < kPasses; ++pass) {
    const int shift = max(0, 32 - (pass + 1) * kBinBits);
    for (int i = threadIdx.x; i < kBins; i += kChoiceThreads) shared.bins[i] = 0;
    __syncthreads();
    for_items(scores, count, [&](uint32_t key, int32_t) {
      if ((key & known) == limit.key) atomicAdd(&shared.bins[key >> shift & ~(known >> shift) & (kBins - 1)], 1u);
    });
    __syncthreads();
    if (threadIdx.x < kLanes) find_bin(shared, limit.equal, static_cast<int>(threadIdx.x));
    __syncthreads();
    limit.key |= static_cast<uint32_t>(shared.bin) << shift;
    limit.equal -= shared.above;
    known |= static_cast<uint32_t>(kBins - 1) << shift;
  }
  return limit;
}

/// Writes the items within a limit in ascending order: put(target, number).
template <class Put>
__device__ void emit_items(ChoiceShared& shared, const float* scores, int32_t count, ChoiceLimit limit,
                           const Put& put) {
  constexpr int32_t kRound = kChoiceThreads * kChoiceItems;
  constexpr uint32_t kEqual = 1u << 16;  // counts of larger keys are in the low half, of equal ones in the high half
  const int lane = threadIdx.x % kLanes;
  const int warp = threadIdx.x / kLanes;
  int32_t larger = 0;  // items of earlier rounds
  int32_t equal = 0;
  for (int32_t begin = 0; begin < count; begin += kRound) {
    const int32_t first = begin + static_cast<int32_t>(threadIdx.x) * kChoiceItems;
    float each[kChoiceItems] = {};
    if (first < count) {
      const auto four = *reinterpret_cast<const float4*>(scores + first);
      each[0] = four.x, each[1] = four.y, each[2] = four.z, each[3] = four.w;
    }
    uint32_t own[kChoiceItems];
    uint32_t before = 0;
#pragma unroll
    for (int i = 0; i < kChoiceItems; ++i) {
      const uint32_t key = score_key(each[i]);
      own[i] = first + i >= count ? 0u : key > limit.key ? 1u : key == limit.key ? kEqual : 0u;
      before += own[i];
    }
    const uint32_t sum = before;
    for (int distance = 1; distance < kLanes; distance *= 2) {
      const uint32_t lower = __shfl_up_sync(kAllLanes, before, distance);
      if (lane >= distance) before += lower;
    }
    uint32_t* const counts = shared.warp_counts[begin / kRound % 2];
    if (lane == kLanes - 1) counts[warp] = before;
    before -= sum;
    __syncthreads();
    uint32_t all = 0;
#pragma unroll
    for (int w = 0; w < kChoiceWarps; ++w) {
      if (w < warp) before += counts[w];
      all += counts[w];
    }
#pragma unroll
    for (int i = 0; i < kChoiceItems; ++i) {
      const int32_t equal_before = equal + static_cast<int32_t>(before >> 16);
      const int32_t target = larger + static_cast<int32_t>(before & 0xFFFFu) + min(equal_before, limit.equal);
      if (own[i] == 1u || (own[i] == kEqual && equal_before < limit.equal)) put(target, first + i);
      before += own[i];
    }
    larger += static_cast<int32_t>(all & 0xFFFFu);
    equal += static_cast<int32_t>(all >> 16);
  }
}

/// Grid: [rows, parts]: chooses the largest scores of one part of a row.
__global__ void __launch_bounds__(kChoiceThreads) choose_part_kernel(ChoiceParams p) {
  const auto row = static_cast<int32_t>(blockIdx.x);
  const int32_t s = sequence_of(p.batch, p.first_row + row);
  if (s < 0) return;
  const int32_t position = p.batch.prefix[s] + p.first_row + row - p.batch.row_begin[s];
  if (position < p.chosen_count) return;
  const int32_t items = items_at(position + 1, p.level, p.part, p.chosen_count);
  const int32_t begin = static_cast<int32_t>(blockIdx.y) * p.part;
  if (begin >= items) return;
  auto& shared = *reinterpret_cast<ChoiceShared*>(shared_memory());
  const size_t at = static_cast<size_t>(row) * p.stride + begin;
  const float* const scores = p.scores + at;
  const int32_t count = min(p.part, items - begin);
  // With a limit of 0 all items are larger.
  const ChoiceLimit limit = count > p.chosen_count ? find_limit(shared, scores, count, p.chosen_count) : ChoiceLimit{};
  const size_t out = static_cast<size_t>(row) * p.out_stride + static_cast<size_t>(blockIdx.y) * p.chosen_count;
  emit_items(shared, scores, count, limit, [&](int32_t target, int32_t number) {
    p.out_ids[out + target] = p.ids == nullptr ? begin + number : p.ids[at + number];
    if (p.out_scores != nullptr) p.out_scores[out + target] = scores[number];
  });
}

}  // namespace
}  // namespace millrace::cuda
