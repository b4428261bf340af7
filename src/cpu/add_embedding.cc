#include "base/check.h"
#include "cpu/ops.h"

namespace millrace::cpu {

void add_embedding(Device& device, const CpuEmbeddingTable& embedding, std::span<const int32_t> indices,
                   tensor::Matrix hidden) {
  check_matrix("hidden", hidden, tensor::DType::kF32, static_cast<int64_t>(indices.size()), embedding.cols());
  const auto width = static_cast<size_t>(hidden.cols);
  device.pool.run_ranges(hidden.rows, [&](int64_t begin, int64_t end, int slot) {
    float* values = device.slot_scratch[static_cast<size_t>(slot)].reserve_as<float>(width);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t index = indices[static_cast<size_t>(row)];
      if (index < 0 || index >= embedding.rows()) continue;
      embedding.read_row(device.kernels, index, values);
      auto* out = row_of<float>(hidden, row);
      for (size_t i = 0; i < width; ++i) out[i] += values[i];
    }
  });
}

}  // namespace millrace::cpu
