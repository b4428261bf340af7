#include "weights/fp8_weight.h"

#include <algorithm>

#include "base/check.h"

namespace millrace::weights {

bool is_fp8(const StoredWeight& weight) {
  constexpr int64_t kUnitCols = 32;
  return !weight.has_blocks() && weight.codes.kind == CodeKind::kE4M3 && weight.codes.order == CodeOrder::kRows &&
         weight.codes.bits == 8 && weight.group_index.empty() &&
         (weight.group_count() == 1 || weight.group_cols % kUnitCols == 0);
}

tensor::Fp8Matrix to_fp8(const StoredWeight& weight, tensor::TermRange rows) {
  CHECK(is_fp8(weight) && rows.end <= weight.rows, "{}: not FP8, or without row {}", weight.name, rows.end);
  tensor::Fp8Matrix matrix{
      .name = weight.name,
      .rows = rows.size(),
      .cols = weight.cols,
      .codes = weight.codes.bytes.data() + rows.begin * weight.codes.row_bytes,
      .row_bytes = weight.codes.row_bytes,
      .scales = {},
      .column_blocks = weight.group_count(),
      .block_rows = weight.group_rows,
      .block_cols = weight.group_cols > 0 ? weight.group_cols : std::max<int64_t>(weight.cols, 1),
      .first_row = rows.begin,
  };
  for (int64_t row = 0; row < weight.rows; row += weight.group_rows) {
    for (int64_t group = 0; group < matrix.column_blocks; ++group) {
      matrix.scales.push_back(group_scale(weight, row, group));
    }
  }
  return matrix;
}

}  // namespace millrace::weights
