#include "cuda/head_matmul.cuh"
#include "cuda/latent_merge.cuh"
#include "cuda/latent_wide.cuh"
#include "cuda/rotary.cuh"

namespace millrace::cuda {
namespace {

/// Maximum bytes of queries and results in the space of latents. Beyond it rows are computed in slices.
constexpr size_t kMaxSliceBytes = size_t{256} << 20;
constexpr int kQueryThreads = 256;
/// Heads of a row that share the computation of its angles.
constexpr int kBlockHeads = 8;

struct QueryParams {
  const float* q = nullptr;  // [rows, heads, nope_dim + rope_dim], from the slice's first row on
  int32_t head_count = 0;
  int32_t nope_dim = 0;
  DeviceRotary rotary;
  DeviceBatch batch;
  int32_t first_row = 0;
  int32_t rows = 0;
  uint16_t* plain = nullptr;    // [heads][rows][nope_dim]
  uint16_t* rotated = nullptr;  // [heads][rows][rope_dim]
};

/// Grid: [rows, blocks of kBlockHeads heads]: rounds queries to bf16, head by head, and rotates their last channels.
__global__ void __launch_bounds__(kQueryThreads) split_queries_kernel(QueryParams p) {
  const auto row = static_cast<int32_t>(blockIdx.x);
  const int32_t s = sequence_of(p.batch, p.first_row + row);
  if (s < 0) return;
  const int32_t rope_dim = p.rotary.rotary_dim;
  const int32_t half = rope_dim / 2;
  auto* const cos_table = reinterpret_cast<float*>(shared_memory());  // [half]
  float* const sin_table = cos_table + half;
  const int32_t position = p.batch.prefix[s] + p.first_row + row - p.batch.row_begin[s];
  compute_angles(p.rotary, position, threadIdx.x, kQueryThreads, cos_table, sin_table);
  __syncthreads();
  const int32_t width = p.nope_dim + rope_dim;
  const int32_t first = static_cast<int32_t>(blockIdx.y) * kBlockHeads;
  const int32_t heads = min(kBlockHeads, p.head_count - first);
  const float* const in = p.q + (static_cast<size_t>(row) * p.head_count + first) * width;
  for (int32_t i = threadIdx.x; i < heads * width; i += kQueryThreads) {
    const size_t target = static_cast<size_t>(first + i / width) * p.rows + row;
    const int32_t channel = i % width - p.nope_dim;  // of the rotated ones
    if (channel < 0) {
      p.plain[target * p.nope_dim + channel + p.nope_dim] = float_to_bf16(in[i]);
    } else if (channel < half) {
      const float x = in[i];
      const float y = in[i + half];
      uint16_t* const to = p.rotated + target * rope_dim + channel;
      to[0] = float_to_bf16(x * cos_table[channel] - y * sin_table[channel]);
      to[half] = float_to_bf16(y * cos_table[channel] + x * sin_table[channel]);
    }
  }
}

/// Stores one of a lane's rows of a tile's results.
template <class Tile>
__device__ void store_row(const LatentParams& a, const LatentRows& rows, int32_t pair, int row, int lane, int quarter,
                          const typename Tile::State& state) {
  const float inverse = 1.0f / state.sum[row];
  uint16_t* const out = a.out + rows.matrix_row(a, pair) * a.latent_dim;
#pragma unroll
  for (int tile = 0; tile < Tile::kWarpChannels / 8; ++tile) {
    const int channel = quarter * Tile::kWarpChannels + tile * 8 + lane % 4 * 2;
    const float low = state.acc[tile][row * 2] * inverse;
    const float high = state.acc[tile][row * 2 + 1] * inverse;
    if (a.latent_dim % 2 == 0) {
      if (channel < a.latent_dim) *reinterpret_cast<uint32_t*>(out + channel) = pack_bf16(low, high);
    } else {
      if (channel < a.latent_dim) out[channel] = float_to_bf16(low);
      if (channel + 1 < a.latent_dim) out[channel + 1] = float_to_bf16(high);
    }
  }
}

/// Stores one of a lane's rows of a split.
template <class Tile>
__device__ void store_partial(const LatentParams& a, size_t partial, int row, int lane, int quarter,
                              const typename Tile::State& state) {
  if (quarter == 0 && lane % 4 == 0) a.partial_sums[partial] = float2{state.max[row], state.sum[row]};
  float* const to = a.partial_acc + partial * Tile::kLatent + quarter * Tile::kWarpChannels + lane % 4 * 2;
#pragma unroll
  for (int tile = 0; tile < Tile::kWarpChannels / 8; ++tile)
    *reinterpret_cast<float2*>(to + tile * 8) = float2{state.acc[tile][row * 2], state.acc[tile][row * 2 + 1]};
}

/// Calls store(pair, row of the lane) for the lane's rows that exist.
template <class Store>
__device__ void for_own_rows(const LatentRows& rows, int lane, const Store& store) {
  const int32_t first = rows.first + static_cast<int32_t>(threadIdx.x) / kLanes / kQuarters * kWarpRows + lane / 4;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    if (first + row * 8 < rows.total) store(first + row * 8, row);
  }
}

/// Grid: [tiles]. A block's pairs walk over all their keys.
template <class Tile>
__global__ void __launch_bounds__(kLatentThreads, 1) latent_tile_kernel(LatentParams a) {
  // The last tiles have the most keys, so they start first.
  const LatentRows rows = find_tile<kTileRows>(a, static_cast<int32_t>(gridDim.x - 1 - blockIdx.x));
  if (rows.sequence < 0 || takes_splits(a, rows.sequence)) return;
  const int lane = threadIdx.x % kLanes;
  const int quarter = threadIdx.x / kLanes % kQuarters;
  typename Tile::State state;
  typename Tile::State total;
  walk_latents<Tile>(a, rows, 0, rows.position(a, rows.first + kTileRows - 1) + 1, state,
                     [&](typename Tile::State& split) {
                       reduce_row_sums<Tile::kWarpChannels>(split);
                       SoftmaxMerge merge[2];
#pragma unroll
                       for (int i = 0; i < 2; ++i) {
                         merge[i] = merge_max(total.max[i], split.max[i]);
                         total.sum[i] = merge_value(merge[i], total.sum[i], split.sum[i]);
                       }
#pragma unroll
                       for (int tile = 0; tile < Tile::kWarpChannels / 8; ++tile) {
#pragma unroll
                         for (int i = 0; i < 4; ++i)
                           total.acc[tile][i] = merge_value(merge[i / 2], total.acc[tile][i], split.acc[tile][i]);
                       }
                       split = {};
                     });
  for_own_rows(rows, lane, [&](int32_t pair, int row) { store_row<Tile>(a, rows, pair, row, lane, quarter, total); });
}

/// Grid: [splits of all sequences, tiles of a sequence's pairs]: one split of 32 pairs per block.
template <class Tile>
__global__ void __launch_bounds__(kLatentThreads, 1) latent_split_kernel(LatentParams a) {
  const auto slot = static_cast<int32_t>(blockIdx.x);
  const int32_t sequence = range_of(a.batch.split_begin, *a.batch.sequence_count, slot);
  if (sequence < 0 || !takes_splits(a, sequence)) return;
  const LatentRows rows = rows_of(a, sequence, static_cast<int32_t>(blockIdx.y) * kTileRows);
  if (rows.first >= rows.total) return;
  const int32_t begin = (slot - a.batch.split_begin[sequence]) * kSplitKeys;
  const int32_t end = min(begin + kSplitKeys, rows.position(a, rows.first + kTileRows - 1) + 1);
  if (begin >= end) return;
  const int lane = threadIdx.x % kLanes;
  const int quarter = threadIdx.x / kLanes % kQuarters;
  typename Tile::State state;
  walk_latents<Tile>(a, rows, begin, end, state,
                     [](typename Tile::State& split) { reduce_row_sums<Tile::kWarpChannels>(split); });
  for_own_rows(rows, lane, [&](int32_t pair, int row) {
    store_partial<Tile>(a, partial_of(a, slot, pair), row, lane, quarter, state);
  });
}

using SmallTile = LatentTile<128, 192>;
using LargeTile = LatentTile<kMaxLatentDim, kMaxLatentKeyDim>;
template <int kPairs>
using SmallWideTile = WideLatentTile<2, 3, kPairs>;
template <int kPairs>
using LargeWideTile = WideLatentTile<8, 9, kPairs>;
static_assert(SmallWideTile<16>::kLatent == SmallTile::kLatent && LargeWideTile<16>::kLatent == LargeTile::kLatent);

bool is_small(const tensor::LatentShape& shape) {
  return shape.latent_dim <= SmallTile::kLatent && shape.key_dim() <= SmallTile::kKey;
}

/// Calls use(tile) for the tile of a batch. Results do not depend on the pairs of a tile.
template <class Use>
void with_tile(const tensor::LatentShape& shape, const BatchBounds& bounds, MatrixInstruction by, const Use& use) {
  if (by == MatrixInstruction::kMma) return is_small(shape) ? use(SmallTile{}) : use(LargeTile{});
  const int64_t pairs = int64_t{bounds.sequence_rows} * shape.head_count;
  const auto choose = [&]<int kPairs>() {
    return is_small(shape) ? use(SmallWideTile<kPairs>{}) : use(LargeWideTile<kPairs>{});
  };
  if (pairs <= 16) return choose.template operator()<16>();
  if (pairs <= 32) return choose.template operator()<32>();
  choose.template operator()<64>();
}

/// The sizes of what blocks leave for each other.
struct PartialSizes {
  PartialSizes(const tensor::LatentShape& shape, const BatchBounds& bounds, MatrixInstruction by) {
    with_tile(shape, bounds, by, [&](auto tile) {
      using Tile = decltype(tile);
      split_keys = Tile::kTileSplitKeys;
      channels = Tile::kLatent;
      total_bytes = Tile::kTotalBytes * static_cast<size_t>(kWideBlocks);
    });
    // A sequence may have one split more than its splits of DeviceBatch divide into.
    slots = split_keys == kSplitKeys ? bounds.splits : bounds.splits / (split_keys / kSplitKeys) + bounds.sequences;
    pairs_per_row = static_cast<size_t>(slots) * static_cast<size_t>(shape.head_count);
  }
  /// Returns the splits' pairs with this number of rows, and their bytes.
  [[nodiscard]] size_t pairs(int32_t split_rows) const { return pairs_per_row * static_cast<size_t>(split_rows); }
  [[nodiscard]] size_t bytes(int32_t split_rows) const {
    return pairs(split_rows) * static_cast<size_t>(channels + 2) * sizeof(float);
  }
  int32_t split_keys = 0;
  int32_t channels = 0;
  int32_t slots = 0;
  size_t pairs_per_row = 0;
  size_t total_bytes = 0;  ///< of the sums of blocks that walk over several splits
};

/// Returns the rows up to which sequences go split by split.
int32_t split_rows_of(const PartialSizes& sizes, const BatchBounds& bounds) {
  int32_t rows = split_rows_wanted(bounds);
  while (sizes.bytes(rows) > kMaxPartialBytes) rows /= 2;
  return rows;
}

/// The parts of the workspace that a slice of rows uses. The plain queries are read before the results are written.
struct SliceLayout {
  explicit SliceLayout(const tensor::LatentShape& shape)
      : latents(static_cast<size_t>(shape.head_count) * static_cast<size_t>(shape.latent_dim)),
        keys(static_cast<size_t>(shape.head_count) * static_cast<size_t>(shape.rope_dim)),
        results(static_cast<size_t>(shape.head_count) *
                static_cast<size_t>(shape.latent_dim > shape.nope_dim ? shape.latent_dim : shape.nope_dim)) {}
  [[nodiscard]] size_t row_bytes() const { return (latents + keys + results) * sizeof(uint16_t); }
  /// Returns the bytes for a number of rows, with each part aligned.
  [[nodiscard]] size_t bytes(int32_t rows) const { return static_cast<size_t>(rows) * row_bytes() + 3 * kAlignment; }
  /// Returns the rows for which `bytes` suffice, up to `most`.
  [[nodiscard]] int32_t rows_within(size_t bytes, int32_t most) const {
    const size_t rows = bytes < 3 * kAlignment ? 0 : (bytes - 3 * kAlignment) / row_bytes();
    return rows < static_cast<size_t>(most) ? static_cast<int32_t>(rows) : most;
  }
  static constexpr size_t kAlignment = 256;
  size_t latents;  ///< elements per row
  size_t keys;
  size_t results;
};

std::byte* aligned(std::byte* at) {
  constexpr size_t kAlignment = SliceLayout::kAlignment;
  return reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(at) + kAlignment - 1) / kAlignment * kAlignment);
}

template <class Tile>
void launch_attention(cudaStream_t stream, const LatentParams& a, const BatchBounds& bounds) {
  if (a.split_rows > 0) {
    launch<latent_split_kernel<Tile>>({.name = "latent attention over splits",
                                       .grid = dim3(bounds.splits, ceil_div(a.split_rows * a.head_count, kTileRows)),
                                       .block = dim3(kLatentThreads),
                                       .shared_bytes = Tile::kSharedBytes},
                                      stream, a);
    launch_latent_merge<Tile>(stream, a, bounds);
    if (bounds.sequence_rows <= a.split_rows) return;
  }
  const auto tiles = static_cast<int32_t>(static_cast<int64_t>(a.rows) * a.head_count / kTileRows) + bounds.sequences;
  launch<latent_tile_kernel<Tile>>({.name = "latent attention",
                                    .grid = dim3(tiles),
                                    .block = dim3(kLatentThreads),
                                    .shared_bytes = Tile::kSharedBytes},
                                   stream, a);
}

/// Computes the results in the space of latents.
void attend(cudaStream_t stream, const tensor::LatentShape& shape, const LatentParams& a, const BatchBounds& bounds,
            MatrixInstruction by) {
  with_tile(shape, bounds, by, [&](auto tile) {
    using Tile = decltype(tile);
    if constexpr (Tile::kByWarpgroup) {
      launch_wide_attention<Tile>(stream, a, bounds);
    } else {
      launch_attention<Tile>(stream, a, bounds);
    }
  });
}

void split_queries(cudaStream_t stream, const QueryParams& p) {
  launch<split_queries_kernel>({.name = "latent queries",
                                .grid = dim3(p.rows, ceil_div(p.head_count, kBlockHeads)),
                                .block = dim3(kQueryThreads),
                                .shared_bytes = static_cast<size_t>(p.rotary.rotary_dim) * sizeof(float)},
                               stream, p);
}

void check_shape(const tensor::LatentShape& shape) {
  if (shape.latent_dim <= kMaxLatentDim && shape.key_dim() <= kMaxLatentKeyDim) return;
  throw std::invalid_argument("latent attention: found latents of " + std::to_string(shape.latent_dim) +
                              " and keys of " + std::to_string(shape.key_dim()) + " values, wanted at most " +
                              std::to_string(kMaxLatentDim) + " and " + std::to_string(kMaxLatentKeyDim));
}

}  // namespace

size_t latent_attention_workspace_bytes(const tensor::LatentShape& shape, const BatchBounds& bounds,
                                        MatrixInstruction by) {
  const SliceLayout layout(shape);
  const PartialSizes sizes(shape, bounds, by);
  const int32_t rows = layout.rows_within(kMaxSliceBytes, bounds.rows);
  // Smaller bounds may divide more rows, so that the bytes of this batch's own split_rows would not bound theirs.
  const size_t partials = sizes.bytes(split_rows_wanted(bounds));
  return layout.bytes(rows < 1 ? 1 : rows) + sizes.total_bytes +
         (partials < kMaxPartialBytes ? partials : kMaxPartialBytes);
}

size_t latent_attention_shared_bytes(const tensor::LatentShape& shape) {
  return is_small(shape) ? SmallTile::kSharedBytes : LargeTile::kSharedBytes;
}

void latent_attention(cudaStream_t stream, const float* q, const tensor::LatentShape& shape, const DeviceRotary& rotary,
                      const DeviceExpansion& expansion, const DeviceBatch& batch, const BatchBounds& bounds,
                      const DeviceKvCache& cache, int32_t layer, MatrixInstruction by, void* out, void* workspace,
                      size_t workspace_bytes) {
  check_shape(shape);
  const SliceLayout layout(shape);
  const PartialSizes sizes(shape, bounds, by);
  const int32_t heads = shape.head_count;
  LatentParams a{.head_count = heads,
                 .latent_dim = shape.latent_dim,
                 .rope_dim = shape.rope_dim,
                 .scale_log2 = shape.scale * kLog2E,
                 .batch = batch,
                 .cache = cache,
                 .layer = layer,
                 .split_rows = split_rows_of(sizes, bounds),
                 .split_keys = sizes.split_keys,
                 .totals = static_cast<float*>(workspace)};
  a.partial_acc = a.totals + sizes.total_bytes / sizeof(float);
  const size_t partials = sizes.pairs(a.split_rows);
  a.partial_sums = reinterpret_cast<float2*>(a.partial_acc + partials * static_cast<size_t>(sizes.channels));
  std::byte* const slices = aligned(reinterpret_cast<std::byte*>(a.partial_sums + partials));
  const size_t partial = sizes.total_bytes + sizes.bytes(a.split_rows);
  const int32_t max_rows = layout.rows_within(workspace_bytes < partial ? 0 : workspace_bytes - partial, bounds.rows);
  if (max_rows < 1 && bounds.rows > 0) {
    throw std::invalid_argument("latent attention: found " + std::to_string(workspace_bytes) +
                                " bytes of scratch, wanted at least " + std::to_string(layout.bytes(1) + partial));
  }
  for (int32_t first = 0; first < bounds.rows; first += max_rows) {
    a.first_row = first;
    a.rows = bounds.rows - first < max_rows ? bounds.rows - first : max_rows;
    const auto rows = static_cast<size_t>(a.rows);
    auto* const latents = reinterpret_cast<uint16_t*>(slices);
    auto* const keys = reinterpret_cast<uint16_t*>(aligned(slices + rows * layout.latents * sizeof(uint16_t)));
    a.latents = latents;
    a.keys = keys;
    a.out = reinterpret_cast<uint16_t*>(
        aligned(reinterpret_cast<std::byte*>(keys) + rows * layout.keys * sizeof(uint16_t)));
    uint16_t* const plain = a.out;
    split_queries(stream, {.q = q + static_cast<size_t>(first) * shape.query_width(),
                           .head_count = heads,
                           .nope_dim = shape.nope_dim,
                           .rotary = rotary,
                           .batch = batch,
                           .first_row = first,
                           .rows = a.rows,
                           .plain = plain,
                           .rotated = keys});
    head_matmul(stream, {.x = plain,
                         .weights = expansion.queries,
                         .out = latents,
                         .heads = heads,
                         .rows = a.rows,
                         .in_features = shape.nope_dim,
                         .out_features = shape.latent_dim,
                         .head_stride = rows * static_cast<size_t>(shape.latent_dim)});
    attend(stream, shape, a, bounds, by);
    head_matmul(stream, {.x = a.out,
                         .weights = expansion.values,
                         .out = static_cast<uint16_t*>(out) + static_cast<size_t>(first) * shape.output_width(),
                         .heads = heads,
                         .rows = a.rows,
                         .in_features = shape.latent_dim,
                         .out_features = shape.value_dim,
                         .head_stride = static_cast<size_t>(shape.value_dim),
                         .row_stride = heads});
  }
}

}  // namespace millrace::cuda
