#include "cuda/head_matmul.cuh"
#include "cuda/latent_narrow.cuh"
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

/// Grid: [rows, blocks of kBlockHeads heads]: scales queries by their position, rounds them to
/// bf16, head by head, and rotates their last channels.
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
  const float factor = query_factor(p.rotary, position);
  for (int32_t i = threadIdx.x; i < heads * width; i += kQueryThreads) {
    const size_t target = static_cast<size_t>(first + i / width) * p.rows + row;
    const int32_t channel = i % width - p.nope_dim;  // of the rotated ones
    if (channel < 0) {
      p.plain[target * p.nope_dim + channel + p.nope_dim] = float_to_bf16(in[i] * factor);
    } else if (channel < half) {
      const float x = in[i] * factor;
      const float y = in[i + half] * factor;
      uint16_t* const to = p.rotated + target * rope_dim + channel;
      to[0] = float_to_bf16(x * cos_table[channel] - y * sin_table[channel]);
      to[half] = float_to_bf16(y * cos_table[channel] + x * sin_table[channel]);
    }
  }
}

template <bool kCoded>
using SmallTile = LatentTile<128, 192, kCoded>;
template <bool kCoded>
using LargeTile = LatentTile<kMaxLatentDim, kMaxLatentKeyDim, kCoded>;
template <int kPairs, bool kCoded>
using SmallWideTile = WideLatentTile<2, 3, kPairs, kCoded>;
template <int kPairs, bool kCoded>
using LargeWideTile = WideLatentTile<8, 9, kPairs, kCoded>;
static_assert(SmallWideTile<16, false>::kLatent == SmallTile<false>::kLatent &&
              LargeWideTile<16, false>::kLatent == LargeTile<false>::kLatent);
/// The maximum bytes of a token of codes in a stage of either instruction.
constexpr int32_t kMaxSmallToken = SmallWideTile<16, true>::kMaxTokenBytes;
constexpr int32_t kMaxLargeToken = LargeWideTile<16, true>::kMaxTokenBytes;
static_assert(kMaxSmallToken <= SmallTile<true>::kRowBytes && kMaxLargeToken <= LargeTile<true>::kRowBytes);

bool is_small(const tensor::LatentShape& shape) {
  return shape.latent_dim <= SmallTile<false>::kLatent && shape.key_dim() <= SmallTile<false>::kKey;
}

/// Calls use(tile) for the tile of a batch. Results do not depend on the pairs of a tile.
template <bool kCoded = false, class Use>
void with_tile(const tensor::LatentShape& shape, const BatchBounds& bounds, MatrixInstruction by, const Use& use) {
  if (by == MatrixInstruction::kMma) return is_small(shape) ? use(SmallTile<kCoded>{}) : use(LargeTile<kCoded>{});
  const int64_t pairs = int64_t{bounds.sequence_rows} * shape.head_count;
  const auto choose = [&]<int kPairs>() {
    return is_small(shape) ? use(SmallWideTile<kPairs, kCoded>{}) : use(LargeWideTile<kPairs, kCoded>{});
  };
  if (pairs <= 16) return choose.template operator()<16>();
  if (pairs <= 32) return choose.template operator()<32>();
  choose.template operator()<64>();
}

/// Calls use(tile) for the tile of a batch over such a cache.
template <class Use>
void with_tile_of(const DeviceKvCache& cache, const tensor::LatentShape& shape, const BatchBounds& bounds,
                  MatrixInstruction by, const Use& use) {
  if (cache.element == KvElement::kBf16) return with_tile(shape, bounds, by, use);
  with_tile<true>(shape, bounds, by, use);
}

/// The sizes of what blocks leave for each other.
struct PartialSizes {
  PartialSizes(const tensor::LatentShape& shape, const BatchBounds& bounds, MatrixInstruction by) {
    with_tile(shape, bounds, by, [&](auto tile) {
      using Tile = decltype(tile);
      split_keys = Tile::kTileSplitKeys;
      channels = Tile::kLatent;
      if constexpr (Tile::kByWarpgroup) {
        tile_pairs = Tile::kPairs;
      } else {
        tile_pairs = kTileRows;
      }
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
  int32_t tile_pairs = 0;  ///< pairs of row and head of a block
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

/// The sizes of what blocks leave for each other where rows have chosen tokens. Few rows go split by split.
struct SparseSizes {
  SparseSizes(const tensor::LatentShape& shape, int32_t chosen_count, MatrixInstruction by) {
    const PartialSizes sizes(shape, {.sequence_rows = 1}, by);
    channels = sizes.channels;
    total_bytes = sizes.total_bytes;
    wanted_splits = ceil_div(chosen_count, sizes.split_keys);
    row_pairs = static_cast<size_t>(shape.head_count) * static_cast<size_t>(wanted_splits);
    const size_t row_bytes = partial_bytes(1);
    split_rows = kMaxSplitTiles / ceil_div(shape.head_count, sizes.tile_pairs);
    if (wanted_splits < 2) split_rows = 0;
    if (static_cast<size_t>(split_rows) * row_bytes > kMaxPartialBytes)
      split_rows = static_cast<int32_t>(kMaxPartialBytes / row_bytes);
  }
  /// Returns the splits of a row in a batch of `rows`; 0: rows walk over all their keys.
  [[nodiscard]] int32_t splits(int32_t rows) const { return rows <= split_rows ? wanted_splits : 0; }
  [[nodiscard]] size_t pairs(int32_t rows) const {
    return splits(rows) == 0 ? 0 : static_cast<size_t>(rows) * row_pairs;
  }
  /// Returns the bytes of the partial results of `rows` rows.
  [[nodiscard]] size_t partial_bytes(int32_t rows) const {
    return static_cast<size_t>(rows) * row_pairs * static_cast<size_t>(channels + 2) * sizeof(float);
  }
  static constexpr int32_t kMaxSplitTiles = 132;  ///< more make enough blocks without splits
  int32_t wanted_splits = 0;
  int32_t split_rows = 0;  ///< rows of a batch up to which they go split by split
  int32_t channels = 0;
  size_t row_pairs = 0;
  size_t total_bytes = 0;
};

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

void split_queries(cudaStream_t stream, const QueryParams& p) {
  launch<split_queries_kernel>({.name = "latent queries",
                                .grid = dim3(p.rows, ceil_div(p.head_count, kBlockHeads)),
                                .block = dim3(kQueryThreads),
                                .shared_bytes = static_cast<size_t>(p.rotary.rotary_dim) * sizeof(float)},
                               stream, p);
}

void check_shape(const tensor::LatentShape& shape, const DeviceKvCache& cache) {
  if (shape.latent_dim > kMaxLatentDim || shape.key_dim() > kMaxLatentKeyDim)
    throw std::invalid_argument("latent attention: found latents of " + std::to_string(shape.latent_dim) +
                                " and keys of " + std::to_string(shape.key_dim()) + " values, wanted at most " +
                                std::to_string(kMaxLatentDim) + " and " + std::to_string(kMaxLatentKeyDim));
  // Codes exceed values only where a latent is a small part of its key.
  const int32_t room = is_small(shape) ? kMaxSmallToken : kMaxLargeToken;
  if (cache.element != KvElement::kBf16 && latent_token_bytes(cache) > room)
    throw std::invalid_argument("latent attention: found " + std::to_string(latent_token_bytes(cache)) +
                                " bytes per latent in codes, wanted at most " + std::to_string(room));
}

/// The arguments of either op.
struct LatentOperands {
  const float* q = nullptr;
  const tensor::LatentShape& shape;
  const DeviceRotary& rotary;
  const DeviceExpansion& expansion;
  void* out = nullptr;
};

/// Computes an op slice by slice of the rows: attend(params) computes the results in the space of latents. `slices` is
/// memory for max_rows rows.
template <class Attend>
void for_slices(cudaStream_t stream, const LatentOperands& o, LatentParams a, int32_t batch_rows, std::byte* slices,
                int32_t max_rows, const Attend& attend) {
  const SliceLayout layout(o.shape);
  const int32_t heads = o.shape.head_count;
  for (int32_t first = 0; first < batch_rows; first += max_rows) {
    a.first_row = first;
    a.rows = batch_rows - first < max_rows ? batch_rows - first : max_rows;
    const auto rows = static_cast<size_t>(a.rows);
    auto* const latents = reinterpret_cast<uint16_t*>(slices);
    auto* const keys = reinterpret_cast<uint16_t*>(aligned(slices + rows * layout.latents * sizeof(uint16_t)));
    a.latents = latents;
    a.keys = keys;
    a.out = reinterpret_cast<uint16_t*>(
        aligned(reinterpret_cast<std::byte*>(keys) + rows * layout.keys * sizeof(uint16_t)));
    uint16_t* const plain = a.out;
    split_queries(stream, {.q = o.q + static_cast<size_t>(first) * o.shape.query_width(),
                           .head_count = heads,
                           .nope_dim = o.shape.nope_dim,
                           .rotary = o.rotary,
                           .batch = a.batch,
                           .first_row = first,
                           .rows = a.rows,
                           .plain = plain,
                           .rotated = keys});
    head_matmul(stream, {.x = plain,
                         .weights = o.expansion.queries,
                         .out = latents,
                         .heads = heads,
                         .rows = a.rows,
                         .in_features = o.shape.nope_dim,
                         .out_features = o.shape.latent_dim,
                         .head_stride = rows * static_cast<size_t>(o.shape.latent_dim)});
    attend(a);
    head_matmul(stream, {.x = a.out,
                         .weights = o.expansion.values,
                         .out = static_cast<uint16_t*>(o.out) + static_cast<size_t>(first) * o.shape.output_width(),
                         .heads = heads,
                         .rows = a.rows,
                         .in_features = o.shape.latent_dim,
                         .out_features = o.shape.value_dim,
                         .head_stride = static_cast<size_t>(o.shape.value_dim),
                         .row_stride = heads});
  }
}

/// Returns the rows of a slice for which the scratch after `partial` bytes suffices.
int32_t slice_rows_within(const SliceLayout& layout, size_t workspace_bytes, size_t partial, int32_t rows) {
  const int32_t found = layout.rows_within(workspace_bytes < partial ? 0 : workspace_bytes - partial, rows);
  if (found >= 1 || rows == 0) return found;
  throw std::invalid_argument("latent attention: found " + std::to_string(workspace_bytes) +
                              " bytes of scratch, wanted at least " + std::to_string(layout.bytes(1) + partial));
}

LatentParams params_of(const tensor::LatentShape& shape, const DeviceBatch& batch, const DeviceKvCache& cache,
                       int32_t layer, void* workspace) {
  return {.head_count = shape.head_count,
          .latent_dim = shape.latent_dim,
          .rope_dim = shape.rope_dim,
          .scale_log2 = shape.scale * kLog2E,
          .batch = batch,
          .cache = cache,
          .layer = layer,
          .totals = static_cast<float*>(workspace)};
}

/// Gives partial results their memory, and returns what follows it.
std::byte* put_partials(LatentParams& a, size_t total_bytes, size_t pairs, int32_t channels) {
  a.partial_acc = a.totals + total_bytes / sizeof(float);
  a.partial_sums = reinterpret_cast<float2*>(a.partial_acc + pairs * static_cast<size_t>(channels));
  return aligned(reinterpret_cast<std::byte*>(a.partial_sums + pairs));
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

size_t sparse_latent_attention_workspace_bytes(const tensor::LatentShape& shape, int32_t chosen_count,
                                               const BatchBounds& bounds, MatrixInstruction by) {
  const SliceLayout layout(shape);
  const SparseSizes sizes(shape, chosen_count, by);
  const int32_t rows = layout.rows_within(kMaxSliceBytes, bounds.rows);
  // Smaller batches may go split by split where this one does not.
  const int32_t split_rows = bounds.rows < sizes.split_rows ? bounds.rows : sizes.split_rows;
  return layout.bytes(rows < 1 ? 1 : rows) + sizes.total_bytes + sizes.partial_bytes(split_rows);
}

size_t latent_attention_shared_bytes(const tensor::LatentShape& shape) {
  return is_small(shape) ? SmallTile<false>::kSharedBytes : LargeTile<false>::kSharedBytes;
}

void latent_attention(cudaStream_t stream, const float* q, const tensor::LatentShape& shape, const DeviceRotary& rotary,
                      const DeviceExpansion& expansion, const DeviceBatch& batch, const BatchBounds& bounds,
                      const DeviceKvCache& cache, int32_t layer, MatrixInstruction by, void* out, void* workspace,
                      size_t workspace_bytes) {
  check_shape(shape, cache);
  const PartialSizes sizes(shape, bounds, by);
  LatentParams params = params_of(shape, batch, cache, layer, workspace);
  params.split_rows = split_rows_of(sizes, bounds);
  params.split_keys = sizes.split_keys;
  std::byte* const slices = put_partials(params, sizes.total_bytes, sizes.pairs(params.split_rows), sizes.channels);
  const int32_t max_rows = slice_rows_within(SliceLayout(shape), workspace_bytes,
                                             sizes.total_bytes + sizes.bytes(params.split_rows), bounds.rows);
  for_slices(stream, {q, shape, rotary, expansion, out}, params, bounds.rows, slices, max_rows,
             [&](const LatentParams& a) {
               with_tile_of(cache, shape, bounds, by, [&](auto tile) {
                 using Tile = decltype(tile);
                 if constexpr (Tile::kByWarpgroup) {
                   launch_wide_attention<Tile>(stream, a, bounds);
                 } else {
                   launch_attention<Tile>(stream, a, bounds);
                 }
               });
             });
}

void sparse_latent_attention(cudaStream_t stream, const float* q, const tensor::LatentShape& shape,
                             const DeviceRotary& rotary, const DeviceExpansion& expansion, const int32_t* chosen,
                             int32_t chosen_count, const DeviceBatch& batch, const BatchBounds& bounds,
                             const DeviceKvCache& cache, int32_t layer, MatrixInstruction by, void* out,
                             void* workspace, size_t workspace_bytes) {
  check_shape(shape, cache);
  const SparseSizes sizes(shape, chosen_count, by);
  LatentParams params = params_of(shape, batch, cache, layer, workspace);
  params.split_rows = 1;  // partial results of rows are counted row by row
  std::byte* const slices = put_partials(params, sizes.total_bytes, sizes.pairs(bounds.rows), sizes.channels);
  const size_t partial = sizes.splits(bounds.rows) == 0 ? 0 : sizes.partial_bytes(bounds.rows);
  const int32_t max_rows =
      slice_rows_within(SliceLayout(shape), workspace_bytes, sizes.total_bytes + partial, bounds.rows);
  const SparseRows sparse{.chosen = chosen, .count = chosen_count, .splits = sizes.splits(bounds.rows)};
  for_slices(stream, {q, shape, rotary, expansion, out}, params, bounds.rows, slices, max_rows,
             [&](const LatentParams& a) {
               with_tile_of(cache, shape, {.sequence_rows = 1}, by, [&](auto tile) {
                 using Tile = decltype(tile);
                 if constexpr (Tile::kByWarpgroup) {
                   launch_sparse_wide_attention<Tile>(stream, a, sparse);
                 } else {
                   launch_sparse_attention<Tile>(stream, a, sparse);
                 }
               });
             });
}

}  // namespace millrace::cuda
