#include "cuda/attention_split.cuh"

namespace millrace::cuda {
namespace {

/// Finds the `tile`-th tile of tile_rows virtual rows, counted over the sequences. The sequence is -1 after the last
/// tile.
__device__ QueryRows find_tile(const AttentionParams& a, int32_t tile, int32_t tile_rows, int32_t kv_head, int lane) {
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

/// The sums over the earlier splits. The accumulators are in shared memory, [element][thread], since they are used once
/// per split.
struct Totals {
  float max[2] = {kInitialMax, kInitialMax};
  float sum[2] = {0.0f, 0.0f};
  float* acc = nullptr;
};

template <int kOwn, int kThreads>
__device__ void merge_split(RowState<kOwn>& state, Totals& totals) {
  reduce_row_sums<kOwn>(state);
  SoftmaxMerge merge[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    merge[i] = merge_max(totals.max[i], state.max[i]);
    totals.sum[i] = merge_value(merge[i], totals.sum[i], state.sum[i]);
  }
#pragma unroll
  for (int i = 0; i < kOwn / 2; ++i) {
    float& total = totals.acc[i * kThreads];
    total = merge_value(merge[i % 4 / 2], total, state.acc[i / 4][i % 4]);
  }
  state = RowState<kOwn>{};
}

template <int kDim, int kGroups, KvElement kElement>
constexpr size_t tile_shared_bytes() {
  using Keys = BlockKeys<kDim, kElement>;
  return 2 * Keys::kStageBytes + Keys::kDequantizedBytes +
         kGroups * (HeadTile<kDim>::kQueryBytes + kLanes * (kDim / 2) * sizeof(float));
}

/// Grid: [tiles, kv_heads]. The 16 virtual rows of each of a block's kGroups walk over all their keys, together.
template <int kDim, int kGroups, KvElement kElement>
__global__ void __launch_bounds__(kGroups* kPartCount<kDim>* kLanes) tile_kernel(AttentionParams a) {
  using Tile = HeadTile<kDim>;
  using Keys = BlockKeys<kDim, kElement>;
  constexpr bool kCoded = kElement != KvElement::kBf16;
  constexpr int kThreads = kGroups * kPartCount<kDim> * kLanes;
  constexpr int kOwn = kPartChannels<kDim>;
  const int lane = threadIdx.x % kLanes;
  const int group = threadIdx.x / kLanes / kPartCount<kDim>;
  const int part = threadIdx.x / kLanes % kPartCount<kDim>;
  // The last tiles have the most keys, so they start first.
  const QueryRows tile = find_tile(a, static_cast<int32_t>(gridDim.x - 1 - blockIdx.x), kGroups * kWarpRows,
                                   static_cast<int32_t>(blockIdx.y), lane);
  if (tile.sequence < 0) return;
  QueryRows rows = tile;
  rows.first += group * kWarpRows;
  const Visibility sees = visibility_of(a, rows, lane);
  const int32_t last = rows.last_visible(a, rows.first + kWarpRows - 1);
  const int32_t first_visible = rows.first_visible(a, rows.first);
  const int32_t begin = tile.first_visible(a, tile.first) / kBlockKeys * kBlockKeys;
  const int32_t end = tile.last_visible(a, tile.first + kGroups * kWarpRows - 1) + 1;

  std::byte* const stages = shared_memory();
  std::byte* const dequantized = stages + 2 * Keys::kStageBytes;
  std::byte* const block_queries = dequantized + Keys::kDequantizedBytes;
  std::byte* const queries = block_queries + group * Tile::kQueryBytes;
  if (part == 0) load_queries<kDim, kCoded>(a, rows, lane, queries);
  Totals totals;
  totals.acc = reinterpret_cast<float*>(block_queries + kGroups * Tile::kQueryBytes) + threadIdx.x;
  for (int i = 0; i < kOwn / 2; ++i) totals.acc[i * kThreads] = 0.0f;
  RowState<kOwn> state;
  const auto thread = static_cast<int>(threadIdx.x);
  Keys source(keys_of(a, tile), begin + lane);
  source.template load<kThreads>(source.next(), thread, stages);
  commit_copies();
  auto next_address = source.next();
  for (int32_t key = begin; key < end; key += kBlockKeys) {
    const std::byte* keys = stages + (key - begin) / kBlockKeys % 2 * Keys::kStageBytes;
    wait_copies<0>();
    __syncthreads();
    const int32_t next = key + kBlockKeys;
    if (next < end) {
      std::byte* const next_stage = stages + (next - begin) / kBlockKeys % 2 * Keys::kStageBytes;
      source.template load<kThreads>(next_address, thread, next_stage);
    }
    commit_copies();
    next_address = source.next();
    if constexpr (kCoded) {
      Keys::Block::template dequantize<kThreads>(keys, thread, dequantized);
      __syncthreads();
      keys = dequantized;
    }
    // Where none of the group's rows sees a key, nothing would change.
    const bool visible = rows.first < rows.total && key <= last && next > first_visible;
    if (visible) attend_block<kDim, PlainBlock<kDim>>(queries, keys, sees, key, a.scale, lane, part, state);
    if (next % kSplitKeys == 0 || next >= end) merge_split<kOwn, kThreads>(state, totals);
  }
#pragma unroll
  for (int i = 0; i < kOwn / 2; ++i) state.acc[i / 4][i % 4] = totals.acc[i * kThreads];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    state.max[i] = totals.max[i];
    state.sum[i] = totals.sum[i];
  }
  store_rows<kDim, kCoded>(a, rows, state, lane, part);
}

size_t partial_bytes(int32_t head_count, int32_t padded_dim, const BatchBounds& bounds, int32_t split_rows) {
  return static_cast<size_t>(bounds.splits) * static_cast<size_t>(head_count) * static_cast<size_t>(split_rows) *
         static_cast<size_t>(padded_dim + 2) * sizeof(float);
}

/// The stages, and the groups of 16 rows, for which wide heads leave room.
template <int kDim, KvElement kElement>
struct Blocks {
  using Keys = BlockKeys<kDim, kElement>;
  static constexpr bool kCoded = kElement != KvElement::kBf16;
  /// The stages of split_kernel. Over codes a warp computes more per byte, so that more warps are worth more than a
  /// third stage.
  static constexpr int kStages = kDim > 128 || kCoded ? 2 : 3;
  static constexpr int kGroups = kDim > 256 && kCoded ? 1 : kDim > 128 ? 2 : 4;  ///< of tile_kernel
  static constexpr size_t kSplitBytes = kStages * Keys::kStageBytes + HeadTile<kDim>::kQueryBytes;
  static constexpr size_t kTileBytes = tile_shared_bytes<kDim, kGroups, kElement>();
  static constexpr size_t kMaxBytes = kSplitBytes > kTileBytes ? kSplitBytes : kTileBytes;
};
template <int kDim, size_t kLimit>
constexpr bool kFits =
    Blocks<kDim, KvElement::kBf16>::kMaxBytes <= kLimit && Blocks<kDim, KvElement::kInt8>::kMaxBytes <= kLimit &&
    Blocks<kDim, KvElement::kE4M3>::kMaxBytes <= kLimit;
static_assert(kFits<64, kPortableSharedBytes> && kFits<96, kPortableSharedBytes> && kFits<128, kPortableSharedBytes>);
static_assert(kFits<512, kHopperSharedBytes>);

template <int kDim, KvElement kElement>
void launch_attention(cudaStream_t stream, AttentionParams a, const BatchBounds& bounds, void* workspace) {
  using Block = Blocks<kDim, kElement>;
  a.split_rows = split_rows_wanted(bounds);
  while (partial_bytes(a.head_count, kDim, bounds, a.split_rows) > kMaxPartialBytes) a.split_rows /= 2;
  const auto sequences = static_cast<uint32_t>(bounds.sequences);
  if (a.split_rows > 0) {
    const int32_t virtual_rows = a.split_rows * a.group;
    const auto kv_heads = static_cast<uint32_t>(a.cache.kv_head_count);
    a.partial_acc = static_cast<float*>(workspace);
    a.partial_sums = reinterpret_cast<float2*>(a.partial_acc +
                                               static_cast<size_t>(bounds.splits) * a.head_count * a.split_rows * kDim);
    const dim3 splits(bounds.splits, ceil_div(virtual_rows, kWarpRows) * kv_heads);
    launch<split_kernel<kDim, Block::kStages, kElement>>({.name = "attention over splits",
                                                          .grid = splits,
                                                          .block = dim3(kPartCount<kDim> * kLanes),
                                                          .shared_bytes = Block::kSplitBytes},
                                                         stream, a);
    launch<merge_kernel<kDim>>({"attention merge", dim3(virtual_rows * kv_heads, sequences), dim3(kLanes)}, stream, a);
    if (bounds.sequence_rows <= a.split_rows) return;
  }
  const int32_t tiles = bounds.rows * a.group / (Block::kGroups * kWarpRows) + bounds.sequences;
  launch<tile_kernel<kDim, Block::kGroups, kElement>>({.name = "attention",
                                                       .grid = dim3(tiles, a.cache.kv_head_count),
                                                       .block = dim3(Block::kGroups * kPartCount<kDim> * kLanes),
                                                       .shared_bytes = Block::kTileBytes},
                                                      stream, a);
}

template <int kDim>
void launch_attention_over(cudaStream_t stream, const AttentionParams& a, const BatchBounds& bounds, void* workspace) {
  switch (a.cache.element) {
    case KvElement::kBf16: return launch_attention<kDim, KvElement::kBf16>(stream, a, bounds, workspace);
    case KvElement::kInt8: return launch_attention<kDim, KvElement::kInt8>(stream, a, bounds, workspace);
    case KvElement::kE4M3: return launch_attention<kDim, KvElement::kE4M3>(stream, a, bounds, workspace);
  }
}

template <int kDim>
size_t shared_bytes_of(KvElement element) {
  switch (element) {
    case KvElement::kInt8: return Blocks<kDim, KvElement::kInt8>::kMaxBytes;
    case KvElement::kE4M3: return Blocks<kDim, KvElement::kE4M3>::kMaxBytes;
    default: return Blocks<kDim, KvElement::kBf16>::kMaxBytes;
  }
}

ScoreScale score_scale(const AttentionSizes& sizes) {
  if (sizes.soft_cap <= 0.0f) return {.cap_factor = 0.0f, .log2 = sizes.scale * kLog2E};
  return {.cap_factor = 2.0f * kLog2E * sizes.scale / sizes.soft_cap, .log2 = sizes.soft_cap * kLog2E};
}

int32_t padded_dim(int32_t head_dim) {
  return head_dim <= 64 ? 64 : head_dim <= 96 ? 96 : head_dim <= 128 ? 128 : head_dim <= 256 ? 256 : 512;
}

}  // namespace

size_t attention_workspace_bytes(const AttentionSizes& sizes, const DeviceKvCache& cache, const BatchBounds& bounds) {
  const size_t bytes = partial_bytes(sizes.head_count, padded_dim(cache.head_dim), bounds, split_rows_wanted(bounds));
  return bytes < kMaxPartialBytes ? bytes : kMaxPartialBytes;
}

size_t attention_shared_bytes(const DeviceKvCache& cache) {
  switch (padded_dim(cache.head_dim)) {
    case 64: return shared_bytes_of<64>(cache.element);
    case 96: return shared_bytes_of<96>(cache.element);
    case 128: return shared_bytes_of<128>(cache.element);
    case 256: return shared_bytes_of<256>(cache.element);
    default: return shared_bytes_of<512>(cache.element);
  }
}

void attention(cudaStream_t stream, const void* q, const AttentionSizes& sizes, const DeviceBatch& batch,
               const BatchBounds& bounds, const DeviceKvCache& cache, int32_t layer, void* out, void* workspace) {
  if (cache.head_dim > kMaxHeadDim || sizes.head_count % cache.kv_head_count != 0) {
    throw std::invalid_argument("attention: found " + std::to_string(sizes.head_count) + " heads over " +
                                std::to_string(cache.kv_head_count) + " of " + std::to_string(cache.head_dim) +
                                " channels, wanted a multiple and at most " + std::to_string(kMaxHeadDim) +
                                " channels");
  }
  const AttentionParams a{.q = static_cast<const uint16_t*>(q),
                          .out = static_cast<uint16_t*>(out),
                          .head_count = sizes.head_count,
                          .group = sizes.head_count / cache.kv_head_count,
                          .scale = score_scale(sizes),
                          .sliding_window = sizes.sliding_window,
                          .chunk_size = sizes.chunk_size,
                          .causal = sizes.causal,
                          .sinks = sizes.sinks,
                          .batch = batch,
                          .cache = cache,
                          .layer = layer};
  switch (padded_dim(cache.head_dim)) {
    case 64: return launch_attention_over<64>(stream, a, bounds, workspace);
    case 96: return launch_attention_over<96>(stream, a, bounds, workspace);
    case 128: return launch_attention_over<128>(stream, a, bounds, workspace);
    case 256: return launch_attention_over<256>(stream, a, bounds, workspace);
    default: return launch_attention_over<512>(stream, a, bounds, workspace);
  }
}

}  // namespace millrace::cuda
