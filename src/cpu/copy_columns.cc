#include <cstring>

#include "base/check.h"
#include "cpu/ops.h"

namespace millrace::cpu {

void copy_columns(Device& device, tensor::Matrix in, int64_t in_begin, tensor::Matrix out, int64_t out_begin,
                  int64_t cols) {
  check_matrix("out", out, in.dtype, in.rows, out.cols);
  CHECK(in_begin >= 0 && in_begin + cols <= in.cols && out_begin >= 0 && out_begin + cols <= out.cols,
        "{} columns from {} of {} to {} of {}", cols, in_begin, in.cols, out_begin, out.cols);
  const size_t element = tensor::size_of(in.dtype);
  const size_t bytes = static_cast<size_t>(cols) * element;
  if (bytes == 0) return;
  device.for_rows(in.rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      std::memcpy(row_of<std::byte>(out, row) + static_cast<size_t>(out_begin) * element,
                  row_of<std::byte>(in, row) + static_cast<size_t>(in_begin) * element, bytes);
    }
  });
}

}  // namespace millrace::cpu
