#include "cpu/fp8_panels.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace millrace::cpu {
namespace {

using tensor::Fp8Matrix;

constexpr int64_t kFp8Unit = kW8GroupElements;

/// Returns the columns that share scales in a panel.
int64_t columns_per_fp8_group(std::span<const Fp8Matrix> parts, const tensor::SumShards* sum) {
  int64_t columns = kMaxFp8Group;
  const auto make_divide = [&columns](int64_t at) { columns = std::max(kFp8Unit, std::gcd(columns, at)); };
  for (const Fp8Matrix& part : parts) {
    if (part.column_blocks == 1) continue;
    CHECK(part.block_cols % kFp8Unit == 0, "{}: blocks of {} columns, wanted a multiple of {}", part.name,
          part.block_cols, kFp8Unit);
    make_divide(part.block_cols);
    if (sum == nullptr) make_divide(part.first_col);
  }
  if (sum == nullptr) return columns;
  for (int32_t shard = 1; shard < tensor::kSumShards; ++shard) make_divide(sum->shard(shard).begin);
  return columns;
}

/// Writes codes of a row to a column of the values of a group, from an element on.
template <int64_t kDepth>
void write_fp8_codes(const std::byte* codes, int64_t element, int64_t count, int column, std::byte* values) {
  std::byte* const own = values + (kDepth == 2 ? w8_interleaved_byte(column, 0) : column);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = element + i;
    own[at / kDepth * kDepth * kPanelColumns + at % kDepth] = codes[i];
  }
}

/// Returns whether a code is NaN.
bool is_fp8_nan(std::byte code) {
  return (code & std::byte{0x7F}) == std::byte{0x7F};
}

}  // namespace

PanelLayout fp8_panel_layout(const Device& device, std::span<const Fp8Matrix> parts, const tensor::SumShards* sum,
                             std::vector<PanelShard> shards, bool gate_up) {
  CHECK(!parts.empty(), "no matrix to pack");
  PanelLayout layout{
      .depth = device.bf16_lhs() ? 2 : 1, .format = PanelFormat::kFp8, .gate_up = gate_up, .shards = {}, .codes = {}};
  const int64_t group = columns_per_fp8_group(parts, sum);
  layout.group_elements = static_cast<int>(group);
  assign_steps(layout, std::move(shards), group, kFp8Unit);
  const auto group_bytes = static_cast<size_t>(kFp8ScaleBytes + group * kPanelColumns);
  layout.step_bytes = group_bytes / static_cast<size_t>(group / layout.depth);
  const int64_t groups = (layout.padded_inputs() + group - 1) / group;
  layout.bytes = static_cast<size_t>(groups * kFp8ScaleBytes + layout.padded_inputs() * kPanelColumns);
  return layout;
}

void pack_fp8_panel(std::span<const SourceRow<Fp8Matrix>> rows, const CpuPackedWeight& weight, int64_t index) {
  const PanelLayout& layout = weight.layout();
  const auto write = layout.depth == 2 ? write_fp8_codes<2> : write_fp8_codes<1>;
  const int64_t group_columns = layout.group_elements;
  for (const PanelShard& shard : layout.shards) {
    const int64_t end = shard.first_input + shard.inputs;
    std::byte* group = weight.panel(index, shard.first_step);
    for (int64_t first = shard.first_input - shard.skew; first < end; first += group_columns) {
      const int64_t begin = std::max(first, shard.first_input);
      const int64_t count = std::min(first + group_columns, end) - begin;
      for (size_t column = 0; column < rows.size(); ++column) {
        const auto& [matrix, row] = rows[column];
        if (matrix == nullptr) continue;
        const std::byte* const codes = matrix->codes + row * matrix->row_bytes + begin;
        // A sum with a NaN is NaN whatever the inputs are.
        const float scale = std::any_of(codes, codes + count, is_fp8_nan) ? std::numeric_limits<float>::quiet_NaN()
                                                                          : matrix->scale(row, begin);
        std::memcpy(group + column * sizeof(scale), &scale, sizeof(scale));
        write(codes, begin - first, count, static_cast<int>(column), group + kFp8ScaleBytes);
      }
      group += kFp8ScaleBytes + group_columns * kPanelColumns;
    }
  }
}

}  // namespace millrace::cpu
