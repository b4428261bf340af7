#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "base/check.h"
#include "cpu/kv_blocks.h"
#include "cpu/ops.h"

namespace millrace::cpu {
namespace {

using tensor::Matrix;

/// Keys per split. Every row's softmax is computed split by split from key 0 and merged in order, even on one thread.
/// The result therefore does not depend on how the work is shared.
constexpr int32_t kSplitKeys = 2048;
/// Query rows of one kv head that share a pass over the keys.
constexpr int32_t kTileRows = 48;
static_assert(kTileRows <= kMaxQueryTileRows && kSplitKeys % kBlockKeys == 0);
static_assert(kTileRows % kBandRows == 0);
static_assert(kBandRows == kGroupKeys);  // bands are put together as groups of keys are
/// Query rows that share a block of latents. More tiles of them would leave the second-level cache.
constexpr int32_t kLatentUnitRows = 4 * kTileRows;
/// The maximum of the floats of states while splits run in parallel.
constexpr size_t kMaxLatentStates = size_t{1} << 26;

constexpr int32_t kMaxHeadDim = 512;

struct AttentionOp {
  Device& device;
  const Matrix& q;
  const tensor::AttentionShape& shape;
  const tensor::BatchLayout& batch;
  const CpuKvCache& cache;
  int32_t layer;
  const Matrix& out;
  int32_t group;       ///< query heads per kv head
  int32_t value_dim;   ///< channels of a head of `out`
  int32_t unit_rows;   ///< the maximum of WorkUnit::rows()
  int32_t tile_rows;   ///< rows of a head that a kernel takes at a time
  const float* sinks;  ///< [head_count], or null
  /// The tokens that rows at positions from chosen.cols on see; without columns all rows see all.
  tensor::IntMatrix chosen = {};
};

/// Virtual rows [first, first + count) of a sequence under each of some kv heads. Virtual row r is query head r % group
/// of row r / group. The unit walks splits [split_begin, split_end) of the keys. Of each block of keys it reads those
/// of all its heads, which are contiguous.
struct WorkUnit {
  size_t sequence = 0;
  int32_t first_head = 0;
  int32_t heads = 1;
  int32_t first = 0;
  int32_t count = 0;
  int32_t split_begin = 0;
  int32_t split_end = 0;
  size_t states = 0;  ///< offset of its splits' states among all units', in floats; the first state becomes the total

  /// Returns the rows of all its heads together. They are at most kTileRows, or those of a single head.
  [[nodiscard]] int32_t rows() const { return heads * count; }
  /// Returns the tiles into which a head's rows are cut.
  [[nodiscard]] int32_t tiles(int32_t tile_rows) const { return (count + tile_rows - 1) / tile_rows; }
};

/// Returns the floats of a state in whole cache lines, since other threads write the neighbouring states.
size_t state_floats(int32_t rows, int32_t value_dim) {
  return static_cast<size_t>(attention_maxima(rows) + int64_t{rows} * (16 + value_dim));
}

AttentionState state_at(float* floats, int32_t rows) {
  float* const sum = floats + attention_maxima(rows);
  return {.max = floats, .sum = sum, .acc = sum + int64_t{rows} * 16};
}

void reset(const AttentionState& state, int32_t rows, int32_t value_dim) {
  std::fill(state.max, state.max + attention_maxima(rows), -1e30f);
  std::fill(state.sum, state.sum + rows * 16, 0.0f);
  std::fill(state.acc, state.acc + rows * value_dim, 0.0f);
}

/// The scratch of one thread.
struct Workspace {
  Workspace(Scratch& scratch, const AttentionOp& op) {
    const CpuKvCache& cache = op.cache;
    const auto rows = static_cast<size_t>(op.unit_rows);
    const auto tile_scores = static_cast<size_t>(op.tile_rows) * kBlockKeys;
    const auto padded = static_cast<size_t>(cache.padded_dim());
    const size_t state = state_floats(op.unit_rows, cache.padded_value_dim());
    const size_t floats = (rows + kBandRows) * padded + rows + tile_scores + 2 * state;
    const size_t block_bytes = KvBlocks::scratch_bytes(cache);
    groups = scratch.reserve(block_bytes + floats * sizeof(float));
    auto* next = reinterpret_cast<float*>(groups + block_bytes);
    const auto take = [&next](size_t count) { return std::exchange(next, next + count); };
    q = take(rows * padded);
    band = reinterpret_cast<std::byte*>(take(kBandRows * padded));
    scores = take(tile_scores);
    partial = take(state);
    total = take(state);
    positions = reinterpret_cast<int32_t*>(take(rows));
  }
  std::byte* groups;  // of KvBlocks
  float* q;
  std::byte* band;  // [16, padded_dim], queries before they become lanes
  float* scores;
  float* partial;
  float* total;
  int32_t* positions;
};

/// Returns the tokens that a row of a sequence sees; empty: all up to its own.
std::span<const int32_t> chosen_by(const AttentionOp& op, size_t sequence, int32_t row) {
  if (op.chosen.cols == 0 || op.batch.prefix[sequence] + row < op.chosen.cols) return {};
  return {op.chosen.data + (op.batch.row_begin[sequence] + row) * op.chosen.cols, static_cast<size_t>(op.chosen.cols)};
}

/// Returns the last key that is visible to a row of a sequence. Chosen tokens are keys by their order.
int32_t last_visible_key(const AttentionOp& op, size_t sequence, int32_t row) {
  const int32_t rows = op.batch.row_begin[sequence + 1] - op.batch.row_begin[sequence];
  const int32_t last = op.batch.prefix[sequence] + (op.shape.causal ? row : rows - 1);
  return op.chosen.cols == 0 ? last : std::min(last, static_cast<int32_t>(op.chosen.cols) - 1);
}

struct Query {
  int32_t row = 0;  ///< row of the sequence
  int32_t head = 0;
};
Query query_of(const AttentionOp& op, const WorkUnit& unit, int32_t index) {
  const int32_t kv_head = unit.first_head + index / unit.count;
  const int32_t virtual_row = unit.first + index % unit.count;
  return {virtual_row / op.group, kv_head * op.group + virtual_row % op.group};
}

/// Copies a query as an LHS operand.
void load_query(const AttentionOp& op, const WorkUnit& unit, Query query, std::byte* to) {
  const int32_t padded = op.cache.padded_dim();
  const int32_t dim = op.shape.head_dim;
  const size_t element = op.device.lhs_element_bytes();
  const std::byte* from = row_of<std::byte>(op.q, op.batch.row_begin[unit.sequence] + query.row) +
                          static_cast<size_t>(query.head * dim) * tensor::size_of(op.q.dtype);
  if (op.device.compute_dtype == tensor::DType::kBF16 && !op.device.kernels.bf16_lhs) {
    op.device.kernels.widen(from, reinterpret_cast<float*>(to), dim);
  } else {
    std::memcpy(to, from, static_cast<size_t>(dim) * element);
  }
  std::memset(to + static_cast<size_t>(dim) * element, 0, static_cast<size_t>(padded - dim) * element);
}

/// Copies the unit's queries into the bands of attention_block_latents. Lanes without a query are zeros.
void load_bands(const AttentionOp& op, const WorkUnit& unit, const Workspace& space) {
  CHECK(unit.heads == 1, "bands of {} KV heads", unit.heads);
  const size_t stride = static_cast<size_t>(op.cache.padded_dim()) * 2;
  for (int32_t first = 0; first < unit.rows(); first += kBandRows) {
    const std::byte* queries[kBandRows];
    for (int32_t lane = 0; lane < kBandRows; ++lane) {
      std::byte* const to = space.band + static_cast<size_t>(lane) * stride;
      queries[lane] = to;
      if (first + lane < unit.rows()) {
        load_query(op, unit, query_of(op, unit, first + lane), to);
      } else {
        std::memset(to, 0, stride);
      }
    }
    std::byte* const band = reinterpret_cast<std::byte*>(space.q) + static_cast<size_t>(first) * stride;
    op.device.kernels.gather_keys(queries, op.cache.padded_dim() / 2, band, kBandRows * 4);
  }
}

/// Copies the unit's queries into the kernels' format, head by head.
QueryTile load_queries(const AttentionOp& op, const WorkUnit& unit, const Workspace& space) {
  const int32_t padded = op.cache.padded_dim();
  const size_t stride = static_cast<size_t>(padded) * op.device.lhs_element_bytes();
  const bool banded = KvBlocks::keeps_tokens(op.device.kernels, op.cache);
  if (banded) load_bands(op, unit, space);
  for (int32_t i = 0; i < unit.rows(); ++i) {
    const Query query = query_of(op, unit, i);
    if (!banded) load_query(op, unit, query, reinterpret_cast<std::byte*>(space.q) + static_cast<size_t>(i) * stride);
    space.positions[i] = last_visible_key(op, unit.sequence, query.row);
  }
  return {.q = reinterpret_cast<const std::byte*>(space.q),
          .position = space.positions,
          .rows = unit.rows(),
          .padded_dim = padded,
          .window = op.shape.sliding_window,
          .scale = op.shape.soft_cap > 0.0f ? op.shape.soft_cap : op.shape.scale,
          .scores = space.scores,
          .state = {},
          .value_dim = op.cache.padded_value_dim(),
          .tanh_factor = op.shape.soft_cap > 0.0f ? op.shape.scale / op.shape.soft_cap : 0.0f};
}

/// Returns a tile of the rows of the unit's `index`th head.
QueryTile rows_of_tile(const AttentionOp& op, const WorkUnit& unit, const QueryTile& all, int32_t index, int32_t tile) {
  const int64_t first = int64_t{index} * unit.count + tile * op.tile_rows;
  QueryTile rows = all;
  rows.rows = std::min(op.tile_rows, unit.count - tile * op.tile_rows);
  rows.q += static_cast<size_t>(first * rows.padded_dim) * op.device.lhs_element_bytes();
  rows.position += first;
  rows.state.max += first;
  rows.state.sum += first * 16;
  rows.state.acc += first * rows.value_dim;
  return rows;
}

int32_t first_visible_key(const AttentionOp& op, int32_t position) {
  if (op.shape.chunk_size > 0) return position / op.shape.chunk_size * op.shape.chunk_size;
  return op.shape.sliding_window > 0 ? std::max(0, position - op.shape.sliding_window + 1) : 0;
}

auto block_kernel(const AttentionOp& op) {
  const Kernels& kernels = op.device.kernels;
  if (KvBlocks::keeps_tokens(kernels, op.cache)) return kernels.attention_block_latents;
  return op.cache.dtype() == tensor::DType::kBF16 ? kernels.attention_block_bf16 : kernels.attention_block_f32;
}

/// Computes one split of the unit's rows from an empty state into rows.state.
void process_split(const AttentionOp& op, const WorkUnit& unit, const QueryTile& rows, int32_t split,
                   const Workspace& space) {
  const auto attend = block_kernel(op);
  reset(rows.state, rows.rows, rows.value_dim);
  const int32_t last = rows.position[rows.rows - 1];
  const int32_t first_visible = first_visible_key(op, rows.position[0]) / kBlockKeys * kBlockKeys;
  const int32_t begin = std::max(split * kSplitKeys, first_visible);
  const int32_t end = std::min((split + 1) * kSplitKeys, last + 1);
  if (begin >= end) return;
  const int32_t turns = (end - begin + kBlockKeys - 1) / kBlockKeys * unit.heads;
  const KvBlocks blocks(op.device.kernels, op.batch, op.cache, op.layer, space.groups);
  const std::span chosen = chosen_by(op, unit.sequence, unit.first / op.group);
  const auto position_of = [&](int32_t turn) {
    return KvBlocks::Position{.sequence = unit.sequence,
                              .head = unit.first_head + turn % unit.heads,
                              .first_key = begin + turn / unit.heads * kBlockKeys,
                              .chosen = chosen};
  };
  KvBlock next = blocks.locate(position_of(0), 0);
  const int32_t tiles = unit.tiles(op.tile_rows);
  for (int32_t turn = 0; turn < turns; ++turn) {
    KvBlock block = next;
    if (turn + 1 < turns) next = blocks.locate(position_of(turn + 1), turn + 1);
    blocks.complete(position_of(turn), next, block);
    if (turn + 2 < turns) blocks.prefetch_latents(position_of(turn + 2), block);
    for (int32_t tile = 0; tile < tiles; ++tile) {
      block.is_first = turn == 0 || tiles > 1;  // the tiles' rows may differ in number
      block.is_last = turn == turns - 1 && tile == tiles - 1;
      attend(rows_of_tile(op, unit, rows, turn % unit.heads, tile), block);
    }
  }
}

/// Returns what a sink adds to the sum of a row, whose maximum is in units of ln 2. It is infinite, and the row
/// therefore 0, where the scores are too small to count.
float sink_share(float sink, float max) {
  return static_cast<float>(std::exp2(double{sink} * std::numbers::log2e - double{max}));
}

void store_output(const AttentionOp& op, const WorkUnit& unit, const AttentionState& state) {
  const int32_t padded = op.cache.padded_value_dim();
  for (int32_t i = 0; i < unit.rows(); ++i) {
    const auto [row, head] = query_of(op, unit, i);
    if (op.sinks != nullptr) state.sum[i * 16] += sink_share(op.sinks[head], state.max[i]);
    std::byte* to = row_of<std::byte>(op.out, op.batch.row_begin[unit.sequence] + row) +
                    static_cast<size_t>(head * op.value_dim) * tensor::size_of(op.out.dtype);
    op.device.kernels.attention_output(state.acc + i * padded, state.sum + i * 16, op.value_dim,
                                       op.out.dtype == tensor::DType::kBF16, to);
  }
}

/// Returns the virtual rows of a unit that begins at `first`. Its rows are of one chunk, and see the same tokens but
/// for their positions.
int32_t unit_count(const AttentionOp& op, size_t sequence, int32_t first, int32_t virtual_rows) {
  const int32_t count = std::min(op.unit_rows, virtual_rows - first);
  if (op.chosen.cols > 0) {
    if (!chosen_by(op, sequence, first / op.group).empty()) return std::min(count, op.group - first % op.group);
    const int64_t rows_left = op.chosen.cols - op.batch.prefix[sequence];
    return static_cast<int32_t>(std::min<int64_t>(count, rows_left * op.group - first));
  }
  if (op.shape.chunk_size == 0) return count;
  const int32_t position = op.batch.prefix[sequence] + first / op.group;
  const int32_t rows_left = op.shape.chunk_size - position % op.shape.chunk_size;
  return static_cast<int32_t>(std::min<int64_t>(count, int64_t{rows_left} * op.group - first % op.group));
}

/// Divides the batch into units of at most `max_heads` kv heads.
std::vector<WorkUnit> divide(const AttentionOp& op, int32_t max_heads) {
  std::vector<WorkUnit> units;
  const int32_t kv_heads = op.shape.kv_head_count;
  for (size_t s = 0; s < op.batch.sequence_count(); ++s) {
    const int32_t virtual_rows = (op.batch.row_begin[s + 1] - op.batch.row_begin[s]) * op.group;
    if (virtual_rows == 0) continue;
    const int32_t heads = std::clamp(kTileRows / virtual_rows, 1, max_heads);
    for (int32_t head = 0; head < kv_heads; head += heads) {
      for (int32_t first = 0, count = 0; first < virtual_rows; first += count) {
        count = unit_count(op, s, first, virtual_rows);
        const int32_t last = last_visible_key(op, s, (first + count - 1) / op.group);
        const int32_t oldest = first_visible_key(op, op.batch.prefix[s] + first / op.group);
        units.push_back({.sequence = s,
                         .first_head = head,
                         .heads = std::min(heads, kv_heads - head),
                         .first = first,
                         .count = count,
                         .split_begin = oldest / kSplitKeys,
                         .split_end = last / kSplitKeys + 1});
      }
    }
  }
  return units;
}

size_t splits_of(const std::vector<WorkUnit>& units) {
  size_t splits = 0;
  for (const WorkUnit& unit : units) splits += static_cast<size_t>(unit.split_end - unit.split_begin);
  return splits;
}

/// Divides the batch into units of as many kv heads as leave each thread some splits.
std::vector<WorkUnit> divide_among(const AttentionOp& op, int threads) {
  constexpr size_t kSplitsOfThread = 4;
  const size_t enough = threads == 1 ? 0 : kSplitsOfThread * static_cast<size_t>(threads);
  int32_t heads = op.shape.kv_head_count;
  std::vector<WorkUnit> units = divide(op, heads);
  while (heads > 1 && splits_of(units) < enough) {
    heads = (heads + 1) / 2;
    units = divide(op, heads);
  }
  return units;
}

/// Runs body(item, slot) for every item, one chunk per item where possible, since the costs of items differ widely.
template <class Body>
void for_each_item(ThreadPool& pool, size_t items, const Body& body) {
  const size_t per_chunk = items / ThreadPool::kMaxChunks + 1;
  pool.run(static_cast<uint32_t>((items + per_chunk - 1) / per_chunk), [&](uint32_t chunk, int slot) {
    for (size_t i = chunk * per_chunk; i < std::min(items, (chunk + 1) * per_chunk); ++i) body(i, slot);
  });
}

/// Runs every unit on one thread, split by split.
void run_unsplit_units(const AttentionOp& op, const std::vector<WorkUnit>& units) {
  for_each_item(op.device.pool, units.size(), [&](size_t i, int slot) {
    const WorkUnit& unit = units[i];
    const Workspace space(op.device.slot_scratch[static_cast<size_t>(slot)], op);
    QueryTile rows = load_queries(op, unit, space);
    const AttentionState total = state_at(space.total, unit.rows());
    rows.state = total;
    process_split(op, unit, rows, unit.split_begin, space);
    rows.state = state_at(space.partial, unit.rows());
    for (int32_t split = unit.split_begin + 1; split < unit.split_end; ++split) {
      process_split(op, unit, rows, split, space);
      op.device.kernels.attention_merge(unit.rows(), rows.value_dim, total, rows.state);
    }
    store_output(op, unit, total);
  });
}

/// Returns the floats of the states of all splits, and sets each unit's offset among them.
size_t assign_states(const AttentionOp& op, std::vector<WorkUnit>& units) {
  size_t floats = 0;
  for (WorkUnit& unit : units) {
    unit.states = floats;
    floats +=
        static_cast<size_t>(unit.split_end - unit.split_begin) * state_floats(unit.rows(), op.cache.padded_value_dim());
  }
  return floats;
}

/// Runs few units with long contexts: their splits run in parallel and are merged in order afterwards.
void run_split_units(const AttentionOp& op, const std::vector<WorkUnit>& units, size_t floats) {
  const int32_t padded = op.cache.padded_value_dim();
  std::vector<std::pair<size_t, int32_t>> items;  // (unit, split)
  for (size_t i = 0; i < units.size(); ++i) {
    for (int32_t split = units[i].split_begin; split < units[i].split_end; ++split) items.emplace_back(i, split);
  }
  float* const states = op.device.shared_scratch.reserve_as<float>(floats);
  const auto state_of = [&](const WorkUnit& unit, int32_t split) {
    const auto index = static_cast<size_t>(split - unit.split_begin);
    return state_at(states + unit.states + index * state_floats(unit.rows(), padded), unit.rows());
  };
  for_each_item(op.device.pool, items.size(), [&](size_t i, int slot) {
    const auto [index, split] = items[i];
    const WorkUnit& unit = units[index];
    const Workspace space(op.device.slot_scratch[static_cast<size_t>(slot)], op);
    QueryTile rows = load_queries(op, unit, space);
    rows.state = state_of(unit, split);
    process_split(op, unit, rows, split, space);
  });
  for_each_item(op.device.pool, units.size(), [&](size_t i, int) {
    const WorkUnit& unit = units[i];
    const AttentionState total = state_of(unit, unit.split_begin);
    for (int32_t split = unit.split_begin + 1; split < unit.split_end; ++split) {
      op.device.kernels.attention_merge(unit.rows(), padded, total, state_of(unit, split));
    }
    store_output(op, unit, total);
  });
}

/// Runs the units on all threads. The bits do not depend on how.
void run_units(const AttentionOp& op) {
  const auto threads = static_cast<size_t>(op.device.pool.threads());
  std::vector<WorkUnit> units = divide_among(op, op.device.pool.threads());
  const size_t states = assign_states(op, units);
  const bool too_large = op.cache.has_latents() && units.size() >= threads && states > kMaxLatentStates;
  if (threads == 1 || units.size() >= 8 * threads || too_large) {
    run_unsplit_units(op, units);
  } else {
    run_split_units(op, units, states);
  }
}

void check_layer(const CpuKvCache& cache, int32_t layer, const tensor::KvCacheShape& wanted) {
  const tensor::KvCacheShape& shape = cache.shape();
  CHECK(shape.kv_head_count == wanted.kv_head_count && shape.head_dim == wanted.head_dim &&
            shape.latent_dim == wanted.latent_dim && layer >= 0 && layer < shape.layer_count,
        "layer {} is not one of this cache, or its heads differ", layer);
}

}  // namespace

void attention(Device& device, Matrix q, const tensor::AttentionShape& shape, const tensor::BatchLayout& batch,
               const CpuKvCache& cache, int32_t layer, Matrix out) {
  check_matrix("q", q, device.compute_dtype, out.rows, int64_t{shape.head_count} * shape.head_dim);
  check_matrix("out", out, device.compute_dtype, q.rows, q.cols);
  check_batch(batch, q.rows, cache);
  CHECK(shape.kv_head_count > 0 && shape.head_count % shape.kv_head_count == 0, "{} heads over {} kv heads",
        shape.head_count, shape.kv_head_count);
  check_layer(cache, layer, {.kv_head_count = shape.kv_head_count, .head_dim = shape.head_dim});
  CHECK(shape.causal || shape.sliding_window == 0, "a window of {} without causality", shape.sliding_window);
  CHECK(shape.chunk_size == 0 || (shape.chunk_size % kBlockKeys == 0 && shape.causal && shape.sliding_window == 0),
        "chunks of {} tokens, wanted a multiple of {} with causality and no window", shape.chunk_size, kBlockKeys);
  CHECK(shape.soft_cap >= 0.0f, "a soft cap of {}", shape.soft_cap);
  const CpuVector* sinks = shape.sinks == nullptr ? nullptr : &as_cpu(*shape.sinks);
  CHECK(sinks == nullptr || sinks->size() == shape.head_count, "{} sinks for {} heads", sinks->size(),
        shape.head_count);
  CHECK(cache.padded_dim() <= kMaxHeadDim, "head_dim {} is above {}", shape.head_dim, kMaxHeadDim);
  run_units({.device = device,
             .q = q,
             .shape = shape,
             .batch = batch,
             .cache = cache,
             .layer = layer,
             .out = out,
             .group = shape.head_count / shape.kv_head_count,
             .value_dim = shape.head_dim,
             .unit_rows = kTileRows,
             .tile_rows = kTileRows,
             .sinks = sinks == nullptr ? nullptr : sinks->data()});
}

void attend_to_latents(Device& device, Matrix q, const tensor::LatentShape& shape, tensor::IntMatrix chosen,
                       const tensor::BatchLayout& batch, const CpuKvCache& cache, int32_t layer, Matrix out) {
  check_matrix("q", q, device.compute_dtype, out.rows, int64_t{shape.head_count} * shape.key_dim());
  check_matrix("out", out, device.compute_dtype, q.rows, int64_t{shape.head_count} * shape.latent_dim);
  check_batch(batch, q.rows, cache);
  check_layer(cache, layer, {.kv_head_count = 1, .head_dim = shape.key_dim(), .latent_dim = shape.latent_dim});
  CHECK(cache.padded_dim() <= kMaxKeyDim, "a latent and key of {} channels are above {}", shape.key_dim(), kMaxKeyDim);
  // Tiles of AMX join tokens in pairs, which is done once for all rows of a unit.
  const bool joins_tokens = device.kernels.tiles && KvBlocks::keeps_tokens(device.kernels, cache);
  const tensor::AttentionShape heads{
      .head_count = shape.head_count, .kv_head_count = 1, .head_dim = shape.key_dim(), .scale = shape.scale};
  run_units({.device = device,
             .q = q,
             .shape = heads,
             .batch = batch,
             .cache = cache,
             .layer = layer,
             .out = out,
             .group = shape.head_count,
             .value_dim = shape.latent_dim,
             .unit_rows = kLatentUnitRows,
             .tile_rows = joins_tokens ? kLatentUnitRows : kTileRows,
             .sinks = nullptr,
             .chosen = chosen});
}

}  // namespace millrace::cpu
