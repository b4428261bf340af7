#include "cuda/index_scores.cuh"
#include "cuda/token_choice.cuh"

namespace millrace::cuda {
namespace {

/// Bytes of scratch beyond which rows are computed in slices.
constexpr size_t kMaxChoiceBytes = size_t{256} << 20;
/// Items of a part of a row: they stay in the caches while a block passes over them.
constexpr int32_t kMinPart = 1 << 14;
/// What a part has at least, in multiples of what it gives.
constexpr int64_t kPartFactor = 8;
static_assert(kPartFactor % kChoiceItems == 0);
constexpr size_t kSliceAlignment = 256;

using SmallIndexTile = IndexTile<128, 2>;
using LargeIndexTile = IndexTile<kMaxIndexDim, 1>;

/// Calls use(tile) for the tile of an indexer.
template <class Use>
void with_index_tile(const tensor::IndexerShape& shape, const Use& use) {
  if (shape.head_dim <= SmallIndexTile::kDim) return use(SmallIndexTile{});
  use(LargeIndexTile{});
}

/// The parts of the workspace that a row uses: queries, scores, and two lists of items with scores.
struct ChoiceLayout {
  ChoiceLayout(const tensor::IndexerShape& shape, const BatchBounds& bounds) {
    with_index_tile(shape, [&](auto tile) {
      using Tile = decltype(tile);
      padded_dim = Tile::kDim;
      stride = round_up(bounds.context, Tile::kKeys);
    });
    const int64_t wanted = kPartFactor * shape.chosen_count;
    part = wanted < kMinPart ? kMinPart : wanted < stride ? static_cast<int32_t>(wanted) : stride;
    for (int32_t items = stride; items > part; ++levels) {
      items = ceil_div(items, part) * shape.chosen_count;
      if (levels <= 2) list_strides[levels - 1] = round_up(items, kChoiceItems);
    }
    queries = static_cast<size_t>(shape.head_count) * static_cast<size_t>(padded_dim);
  }
  /// Returns the bytes of a number of rows, with each part aligned.
  [[nodiscard]] size_t bytes(int32_t rows) const {
    return static_cast<size_t>(rows) * row_bytes() + kParts * kSliceAlignment;
  }
  /// Returns the rows for which `bytes` suffice, up to `most`.
  [[nodiscard]] int32_t rows_within(size_t bytes, int32_t most) const {
    const size_t rows = bytes < kParts * kSliceAlignment ? 0 : (bytes - kParts * kSliceAlignment) / row_bytes();
    return rows < static_cast<size_t>(most) ? static_cast<int32_t>(rows) : most;
  }
  static constexpr size_t kParts = 6;
  int32_t padded_dim = 0;
  int32_t stride = 0;            ///< scores
  int32_t part = 0;              ///< items per block
  int32_t levels = 1;            ///< launches that choose
  int32_t list_strides[2] = {};  ///< items of what the first and second launch leave for the next
  size_t queries = 0;            ///< elements

 private:
  [[nodiscard]] size_t row_bytes() const {
    return queries * sizeof(uint16_t) + static_cast<size_t>(stride) * sizeof(float) +
           (static_cast<size_t>(list_strides[0]) + static_cast<size_t>(list_strides[1])) *
               (sizeof(float) + sizeof(int32_t));
  }
};

/// A list of items with scores for the rows of a slice.
struct ItemList {
  float* scores = nullptr;
  int32_t* ids = nullptr;
  int32_t stride = 0;
};

/// Takes aligned parts of the workspace, one after the other.
class Parts {
 public:
  explicit Parts(void* from) : at_(static_cast<std::byte*>(from)) {}
  template <class T>
  [[nodiscard]] T* take(size_t count) {
    auto* const found = reinterpret_cast<T*>(at_);
    at_ += (count * sizeof(T) + kSliceAlignment - 1) / kSliceAlignment * kSliceAlignment;
    return found;
  }

 private:
  std::byte* at_;
};

/// Chooses level by level from the scores of a slice.
void choose_from(cudaStream_t stream, const ChoiceLayout& layout, ChoiceParams p, const ItemList (&lists)[2],
                 int32_t rows, int32_t context, int32_t* chosen) {
  for (int32_t level = 0; level < layout.levels; ++level) {
    const bool is_last = level + 1 == layout.levels;
    const ItemList& to = lists[level % 2];
    p.level = level;
    p.out_scores = is_last ? nullptr : to.scores;
    p.out_ids = is_last ? chosen : to.ids;
    p.out_stride = is_last ? p.chosen_count : to.stride;
    launch<choose_part_kernel>(
        {.name = "choose_tokens",
         .grid = dim3(rows, ceil_div(items_at(context, level, layout.part, p.chosen_count), layout.part)),
         .block = dim3(kChoiceThreads),
         .shared_bytes = sizeof(ChoiceShared)},
        stream, p);
    p.scores = to.scores;
    p.ids = to.ids;
    p.stride = to.stride;
  }
}

void check_indexer(const tensor::IndexerShape& shape) {
  if (shape.head_dim <= kMaxIndexDim) return;
  throw std::invalid_argument("choose_tokens: found an indexer of " + std::to_string(shape.head_dim) +
                              " channels, wanted at most " + std::to_string(kMaxIndexDim));
}

}  // namespace

size_t choose_tokens_workspace_bytes(const tensor::IndexerShape& shape, const BatchBounds& bounds) {
  const ChoiceLayout layout(shape, bounds);
  const size_t one = layout.bytes(1);
  const size_t most = one > kMaxChoiceBytes ? one : kMaxChoiceBytes;
  return layout.rows_within(most, bounds.rows) < bounds.rows ? most : layout.bytes(bounds.rows);
}

void choose_tokens(cudaStream_t stream, const float* q, const float* weights, const tensor::IndexerShape& shape,
                   const DeviceRotary& rotary, const DeviceBatch& batch, const BatchBounds& bounds,
                   const DeviceKvCache& cache, int32_t layer, int32_t* chosen, void* workspace,
                   size_t workspace_bytes) {
  check_indexer(shape);
  if (bounds.context <= shape.chosen_count) return;
  const ChoiceLayout layout(shape, bounds);
  const int32_t max_rows = layout.rows_within(workspace_bytes, bounds.rows);
  if (max_rows < 1 && bounds.rows > 0) {
    throw std::invalid_argument("choose_tokens: found " + std::to_string(workspace_bytes) +
                                " bytes of scratch, wanted at least " + std::to_string(layout.bytes(1)));
  }
  for (int32_t first = 0; first < bounds.rows; first += max_rows) {
    const int32_t rows = bounds.rows - first < max_rows ? bounds.rows - first : max_rows;
    const auto count = static_cast<size_t>(rows);
    Parts parts(workspace);
    auto* const queries = parts.take<uint16_t>(count * layout.queries);
    auto* const scores = parts.take<float>(count * static_cast<size_t>(layout.stride));
    ItemList lists[2];
    for (int i = 0; i < 2; ++i) {
      const size_t items = count * static_cast<size_t>(layout.list_strides[i]);
      lists[i].stride = layout.list_strides[i];
      lists[i].scores = parts.take<float>(items);
      lists[i].ids = parts.take<int32_t>(items);
    }
    launch<index_query_kernel>({.name = "index queries",
                                .grid = dim3(rows, ceil_div(shape.head_count, kIndexQueryHeads)),
                                .block = dim3(kIndexQueryThreads),
                                .shared_bytes = static_cast<size_t>(rotary.rotary_dim) * sizeof(float)},
                               stream,
                               IndexQueryParams{.q = q,
                                                .head_count = shape.head_count,
                                                .dim = shape.head_dim,
                                                .padded_dim = layout.padded_dim,
                                                .chosen_count = shape.chosen_count,
                                                .rotary = rotary,
                                                .batch = batch,
                                                .first_row = first,
                                                .out = queries});
    with_index_tile(shape, [&](auto tile) {
      using Tile = decltype(tile);
      launch<index_score_kernel<Tile>>({.name = "index scores",
                                        .grid = dim3(layout.stride / Tile::kKeys, rows / kGroupRows + bounds.sequences),
                                        .block = dim3(kScoreThreads),
                                        .shared_bytes = Tile::kSharedBytes},
                                       stream,
                                       ScoreParams{.queries = queries,
                                                   .weights = weights,
                                                   .scores = scores,
                                                   .stride = layout.stride,
                                                   .head_count = shape.head_count,
                                                   .chosen_count = shape.chosen_count,
                                                   .first_row = first,
                                                   .rows = rows,
                                                   .batch = batch,
                                                   .cache = cache,
                                                   .layer = layer});
    });
    choose_from(stream, layout,
                {.scores = scores,
                 .stride = layout.stride,
                 .part = layout.part,
                 .chosen_count = shape.chosen_count,
                 .first_row = first,
                 .batch = batch},
                lists, rows, layout.stride, chosen + static_cast<size_t>(first) * shape.chosen_count);
  }
}

}  // namespace millrace::cuda
