#pragma once

// Attention of few rows over many keys: one block per split, and the merge of the splits. Included by attention.cu
// only.

#include "cuda/attention_rows.cuh"

namespace millrace::cuda {
namespace {

/// Returns the sequence of a split, counted over all sequences' splits; -1 after the last.
__device__ int32_t sequence_of_split(const DeviceBatch& batch, int32_t split, int lane) {
  const int32_t count = *batch.sequence_count;
  for (int32_t first = 0; first < count; first += kLanes) {
    const int32_t s = first + lane;
    const uint32_t reached = __ballot_sync(kAllLanes, s < count && batch.split_begin[s + 1] > split);
    if (reached != 0) return first + __ffs(static_cast<int>(reached)) - 1;
  }
  return -1;
}

/// Waits for the warps of a block that share 16 rows.
template <int kDim>
__device__ void wait_for_parts() {
  if constexpr (kPartCount<kDim> == 1) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

/// The blocks of split_kernel that a multiprocessor has registers for. Without a bound the loads over codes take as
/// many registers as there are.
template <int kDim, KvElement kElement>
constexpr int kSplitBlocks = kElement == KvElement::kBf16 || kDim > 128 ? 1
                             : kDim > 64                                ? 10
                                                                        : 16;

/// Grid: [splits of all sequences, kv_heads · row tiles], one warp per part each: one split of 16 virtual rows. It
/// serves sequences of few rows.
template <int kDim, int kStages, KvElement kElement>
__global__ void __launch_bounds__(kPartCount<kDim>* kLanes, kSplitBlocks<kDim, kElement>)
    split_kernel(AttentionParams a) {
  using Keys = BlockKeys<kDim, kElement>;
  constexpr bool kCoded = kElement != KvElement::kBf16;
  constexpr int kThreads = kPartCount<kDim> * kLanes;
  constexpr int kOwn = kPartChannels<kDim>;
  const int thread = threadIdx.x;
  const int lane = thread % kLanes;
  const int part = thread / kLanes;
  const auto slot = static_cast<int32_t>(blockIdx.x);
  const int32_t sequence = sequence_of_split(a.batch, slot, lane);
  if (sequence < 0) return;
  const int32_t kv_head = static_cast<int32_t>(blockIdx.y) % a.cache.kv_head_count;
  const int32_t first = static_cast<int32_t>(blockIdx.y) / a.cache.kv_head_count * kWarpRows;
  const QueryRows rows = rows_of(a, sequence, kv_head, first);
  if (!takes_splits(a, rows.total) || first >= rows.total) return;
  const int32_t split = slot - a.batch.split_begin[sequence];
  const Visibility sees = visibility_of(a, rows, lane);
  const int32_t begin = max(split * kSplitKeys, rows.first_visible(a, first) / kBlockKeys * kBlockKeys);
  const int32_t end = min((split + 1) * kSplitKeys, rows.last_visible(a, first + kWarpRows - 1) + 1);
  if (begin >= end) return;

  Keys source(keys_of(a, rows), begin + lane);
  std::byte* const stages = shared_memory();
  std::byte* const queries = stages + kStages * Keys::kStageBytes;
  if (part == 0) load_queries<kDim, kCoded>(a, rows, lane, queries);
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) {
    source.template load<kThreads>(source.next(), thread, stages + s * Keys::kStageBytes);
    commit_copies();
  }
  auto next_address = source.next();
  RowState<kOwn> state;
  int stage = 0;
  for (int32_t key = begin; key < end; key += kBlockKeys) {
    wait_copies<kStages - 2>();
    wait_for_parts<kDim>();
    const int32_t next = key + (kStages - 1) * kBlockKeys;
    const int next_stage = stage == 0 ? kStages - 1 : stage - 1;
    if (next < end) source.template load<kThreads>(next_address, thread, stages + next_stage * Keys::kStageBytes);
    commit_copies();
    next_address = source.next();
    const std::byte* const keys = stages + stage * Keys::kStageBytes;
    attend_block<kDim, typename Keys::Block>(queries, keys, sees, key, a.scale, lane, part, state);
    stage = stage == kStages - 1 ? 0 : stage + 1;
  }
  reduce_row_sums<kOwn>(state);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int32_t virtual_row = first + lane / 4 + i * 8;
    if (virtual_row >= rows.total) continue;
    const size_t partial = partial_of(a, rows, slot, virtual_row);
    if (part == 0 && lane % 4 == 0) a.partial_sums[partial] = float2{state.max[i], state.sum[i]};
    float* const to = a.partial_acc + partial * kDim + part * kOwn;
#pragma unroll
    for (int n = 0; n < kOwn / 8; ++n) {
      const ChannelPair pair = channel_pair<kCoded>(state, i, n, lane);
      *reinterpret_cast<float2*>(to + pair.channel) = float2{pair.low, pair.high};
    }
  }
}

/// Grid: [kv_heads · split_rows · group, sequences], one warp each: merges the splits of one virtual row in order.
template <int kDim>
__global__ void __launch_bounds__(kLanes) merge_kernel(AttentionParams a) {
  const auto sequence = static_cast<int32_t>(blockIdx.y);
  if (sequence >= *a.batch.sequence_count) return;
  const int32_t bound = a.split_rows * a.group;
  const int32_t virtual_row = static_cast<int32_t>(blockIdx.x) % bound;
  const QueryRows rows =
      rows_of(a, sequence, static_cast<int32_t>(blockIdx.x) / bound, virtual_row / kWarpRows * kWarpRows);
  if (!takes_splits(a, rows.total) || virtual_row >= rows.total) return;
  const int lane = threadIdx.x;
  const int32_t first_slot = a.batch.split_begin[sequence];
  float best = kInitialMax;
  float sum = 0.0f;
  float acc[kDim / kLanes] = {};
  // The splits of the row's tile. Those without a key that this row sees change no bit of it.
  const int32_t end = rows.last_visible(a, rows.first + kWarpRows - 1) / kSplitKeys + 1;
#pragma unroll 4
  for (int32_t split = rows.first_visible(a, rows.first) / kSplitKeys; split < end; ++split) {
    const size_t partial = partial_of(a, rows, first_slot + split, virtual_row);
    const float2 further = a.partial_sums[partial];
    const SoftmaxMerge merge = merge_max(best, further.x);
    sum = merge_value(merge, sum, further.y);
#pragma unroll
    for (int i = 0; i < kDim / kLanes; ++i) {
      acc[i] = merge_value(merge, acc[i], a.partial_acc[partial * kDim + i * kLanes + lane]);
    }
  }
  const float inverse = output_factor(a, rows, virtual_row, best, sum);
  uint16_t* const out = a.out + rows.element(a, virtual_row);
#pragma unroll
  for (int i = 0; i < kDim / kLanes; ++i) {
    if (i * kLanes + lane < a.cache.head_dim) out[i * kLanes + lane] = float_to_bf16(acc[i] * inverse);
  }
}

}  // namespace
}  // namespace millrace::cuda
