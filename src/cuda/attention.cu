#include "cuda/attention_block.cuh"

namespace millrace::cuda {
namespace {

constexpr float kLog2E = 1.44269504088896341f;
/// More partial results than this are not worth their memory: rows then walk over their splits one after another.
constexpr size_t kMostPartialBytes = size_t{256} << 20;

struct Attention {
  const uint16_t* q = nullptr;  // [rows, heads, head_dim]
  uint16_t* out = nullptr;      // the same
  int32_t head_count = 0;
  int32_t group = 0;  ///< query heads per kv head
  float scale_log2 = 0.0f;
  int32_t sliding_window = 0;
  DeviceBatch batch;
  DeviceKvCache cache;
  int32_t layer = 0;
  int32_t split_rows = 0;  ///< sequences of at most so many rows are for split_kernel
  int32_t split_bound = 0;
  float* partial_acc = nullptr;    // [sequence][kv_head][split_rows · group][split_bound][kDim]
  float2* partial_sums = nullptr;  // the same without channels: maximum, sum
};

/// Virtual rows of one sequence under one kv head: virtual row r is query head r % group of row r / group.
struct Rows {
  int32_t sequence = 0;
  int32_t kv_head = 0;
  int32_t first = 0;  ///< virtual rows of a warp or a block begin here
  int32_t total = 0;  ///< virtual rows of the sequence
  int32_t row_begin = 0;
  int32_t prefix = 0;
  [[nodiscard]] __device__ int32_t position(const Attention& a, int32_t virtual_row) const {
    return prefix + min(virtual_row, total - 1) / a.group;
  }
  [[nodiscard]] __device__ int32_t oldest(const Attention& a, int32_t virtual_row) const {
    return a.sliding_window > 0 ? max(0, position(a, virtual_row) - a.sliding_window + 1) : 0;
  }
  /// Index of a virtual row's first channel in q and out.
  [[nodiscard]] __device__ size_t element(const Attention& a, int32_t virtual_row) const {
    const auto row = static_cast<size_t>(row_begin + virtual_row / a.group);
    return (row * a.head_count + kv_head * a.group + virtual_row % a.group) * a.cache.head_dim;
  }
};

__device__ Rows rows_of(const Attention& a, int32_t sequence, int32_t kv_head, int32_t first) {
  const int32_t begin = a.batch.row_begin[sequence];
  return {
      sequence, kv_head, first, (a.batch.row_begin[sequence + 1] - begin) * a.group, begin, a.batch.prefix[sequence]};
}

__device__ bool takes_splits(const Attention& a, int32_t virtual_rows) {
  return virtual_rows > 0 && virtual_rows <= a.split_rows * a.group;
}
/// Where split 0 of a virtual row keeps its partial results.
__device__ size_t partial_of(const Attention& a, const Rows& rows, int32_t virtual_row) {
  const size_t head = static_cast<size_t>(rows.sequence) * a.cache.kv_head_count + rows.kv_head;
  return (head * (a.split_rows * a.group) + virtual_row) * a.split_bound;
}

__device__ KeySource keys_of(const Attention& a, const Rows& rows) {
  return {a.cache, a.batch.pages + a.batch.page_begin[rows.sequence], a.layer, rows.kv_head,
          rows.prefix + rows.total / a.group};
}

__device__ Visibility visibility_of(const Attention& a, const Rows& rows, int lane) {
  Visibility sees;
  for (int i = 0; i < 2; ++i) {
    sees.position[i] = rows.position(a, rows.first + lane / 4 + i * 8);
    sees.oldest[i] = rows.oldest(a, rows.first + lane / 4 + i * 8);
  }
  return sees;
}

/// A warp's 16 queries into shared memory; zeros beyond the last row and channel.
template <int kDim>
__device__ void load_queries(const Attention& a, const Rows& rows, int lane, std::byte* queries) {
  using Tile = HeadTile<kDim>;
  const int32_t dim = a.cache.head_dim;
  for (int i = lane; i < kWarpRows * Tile::kChunks; i += kLanes) {
    const int32_t virtual_row = rows.first + i / Tile::kChunks;
    const int channel = i % Tile::kChunks * 8;
    const int32_t known = virtual_row < rows.total ? max(0, min(8, dim - channel)) : 0;
    const uint16_t* const from = a.q + (known > 0 ? rows.element(a, virtual_row) + channel : 0);
    std::byte* const to = queries + i / Tile::kChunks * Tile::kRowBytes + channel * 2;
    if (known == 8 && dim % 8 == 0) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    } else {
      for (int j = 0; j < 8; ++j) reinterpret_cast<uint16_t*>(to)[j] = j < known ? from[j] : uint16_t{0};
    }
  }
}

/// Grid: [splits, kv_heads · row tiles, sequences], a warp each: one split of 16 virtual rows of a sequence of few.
template <int kDim, int kStages>
__global__ void __launch_bounds__(kLanes, 1) split_kernel(Attention a) {
  using Tile = HeadTile<kDim>;
  const auto sequence = static_cast<int32_t>(blockIdx.z);
  if (sequence >= *a.batch.sequence_count) return;
  const int32_t kv_head = static_cast<int32_t>(blockIdx.y) % a.cache.kv_head_count;
  const int32_t first = static_cast<int32_t>(blockIdx.y) / a.cache.kv_head_count * kWarpRows;
  const Rows rows = rows_of(a, sequence, kv_head, first);
  if (!takes_splits(a, rows.total) || first >= rows.total) return;
  const auto split = static_cast<int32_t>(blockIdx.x);
  const KeySource source = keys_of(a, rows);
  const int lane = threadIdx.x;
  const Visibility sees = visibility_of(a, rows, lane);
  const int32_t begin = max(split * kSplitKeys, rows.oldest(a, first) / kBlockKeys * kBlockKeys);
  const int32_t end = min((split + 1) * kSplitKeys, rows.position(a, first + kWarpRows - 1) + 1);
  if (begin >= end) return;

  std::byte* const stages = shared_memory();
  std::byte* const queries = stages + kStages * Tile::kStageBytes;
  load_queries<kDim>(a, rows, lane, queries);
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) {
    const size_t offset = key_offset(source, begin + s * kBlockKeys + lane);
    load_keys<kDim>(source, offset, lane, kLanes, stages + s * Tile::kStageBytes);
    commit_copies();
  }
  size_t next_offset = key_offset(source, begin + (kStages - 1) * kBlockKeys + lane);
  RowState<kDim> state;
  int stage = 0;
  for (int32_t key = begin; key < end; key += kBlockKeys) {
    wait_copies<kStages - 2>();
    __syncwarp();
    const int32_t next = key + (kStages - 1) * kBlockKeys;
    const int next_stage = stage == 0 ? kStages - 1 : stage - 1;
    if (next < end) load_keys<kDim>(source, next_offset, lane, kLanes, stages + next_stage * Tile::kStageBytes);
    commit_copies();
    next_offset = key_offset(source, next + kBlockKeys + lane);
    attend_block<kDim>(queries, stages + stage * Tile::kStageBytes, sees, key, a.scale_log2, lane, state);
    stage = stage == kStages - 1 ? 0 : stage + 1;
  }
  join_sums<kDim>(state);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int32_t virtual_row = first + lane / 4 + i * 8;
    if (virtual_row >= rows.total) continue;
    const size_t slot = partial_of(a, rows, virtual_row) + split;
    if (lane % 4 == 0) a.partial_sums[slot] = float2{state.max[i], state.sum[i]};
    float* const to = a.partial_acc + slot * kDim + lane % 4 * 2;
#pragma unroll
    for (int tile = 0; tile < kDim / 8; ++tile) {
      *reinterpret_cast<float2*>(to + tile * 8) = float2{state.acc[tile][i * 2], state.acc[tile][i * 2 + 1]};
    }
  }
}

/// Grid: [kv_heads · split_rows · group, sequences], a warp each: merges the splits of one virtual row in order.
template <int kDim>
__global__ void __launch_bounds__(kLanes) merge_kernel(Attention a) {
  const auto sequence = static_cast<int32_t>(blockIdx.y);
  if (sequence >= *a.batch.sequence_count) return;
  const int32_t bound = a.split_rows * a.group;
  const int32_t virtual_row = static_cast<int32_t>(blockIdx.x) % bound;
  const Rows rows = rows_of(a, sequence, static_cast<int32_t>(blockIdx.x) / bound, virtual_row / kWarpRows * kWarpRows);
  if (!takes_splits(a, rows.total) || virtual_row >= rows.total) return;
  const int lane = threadIdx.x;
  const size_t partial = partial_of(a, rows, virtual_row);
  float best = kNoMax;
  float sum = 0.0f;
  float acc[kDim / kLanes] = {};
  // What the row's tile has walked over: splits that this row sees nothing of change no bit of it.
  const int32_t end = rows.position(a, rows.first + kWarpRows - 1) / kSplitKeys + 1;
#pragma unroll 4
  for (int32_t split = rows.oldest(a, rows.first) / kSplitKeys; split < end; ++split) {
    const size_t slot = partial + split;
    const float2 further = a.partial_sums[slot];
    const Merge merge = merge_max(best, further.x);
    sum = merge_value(merge, sum, further.y);
#pragma unroll
    for (int i = 0; i < kDim / kLanes; ++i) {
      acc[i] = merge_value(merge, acc[i], a.partial_acc[slot * kDim + i * kLanes + lane]);
    }
  }
  const float inverse = 1.0f / sum;
  uint16_t* const out = a.out + rows.element(a, virtual_row);
#pragma unroll
  for (int i = 0; i < kDim / kLanes; ++i) {
    if (i * kLanes + lane < a.cache.head_dim) out[i * kLanes + lane] = float_to_bf16(acc[i] * inverse);
  }
}

/// The `tile`-th tile of tile_rows virtual rows, counted over the sequences; a sequence of -1 beyond the last.
__device__ Rows find_tile(const Attention& a, int32_t tile, int32_t tile_rows, int32_t kv_head, int lane) {
  const int32_t count = *a.batch.sequence_count;
  for (int32_t first = 0; first < count; first += kLanes) {
    const int32_t s = first + lane;
    const int32_t rows = s < count ? (a.batch.row_begin[s + 1] - a.batch.row_begin[s]) * a.group : 0;
    const int32_t own = takes_splits(a, rows) ? 0 : ceil_div(rows, tile_rows);
    int32_t until = own;  // tiles of the sequences up to this lane's
    for (int distance = 1; distance < kLanes; distance *= 2) {
      const int32_t before = __shfl_up_sync(kAllLanes, until, distance);
      if (lane >= distance) until += before;
    }
    const uint32_t reached = __ballot_sync(kAllLanes, until > tile);
    if (reached != 0) {
      const int owner = __ffs(static_cast<int>(reached)) - 1;
      const int32_t before = __shfl_sync(kAllLanes, until - own, owner);
      return rows_of(a, first + owner, kv_head, (tile - before) * tile_rows);
    }
    tile -= __shfl_sync(kAllLanes, until, kLanes - 1);
  }
  return {.sequence = -1};
}

template <int kDim>
__device__ void store_rows(const Attention& a, const Rows& rows, const RowState<kDim>& state, int lane) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int32_t virtual_row = rows.first + lane / 4 + i * 8;
    if (virtual_row >= rows.total) continue;
    const float inverse = 1.0f / state.sum[i];
    uint16_t* const out = a.out + rows.element(a, virtual_row);
#pragma unroll
    for (int tile = 0; tile < kDim / 8; ++tile) {
      const int channel = tile * 8 + lane % 4 * 2;
      const float low = state.acc[tile][i * 2] * inverse;
      const float high = state.acc[tile][i * 2 + 1] * inverse;
      if (a.cache.head_dim % 2 == 0) {
        if (channel < a.cache.head_dim) *reinterpret_cast<uint32_t*>(out + channel) = pack_bf16(low, high);
      } else {
        if (channel < a.cache.head_dim) out[channel] = float_to_bf16(low);
        if (channel + 1 < a.cache.head_dim) out[channel + 1] = float_to_bf16(high);
      }
    }
  }
}

/// Sums over the splits so far; the accumulators in shared memory, [element][thread], since they are needed but once
/// per split.
struct Totals {
  float max[2] = {kNoMax, kNoMax};
  float sum[2] = {0.0f, 0.0f};
  float* acc = nullptr;
};

template <int kDim, int kThreads>
__device__ void merge_split(RowState<kDim>& state, Totals& totals) {
  join_sums<kDim>(state);
  Merge merge[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    merge[i] = merge_max(totals.max[i], state.max[i]);
    totals.sum[i] = merge_value(merge[i], totals.sum[i], state.sum[i]);
  }
#pragma unroll
  for (int i = 0; i < kDim / 2; ++i) {
    float& total = totals.acc[i * kThreads];
    total = merge_value(merge[i % 4 / 2], total, state.acc[i / 4][i % 4]);
  }
  state = RowState<kDim>{};
}

template <int kDim, int kWarps>
constexpr size_t tile_shared_bytes() {
  using Tile = HeadTile<kDim>;
  return 2 * Tile::kStageBytes + kWarps * (Tile::kQueryBytes + kLanes * (kDim / 2) * sizeof(float));
}

/// Grid: [tiles, kv_heads]: 16 virtual rows per warp walk over all their keys, the block's warps together.
template <int kDim, int kWarps>
__global__ void __launch_bounds__(kWarps* kLanes) tile_kernel(Attention a) {
  using Tile = HeadTile<kDim>;
  constexpr int kThreads = kWarps * kLanes;
  const int lane = threadIdx.x % kLanes;
  const int warp = threadIdx.x / kLanes;
  // The last tiles walk over the most keys, so they begin first.
  const Rows tile = find_tile(a, static_cast<int32_t>(gridDim.x - 1 - blockIdx.x), kWarps * kWarpRows,
                              static_cast<int32_t>(blockIdx.y), lane);
  if (tile.sequence < 0) return;
  Rows rows = tile;
  rows.first += warp * kWarpRows;
  const KeySource source = keys_of(a, tile);
  const Visibility sees = visibility_of(a, rows, lane);
  const int32_t last = rows.position(a, rows.first + kWarpRows - 1);
  const int32_t oldest = rows.oldest(a, rows.first);
  const int32_t begin = tile.oldest(a, tile.first) / kBlockKeys * kBlockKeys;
  const int32_t end = tile.position(a, tile.first + kWarps * kWarpRows - 1) + 1;

  std::byte* const stages = shared_memory();
  std::byte* const queries = stages + 2 * Tile::kStageBytes + warp * Tile::kQueryBytes;
  load_queries<kDim>(a, rows, lane, queries);
  Totals totals;
  totals.acc = reinterpret_cast<float*>(stages + 2 * Tile::kStageBytes + kWarps * Tile::kQueryBytes) + threadIdx.x;
  for (int i = 0; i < kDim / 2; ++i) totals.acc[i * kThreads] = 0.0f;
  RowState<kDim> state;
  load_keys<kDim>(source, key_offset(source, begin + lane), threadIdx.x, kThreads, stages);
  commit_copies();
  size_t next_offset = key_offset(source, begin + kBlockKeys + lane);
  for (int32_t key = begin; key < end; key += kBlockKeys) {
    const std::byte* const stage = stages + (key - begin) / kBlockKeys % 2 * Tile::kStageBytes;
    wait_copies<0>();
    __syncthreads();
    const int32_t next = key + kBlockKeys;
    if (next < end) {
      std::byte* const next_stage = stages + (next - begin) / kBlockKeys % 2 * Tile::kStageBytes;
      load_keys<kDim>(source, next_offset, threadIdx.x, kThreads, next_stage);
    }
    commit_copies();
    next_offset = key_offset(source, next + kBlockKeys + lane);
    // Where none of the warp's rows sees a key, nothing would change.
    const bool visible = rows.first < rows.total && key <= last && next > oldest;
    if (visible) attend_block<kDim>(queries, stage, sees, key, a.scale_log2, lane, state);
    if (next % kSplitKeys == 0 || next >= end) merge_split<kDim, kThreads>(state, totals);
  }
#pragma unroll
  for (int i = 0; i < kDim / 2; ++i) state.acc[i / 4][i % 4] = totals.acc[i * kThreads];
#pragma unroll
  for (int i = 0; i < 2; ++i) state.sum[i] = totals.sum[i];
  store_rows<kDim>(a, rows, state, lane);
}

size_t partial_bytes(int32_t head_count, int32_t padded_dim, const BatchBounds& bounds, int32_t split_rows) {
  const int32_t splits = ceil_div(bounds.context, kSplitKeys);
  return static_cast<size_t>(bounds.sequences) * static_cast<size_t>(head_count) * static_cast<size_t>(split_rows) *
         static_cast<size_t>(splits) * static_cast<size_t>(padded_dim + 2) * sizeof(float);
}

/// The most rows of a sequence that are worth dividing by splits: more make blocks enough.
int32_t split_rows_wanted(const BatchBounds& bounds) {
  constexpr int32_t kMostRows = 16;
  if (bounds.context <= kSplitKeys) return 0;
  return bounds.sequence_rows < kMostRows ? bounds.sequence_rows : kMostRows;
}

template <int kDim, int kStages, int kWarps>
void launch_attention(cudaStream_t stream, Attention a, const BatchBounds& bounds, void* workspace) {
  a.split_bound = ceil_div(bounds.context, kSplitKeys);
  a.split_rows = split_rows_wanted(bounds);
  while (partial_bytes(a.head_count, kDim, bounds, a.split_rows) > kMostPartialBytes) a.split_rows /= 2;
  const auto sequences = static_cast<uint32_t>(bounds.sequences);
  if (a.split_rows > 0) {
    const int32_t virtual_rows = a.split_rows * a.group;
    const auto kv_heads = static_cast<uint32_t>(a.cache.kv_head_count);
    a.partial_acc = static_cast<float*>(workspace);
    a.partial_sums = reinterpret_cast<float2*>(a.partial_acc + static_cast<size_t>(bounds.sequences) * a.head_count *
                                                                   a.split_rows * a.split_bound * kDim);
    const dim3 splits(a.split_bound, ceil_div(virtual_rows, kWarpRows) * kv_heads, sequences);
    constexpr size_t kShared = kStages * HeadTile<kDim>::kStageBytes + HeadTile<kDim>::kQueryBytes;
    launch(split_kernel<kDim, kStages>, {"attention over splits", splits, dim3(kLanes), kShared}, stream, a);
    launch(merge_kernel<kDim>, {"attention merge", dim3(virtual_rows * kv_heads, sequences), dim3(kLanes)}, stream, a);
    if (bounds.sequence_rows <= a.split_rows) return;
  }
  const int32_t tiles = bounds.rows * a.group / (kWarps * kWarpRows) + bounds.sequences;
  launch(tile_kernel<kDim, kWarps>,
         {"attention", dim3(tiles, a.cache.kv_head_count), dim3(kWarps * kLanes), tile_shared_bytes<kDim, kWarps>()},
         stream, a);
}

int32_t padded_dim(int32_t head_dim) {
  return head_dim <= 64 ? 64 : head_dim <= 96 ? 96 : head_dim <= 128 ? 128 : 256;
}

}  // namespace

size_t attention_workspace_bytes(const AttentionSizes& sizes, const DeviceKvCache& cache, const BatchBounds& bounds) {
  const size_t bytes = partial_bytes(sizes.head_count, padded_dim(cache.head_dim), bounds, split_rows_wanted(bounds));
  return bytes < kMostPartialBytes ? bytes : kMostPartialBytes;
}

void attention(cudaStream_t stream, const void* q, const AttentionSizes& sizes, const DeviceBatch& batch,
               const BatchBounds& bounds, const DeviceKvCache& cache, int32_t layer, void* out, void* workspace) {
  if (cache.head_dim > 256 || sizes.head_count % cache.kv_head_count != 0) {
    throw std::invalid_argument("attention: found " + std::to_string(sizes.head_count) + " heads over " +
                                std::to_string(cache.kv_head_count) + " of " + std::to_string(cache.head_dim) +
                                " channels, wanted a multiple and at most 256 channels");
  }
  const Attention a{.q = static_cast<const uint16_t*>(q),
                    .out = static_cast<uint16_t*>(out),
                    .head_count = sizes.head_count,
                    .group = sizes.head_count / cache.kv_head_count,
                    .scale_log2 = sizes.scale * kLog2E,
                    .sliding_window = sizes.sliding_window,
                    .batch = batch,
                    .cache = cache,
                    .layer = layer};
  switch (padded_dim(cache.head_dim)) {
    case 64: return launch_attention<64, 3, 4>(stream, a, bounds, workspace);
    case 96: return launch_attention<96, 3, 4>(stream, a, bounds, workspace);
    case 128: return launch_attention<128, 3, 4>(stream, a, bounds, workspace);
    default: return launch_attention<256, 2, 2>(stream, a, bounds, workspace);
  }
}

}  // namespace millrace::cuda
