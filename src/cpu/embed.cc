#include <cstring>

#include "base/check.h"
#include "cpu/ops.h"

namespace millrace::cpu {

void CpuEmbeddingTable::read_row(const Kernels& kernels, int64_t row, float* out) const {
  if (read_) return read_(row, 1, out);
  read_elements(kernels, table_, row * cols(), cols(), out);
}

void embed(Device& device, const CpuEmbeddingTable& embedding, std::span<const TokenId> tokens, tensor::Matrix hidden) {
  const auto rows = static_cast<int64_t>(tokens.size());
  check_matrix("hidden", hidden, tensor::DType::kF32, rows, embedding.cols());
  device.pool.run_ranges(rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t token = tokens[static_cast<size_t>(row)];
      auto* out = row_of<float>(hidden, row);
      if (token < 0 || token >= embedding.rows()) {
        std::memset(out, 0, static_cast<size_t>(hidden.cols) * sizeof(float));
      } else {
        embedding.read_row(device.kernels, token, out);
      }
    }
  });
}

}  // namespace millrace::cpu
