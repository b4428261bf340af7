#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "cpu/blocked_gemm.h"
#include "cpu/ops.h"
#include "cpu/rotary_angles.h"

namespace millrace::cpu {
namespace {

using tensor::BatchLayout;
using tensor::DType;
using tensor::LatentShape;
using tensor::Matrix;

/// The bytes of queries and results in the space of latents up to which rows are computed together.
constexpr int64_t kMaxLatentBytes = int64_t{1} << 26;

/// Rows [begin, end) of a batch. Every sequence stays in it, most of them without rows.
class RowSlice {
 public:
  RowSlice(const BatchLayout& batch, int32_t begin, int32_t end) : whole_(batch) {
    for (size_t s = 0; s < batch.sequence_count(); ++s) {
      const int32_t skipped = std::clamp(begin, batch.row_begin[s], batch.row_begin[s + 1]) - batch.row_begin[s];
      prefix_.push_back(batch.prefix[s] + skipped);
      row_begin_.push_back(std::clamp(batch.row_begin[s + 1], begin, end) - begin);
    }
  }
  [[nodiscard]] BatchLayout view() const {
    return {.row_begin = row_begin_, .prefix = prefix_, .page_begin = whole_.page_begin, .pages = whole_.pages};
  }

 private:
  const BatchLayout& whole_;
  std::vector<int32_t> row_begin_ = {0};
  std::vector<int32_t> prefix_;
};

/// Returns rows [begin, end) of a matrix.
Matrix rows_of(Matrix matrix, int64_t begin, int64_t end) {
  matrix.data += static_cast<size_t>(begin * matrix.cols) * tensor::size_of(matrix.dtype);
  matrix.rows = end - begin;
  return matrix;
}

/// Multiplies each head's part of some rows by that head's matrix: out_h = x_h · W_hᵀ. Groups of a head's features may
/// have operands of their own; each takes as many panels of the matrix. The heads' blocks share a parallel region.
class HeadMatmul {
 public:
  /// `features` are those of a head, without the zeros after each group.
  HeadMatmul(Device& device, const std::vector<std::unique_ptr<CpuPackedWeight>>& weights, int64_t groups,
             int64_t features, int64_t rows)
      : device_(device),
        weights_(weights),
        packer_(device, weights.front()->layout(), weights.front()->in_features()),
        groups_(groups),
        group_features_(features / groups),
        rows_(rows),
        lhs_(device.latent_lhs.reserve(weights.size() * static_cast<size_t>(groups) * packer_.bytes(rows))) {}

  /// Returns the scratch that put_row() takes, a multiple of 64.
  [[nodiscard]] size_t scratch_bytes() const {
    return encoded_bytes() +
           static_cast<size_t>(round_up(weights_.front()->in_features(), 64 / sizeof(float))) * sizeof(float);
  }

  /// Packs a row of the LHS of a head and a group, in the compute dtype.
  void put_row(const std::byte* values, int64_t head, int64_t group, int64_t row, std::byte* scratch) const {
    const Matrix x{.data = const_cast<std::byte*>(values),
                   .dtype = device_.compute_dtype,
                   .rows = 1,
                   .cols = weights_.front()->in_features()};
    packer_.encode_row(x, 0, reinterpret_cast<float*>(scratch + encoded_bytes()), scratch);
    packer_.put_row(scratch, operand(head, group), row);
  }

  /// Stores the results in columns [head · stride, …) of `out` (compute).
  void run(const Matrix& out, int64_t stride) const {
    const BlockedGemm first = product(0, 0);
    const int64_t blocks = first.block_count();
    const int64_t group_blocks = first.panel_blocks() / groups_;
    CHECK(group_blocks * groups_ == first.panel_blocks(), "{} blocks of panels for {} groups of features",
          first.panel_blocks(), groups_);
    const int64_t count = blocks * std::ssize(weights_);
    device_.pool.run_ranges(count, [&](int64_t begin, int64_t end, int slot) {
      std::byte* const scratch = device_.slot_scratch[static_cast<size_t>(slot)].reserve(BlockedGemm::kMaxScratchBytes);
      for (int64_t block = begin; block < end; ++block) {
        const int64_t head = block / blocks;
        const int64_t group = block % first.panel_blocks() / group_blocks;
        product(head, group).run(block % blocks, scratch, [&](const PanelResult& sums) {
          store(sums, head, group, out, stride);
        });
      }
    });
  }

 private:
  /// Stores the sums of a panel but those of the zeros after the group.
  void store(const PanelResult& sums, int64_t head, int64_t group, const Matrix& out, int64_t stride) const {
    const int64_t within = sums.feature - group * (weights_.front()->own_features() / groups_);
    const int64_t first = head * stride + group * group_features_ + within;
    const int64_t features = std::min(sums.features, group_features_ - within);
    for (int64_t i = 0; i < sums.rows; ++i) {
      std::byte* const to =
          row_of<std::byte>(out, sums.first_row + i) + static_cast<size_t>(first) * tensor::size_of(out.dtype);
      device_.store_row(sums.row(i), to, out.dtype, features);
    }
  }
  [[nodiscard]] size_t encoded_bytes() const {
    return static_cast<size_t>(round_up(static_cast<int64_t>(packer_.row_bytes()), 64));
  }
  [[nodiscard]] LhsBuffer operand(int64_t head, int64_t group) const {
    return {lhs_ + static_cast<size_t>(head * groups_ + group) * packer_.bytes(rows_), rows_};
  }
  [[nodiscard]] BlockedGemm product(int64_t head, int64_t group) const {
    return {device_, packer_.view(operand(head, group)), rows_, *weights_[static_cast<size_t>(head)]};
  }

  Device& device_;
  const std::vector<std::unique_ptr<CpuPackedWeight>>& weights_;
  const LhsPacker packer_;
  int64_t groups_;          // of a head's features
  int64_t group_features_;  // of a group, without zeros
  int64_t rows_;
  std::byte* lhs_;  // [heads, groups] operands
};

/// The op for some rows. The absorbed form: a query goes to the space of latents by its head's W_UKᵀ, attends there to
/// what the cache stores, and its result goes to the values by W_UV. One form for all rows keeps their bits.
class LatentAttention {
 public:
  LatentAttention(Device& device, const LatentShape& shape, const CpuLatentExpansion& expansion, int64_t rows)
      : device_(device), shape_(shape), expansion_(expansion), rows_(rows) {
    const size_t element = tensor::size_of(device.compute_dtype);
    queries_ = {.dtype = device.compute_dtype, .rows = rows, .cols = int64_t{shape.head_count} * shape.key_dim()};
    results_ = {.dtype = device.compute_dtype, .rows = rows, .cols = int64_t{shape.head_count} * shape.latent_dim};
    const size_t bytes = static_cast<size_t>(round_up(queries_.rows * queries_.cols, 32)) * element;
    queries_.data = device.latent_queries.reserve(bytes + results_.bytes());
    results_.data = queries_.data + bytes;
  }

  /// Returns the bytes of queries, their operands and results per row.
  [[nodiscard]] static int64_t row_bytes(const Device& device, const LatentShape& shape, int64_t query_groups) {
    return int64_t{shape.head_count} * (shape.key_dim() + shape.latent_dim + (query_groups - 1) * shape.nope_dim) *
           static_cast<int64_t>(tensor::size_of(device.compute_dtype));
  }

  /// Computes `out` for queries whose first row is row `first` of `angles`.
  void run(const Matrix& q, const tensor::RotaryTable& rotary, const RotaryAngles& angles, int64_t first,
           tensor::IntMatrix chosen, const BatchLayout& batch, const CpuKvCache& cache, int32_t layer,
           const Matrix& out) {
    project_queries(q, rotary, angles, first);
    attend_to_latents(device_, queries_, shape_, chosen, batch, cache, layer, results_);
    expand(out);
  }

 private:
  [[nodiscard]] size_t bytes_of(int64_t elements) const {
    return static_cast<size_t>(elements) * tensor::size_of(device_.compute_dtype);
  }

  /// Fills the queries: W_UKᵀ times the first channels of a head's query, then the rotated ones.
  void project_queries(const Matrix& q, const tensor::RotaryTable& rotary, const RotaryAngles& angles, int64_t first) {
    const HeadMatmul to_latents(device_, expansion_.queries(), expansion_.query_groups(), shape_.latent_dim, rows_);
    const int32_t half = shape_.rope_dim / 2;
    const int32_t width = shape_.nope_dim + shape_.rope_dim;
    const size_t packing_bytes = to_latents.scratch_bytes();
    const size_t narrow_bytes = static_cast<size_t>(round_up(shape_.nope_dim, 16)) * sizeof(float);
    const size_t scratch_bytes =
        packing_bytes + narrow_bytes +
        static_cast<size_t>(std::max(shape_.rope_dim, shape_.nope_dim) + width) * sizeof(float);
    device_.for_rows(rows_, [&](int64_t begin, int64_t end, int slot) {
      std::byte* const packing = device_.slot_scratch[static_cast<size_t>(slot)].reserve(scratch_bytes);
      std::byte* const narrow = packing + packing_bytes;
      auto* const changed = reinterpret_cast<float*>(narrow + narrow_bytes);  // one part of a query, then the other
      auto* const scaled = changed + std::max(shape_.rope_dim, shape_.nope_dim);
      for (int64_t row = begin; row < end; ++row) {
        const auto at = static_cast<size_t>(first + row);
        const float factor = query_factor(rotary, angles.positions[at]);
        for (int32_t head = 0; head < shape_.head_count; ++head) {
          const float* const own = row_of<float>(q, row) + head * width;
          const float* const from = factor == 1.0f ? own : scaled;
          for (int32_t i = 0; factor != 1.0f && i < width; ++i) scaled[i] = own[i] * factor;
          for (int64_t group = 0; group < expansion_.query_groups(); ++group) {
            const float* const factors = expansion_.query_factors(head, group);
            for (int32_t i = 0; factors != nullptr && i < shape_.nope_dim; ++i) changed[i] = from[i] * factors[i];
            device_.store_row(factors != nullptr ? changed : from, narrow, device_.compute_dtype, shape_.nope_dim);
            to_latents.put_row(narrow, head, group, row, packing);
          }
          std::memcpy(changed, from + shape_.nope_dim, static_cast<size_t>(shape_.rope_dim) * sizeof(float));
          device_.kernels.rotate(changed, angles.cos.data() + at * half, angles.sin.data() + at * half, half);
          std::byte* const to =
              row_of<std::byte>(queries_, row) + bytes_of(int64_t{head} * shape_.key_dim() + shape_.latent_dim);
          device_.store_row(changed, to, device_.compute_dtype, shape_.rope_dim);
        }
      }
    });
    to_latents.run(queries_, shape_.key_dim());
  }

  /// Computes out = W_UV times each head's result.
  void expand(const Matrix& out) const {
    const HeadMatmul from_latents(device_, expansion_.values(), 1, shape_.value_dim, rows_);
    device_.for_rows(rows_, [&](int64_t begin, int64_t end, int slot) {
      std::byte* const packing = device_.slot_scratch[static_cast<size_t>(slot)].reserve(from_latents.scratch_bytes());
      for (int64_t row = begin; row < end; ++row) {
        const auto* from = row_of<std::byte>(results_, row);
        for (int32_t head = 0; head < shape_.head_count; ++head, from += bytes_of(shape_.latent_dim))
          from_latents.put_row(from, head, 0, row, packing);
      }
    });
    from_latents.run(out, shape_.value_dim);
  }

  Device& device_;
  const LatentShape& shape_;
  const CpuLatentExpansion& expansion_;
  int64_t rows_;
  Matrix queries_;  // compute [rows, heads, latent_dim + rope_dim]
  Matrix results_;  // compute [rows, heads, latent_dim]
};

}  // namespace

void latent_attention(Device& device, Matrix q, const LatentShape& shape, const tensor::RotaryTable& rotary,
                      const CpuLatentExpansion& expansion, tensor::IntMatrix chosen, const BatchLayout& batch,
                      const CpuKvCache& cache, int32_t layer, Matrix out) {
  check_matrix("q", q, DType::kF32, out.rows, shape.query_width());
  check_matrix("out", out, device.compute_dtype, q.rows, shape.output_width());
  check_batch(batch, q.rows, cache);
  CHECK(std::ssize(expansion.queries()) == shape.head_count, "an expansion of {} heads, wanted {}",
        expansion.queries().size(), shape.head_count);
  CHECK(rotary.rotary_dim == shape.rope_dim, "{} rotary channels, wanted {}", rotary.rotary_dim, shape.rope_dim);
  CHECK(chosen.cols == 0 || chosen.rows == q.rows, "chosen tokens of {} rows, wanted {}", chosen.rows, q.rows);
  const RotaryAngles& angles = angles_for(device, rotary, positions_of(batch));
  const int64_t row_bytes = LatentAttention::row_bytes(device, shape, expansion.query_groups());
  const int64_t at_once = std::max<int64_t>(1, kMaxLatentBytes / row_bytes);
  for (int64_t begin = 0; begin < q.rows; begin += at_once) {
    const int64_t end = std::min(q.rows, begin + at_once);
    const RowSlice slice(batch, static_cast<int32_t>(begin), static_cast<int32_t>(end));
    const tensor::IntMatrix own{.data = chosen.cols > 0 ? chosen.data + begin * chosen.cols : nullptr,
                                .rows = end - begin,
                                .cols = chosen.cols};
    LatentAttention(device, shape, expansion, end - begin)
        .run(rows_of(q, begin, end), rotary, angles, begin, own, slice.view(), cache, layer, rows_of(out, begin, end));
  }
}

}  // namespace millrace::cpu
