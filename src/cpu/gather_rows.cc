#include <cstring>

#include "base/check.h"
#include "cpu/ops.h"

namespace millrace::cpu {

void gather_rows(Device& device, tensor::Matrix in, std::span<const int32_t> rows, tensor::Matrix out) {
  check_matrix("out", out, in.dtype, static_cast<int64_t>(rows.size()), in.cols);
  const size_t row_bytes = static_cast<size_t>(in.cols) * tensor::size_of(in.dtype);
  device.pool.run_ranges(out.rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const int32_t from = rows[static_cast<size_t>(row)];
      CHECK(from >= 0 && from < in.rows, "row {} of {}", from, in.rows);
      std::memcpy(row_of<std::byte>(out, row), row_of<std::byte>(in, from), row_bytes);
    }
  });
}

}  // namespace millrace::cpu
