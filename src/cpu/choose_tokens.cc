#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "cpu/ops.h"
#include "cpu/packed_lhs.h"
#include "cpu/rotary_angles.h"

namespace millrace::cpu {
namespace {

using tensor::BatchLayout;
using tensor::DType;
using tensor::IndexerShape;
using tensor::Matrix;

/// The bytes of scores up to which rows are computed together.
constexpr int64_t kMaxScoreBytes = int64_t{1} << 26;
/// Query rows, one per head, of one GEMM: they and their scores fit the second-level cache.
constexpr int32_t kTileQueries = 256;
/// Query rows that share a block of keys once it is gathered.
constexpr int32_t kUnitQueries = 2048;
/// Keys of a unit that one thread scores at a time.
constexpr int32_t kScoredKeys = 1024;
constexpr int32_t kMaxHeads = 256;
constexpr int32_t kMaxDim = 512;

/// A row that chooses.
struct ChoosingRow {
  size_t sequence = 0;
  int64_t row = 0;  ///< of the batch
  int32_t position = 0;
};

/// Rows [first, first + count) of a slice of choosing rows, all of one sequence.
struct RowRun {
  int32_t first = 0;
  int32_t count = 0;
};

/// A unit's keys [begin, end).
struct ScoreItem {
  size_t unit = 0;
  int32_t begin = 0;
  int32_t end = 0;
};

std::vector<ChoosingRow> choosing_rows(const BatchLayout& batch, int32_t chosen_count) {
  std::vector<ChoosingRow> rows;
  for (size_t s = 0; s < batch.sequence_count(); ++s) {
    for (int32_t row = batch.row_begin[s]; row < batch.row_begin[s + 1]; ++row) {
      const int32_t position = batch.prefix[s] + row - batch.row_begin[s];
      if (position >= chosen_count) rows.push_back({.sequence = s, .row = row, .position = position});
    }
  }
  return rows;
}

/// The op for a slice of the rows that choose. A unit of rows passes over the keys of its sequence in blocks of 64. A
/// block becomes a panel, by which the queries of all heads are multiplied tile by tile.
class Scorer {
 public:
  Scorer(Device& device, const IndexerShape& shape, const BatchLayout& batch, const CpuKvCache& cache, int32_t layer,
         std::span<const ChoosingRow> rows)
      : device_(device),
        shape_(shape),
        batch_(batch),
        cache_(cache),
        layer_(layer),
        rows_(rows),
        layout_(panel_layout(device, whole_panel_shard(shape.head_dim), false)),
        packer_(device, layout_, shape.head_dim),
        tile_rows_(std::max(1, kTileQueries / shape.head_count)),
        tile_bytes_(packer_.bytes(int64_t{tile_rows_} * shape.head_count)) {
    int32_t longest = 0;
    for (const ChoosingRow& row : rows) longest = std::max(longest, row.position + 1);
    stride_ = static_cast<size_t>(round_up(longest, kBlockKeys));
    scores_ = device.shared_scratch.reserve_as<float>(rows.size() * (stride_ + heads()));
    weights_ = scores_ + rows.size() * stride_;
    divide();
    lhs_ = device.latent_lhs.reserve(tiles_.size() * tile_bytes_);
    CHECK(static_cast<size_t>(layout_.steps) * sizeof(float) <=
              static_cast<size_t>(cache.padded_index_dim()) * tensor::size_of(cache.dtype()),
          "panels of {} steps for keys of {} channels", layout_.steps, cache.padded_index_dim());
  }

  /// Computes the scores of the rows and writes the positions that they choose.
  void run(const Matrix& q, const Matrix& weights, const RotaryAngles& angles, tensor::IntMatrix chosen) {
    pack(q, weights, angles);
    std::vector<ScoreItem> items;
    for (size_t i = 0; i < units_.size(); ++i) {
      const int32_t end = last_position(units_[i]) + 1;
      for (int32_t begin = 0; begin < end; begin += kScoredKeys)
        items.push_back({.unit = i, .begin = begin, .end = std::min(end, begin + kScoredKeys)});
    }
    device_.pool.run_ranges(std::ssize(items), [&](int64_t begin, int64_t end, int slot) {
      for (int64_t i = begin; i < end; ++i) score(items[static_cast<size_t>(i)], slot);
    });
    device_.pool.run_ranges(std::ssize(rows_), [&](int64_t begin, int64_t end, int slot) {
      for (int64_t i = begin; i < end; ++i) {
        const ChoosingRow& row = rows_[static_cast<size_t>(i)];
        device_.token_choices[static_cast<size_t>(slot)].choose(
            device_.kernels, {scores_of(static_cast<size_t>(i)), static_cast<size_t>(row.position) + 1},
            {chosen.data + row.row * chosen.cols, static_cast<size_t>(chosen.cols)});
      }
    });
  }

 private:
  [[nodiscard]] size_t heads() const { return static_cast<size_t>(shape_.head_count); }
  [[nodiscard]] float* scores_of(size_t index) const { return scores_ + index * stride_; }
  [[nodiscard]] int32_t last_position(RowRun run) const {
    return rows_[static_cast<size_t>(run.first + run.count - 1)].position;
  }

  /// Divides the rows into tiles, and tiles into units. Neither crosses a sequence.
  void divide() {
    const int32_t unit_tiles = std::max(1, kUnitQueries / shape_.head_count / tile_rows_);
    const auto count = static_cast<int32_t>(rows_.size());
    for (int32_t first = 0; first < count;) {
      int32_t end = first + 1;
      const size_t sequence = rows_[static_cast<size_t>(first)].sequence;
      while (end < count && end - first < tile_rows_ && rows_[static_cast<size_t>(end)].sequence == sequence) ++end;
      const bool joins = !units_.empty() && std::ssize(tiles_) - unit_tiles_.back() < unit_tiles &&
                         rows_[static_cast<size_t>(units_.back().first)].sequence == sequence;
      if (joins) {
        units_.back().count += end - first;
      } else {
        units_.push_back({.first = first, .count = end - first});
        unit_tiles_.push_back(static_cast<int32_t>(tiles_.size()));
      }
      tiles_.push_back({.first = first, .count = end - first});
      first = end;
    }
    unit_tiles_.push_back(static_cast<int32_t>(tiles_.size()));
  }

  [[nodiscard]] LhsBuffer operand(size_t tile) const {
    return {lhs_ + tile * tile_bytes_, int64_t{tiles_[tile].count} * shape_.head_count};
  }

  /// Rotates and packs the queries, and scales the weights.
  void pack(const Matrix& q, const Matrix& weights, const RotaryAngles& angles) {
    const int32_t half = shape_.rope_dim / 2;
    const auto factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape_.head_count) * shape_.head_dim));
    const auto dim = static_cast<size_t>(shape_.head_dim);
    const size_t wide_bytes = static_cast<size_t>(round_up(shape_.head_dim, kPanelColumns)) * sizeof(float);
    device_.for_rows(std::ssize(tiles_), [&](int64_t begin, int64_t end, int slot) {
      std::byte* const encoded =
          device_.slot_scratch[static_cast<size_t>(slot)].reserve(2 * wide_bytes + packer_.row_bytes());
      auto* const rotated = reinterpret_cast<float*>(encoded + packer_.row_bytes());
      std::byte* const narrow = encoded + packer_.row_bytes() + wide_bytes;
      for (auto tile = static_cast<size_t>(begin); tile < static_cast<size_t>(end); ++tile) {
        for (int32_t i = 0; i < tiles_[tile].count; ++i) {
          const auto index = static_cast<size_t>(tiles_[tile].first + i);
          const int64_t row = rows_[index].row;
          const auto* from = row_of<float>(q, row);
          for (int32_t head = 0; head < shape_.head_count; ++head, from += dim) {
            std::memcpy(rotated, from, dim * sizeof(float));
            device_.kernels.rotate(rotated, angles.cos.data() + row * half, angles.sin.data() + row * half, half);
            device_.store_row(rotated, narrow, device_.compute_dtype, shape_.head_dim);
            const Matrix values{.data = narrow, .dtype = device_.compute_dtype, .rows = 1, .cols = shape_.head_dim};
            packer_.encode_row(values, 0, nullptr, encoded);
            packer_.put_row(encoded, operand(tile), int64_t{i} * shape_.head_count + head);
          }
          const auto* const own = row_of<float>(weights, row);
          for (size_t head = 0; head < heads(); ++head) weights_[index * heads() + head] = own[head] * factor;
        }
      }
    });
  }

  /// Builds the panel of the keys [first_key, first_key + 64); keys that do not exist are zeros.
  void gather(size_t sequence, int32_t first_key, std::byte* panel) const {
    alignas(64) static constexpr std::byte kNoKey[kMaxDim * sizeof(float)] = {};
    const int32_t page_size = cache_.shape().page_size;
    const PageId* const pages = batch_.pages.data() + batch_.page_begin[sequence];
    const int32_t count = batch_.prefix[sequence] + batch_.row_begin[sequence + 1] - batch_.row_begin[sequence];
    const auto steps = static_cast<int>(layout_.steps);
    for (int32_t g = 0; g < kBlockGroups; ++g) {
      const std::byte* keys[kGroupKeys];
      for (int32_t lane = 0; lane < kGroupKeys; ++lane) {
        const int32_t at = first_key + g * kGroupKeys + lane;
        keys[lane] = at < count ? cache_.index_key_at(pages[at / page_size], layer_, at % page_size) : kNoKey;
      }
      if (!device_.tiles()) {
        device_.kernels.gather_keys(keys, steps, panel + g * kGroupKeys * 4, kPanelColumns * 4);
        continue;
      }
      for (int step = 0; step < steps; step += kTileHeight) {
        device_.kernels.gather_keys(keys, kTileHeight, panel + panel_tile_offset(step, g * kGroupKeys) * 4,
                                    kGroupKeys * 4);
        for (const std::byte*& key : keys) key += kTileHeight * 4;
      }
    }
  }

  /// Computes the scores of a unit's rows for some keys. A row's scores of keys after it have no use.
  void score(const ScoreItem& item, int slot) const {
    const auto multiply = device_.compute_dtype == DType::kBF16 ? device_.kernels.gemm_bf16 : device_.kernels.gemm_f32;
    const size_t panel_bytes = static_cast<size_t>(layout_.steps) * kPanelColumns * 4;
    const size_t products = static_cast<size_t>(tile_rows_) * heads() * kPanelColumns;
    std::byte* const panel =
        device_.slot_scratch[static_cast<size_t>(slot)].reserve(panel_bytes + products * sizeof(float));
    auto* const c = reinterpret_cast<float*>(panel + panel_bytes);
    const size_t sequence = rows_[static_cast<size_t>(units_[item.unit].first)].sequence;
    for (int32_t first_key = item.begin; first_key < item.end; first_key += kBlockKeys) {
      gather(sequence, first_key, panel);
      const auto end = static_cast<size_t>(unit_tiles_[item.unit + 1]);
      for (auto tile = static_cast<size_t>(unit_tiles_[item.unit]); tile < end; ++tile) {
        const RowRun& rows = tiles_[tile];
        if (last_position(rows) < first_key) continue;
        const PackedLhs lhs = packer_.view(operand(tile));
        multiply({.lhs = lhs.data,
                  .lhs_stride = lhs.stride,
                  .tiled_lhs = lhs.tiled(),
                  .panel = panel,
                  .steps = layout_.steps,
                  .rows = rows.count * shape_.head_count,
                  .c = c});
        for (int32_t i = 0; i < rows.count; ++i) {
          const auto index = static_cast<size_t>(rows.first + i);
          device_.kernels.weigh_scores(c + static_cast<size_t>(i) * heads() * kPanelColumns, weights_ + index * heads(),
                                       shape_.head_count, scores_of(index) + first_key);
        }
      }
    }
  }

  Device& device_;
  const IndexerShape& shape_;
  const BatchLayout& batch_;
  const CpuKvCache& cache_;
  int32_t layer_;
  std::span<const ChoosingRow> rows_;
  const PanelLayout layout_;
  const LhsPacker packer_;
  const int32_t tile_rows_;
  const size_t tile_bytes_;
  size_t stride_ = 0;                // floats of a row of scores
  float* scores_ = nullptr;          // [rows, stride_]
  float* weights_ = nullptr;         // [rows, heads]
  std::byte* lhs_ = nullptr;         // [tiles] operands
  std::vector<RowRun> tiles_;        // one GEMM each
  std::vector<RowRun> units_;        // some tiles each
  std::vector<int32_t> unit_tiles_;  // [units + 1], each unit's first tile
};

}  // namespace

void choose_tokens(Device& device, Matrix q, Matrix weights, const IndexerShape& shape,
                   const tensor::RotaryTable& rotary, const BatchLayout& batch, const CpuKvCache& cache, int32_t layer,
                   tensor::IntMatrix chosen) {
  check_matrix("q", q, DType::kF32, q.rows, shape.query_width());
  check_matrix("weights", weights, DType::kF32, q.rows, shape.head_count);
  check_batch(batch, q.rows, cache);
  CHECK(chosen.rows == q.rows && chosen.cols == shape.chosen_count, "chosen tokens [{}, {}], wanted [{}, {}]",
        chosen.rows, chosen.cols, q.rows, shape.chosen_count);
  CHECK(shape.head_count > 0 && shape.head_count <= kMaxHeads && shape.head_dim <= kMaxDim,
        "an indexer of {} heads of {}, wanted at most {} of {}", shape.head_count, shape.head_dim, kMaxHeads, kMaxDim);
  CHECK(rotary.rotary_dim == shape.rope_dim, "{} rotary channels, wanted {}", rotary.rotary_dim, shape.rope_dim);
  CHECK(cache.shape().index_dim == shape.head_dim && layer >= 0 && layer < cache.shape().layer_count,
        "layer {} is not one of this cache, or its indexer's keys differ", layer);
  const std::vector<ChoosingRow> rows = choosing_rows(batch, shape.chosen_count);
  const RotaryAngles& angles = angles_for(device, rotary, positions_of(batch));
  for (size_t begin = 0; begin < rows.size();) {
    size_t end = begin;
    int64_t longest = 0;
    while (end < rows.size()) {
      longest = std::max<int64_t>(longest, rows[end].position + 1);
      if (end > begin && (static_cast<int64_t>(end - begin) + 1) * longest > kMaxScoreBytes / 4) break;
      ++end;
    }
    Scorer(device, shape, batch, cache, layer, std::span(rows).subspan(begin, end - begin))
        .run(q, weights, angles, chosen);
    begin = end;
  }
}

}  // namespace millrace::cpu
