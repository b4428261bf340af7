#include <cstring>

#include "base/check.h"
#include "cpu/ops.h"

namespace millrace::cpu {

void embed(Device& device, const CpuEmbeddingTable& embedding, std::span<const TokenId> tokens, tensor::Matrix hidden) {
  const tensor::HostTensor& table = embedding.table();
  const auto rows = static_cast<int64_t>(tokens.size());
  check_matrix("hidden", hidden, tensor::DType::kF32, rows, table.shape[1]);
  device.pool.run_ranges(rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t token = tokens[static_cast<size_t>(row)];
      auto* out = row_of<float>(hidden, row);
      if (token < 0 || token >= table.shape[0]) {
        std::memset(out, 0, static_cast<size_t>(hidden.cols) * sizeof(float));
      } else {
        read_elements(device.kernels, table, token * hidden.cols, hidden.cols, out);
      }
    }
  });
}

}  // namespace millrace::cpu
