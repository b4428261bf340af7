#include <algorithm>
#include <limits>

#include "base/check.h"
#include "cpu/ops.h"
#include "cpu/rotary_angles.h"

namespace millrace::cpu {

void store_index_key(Device& device, tensor::Matrix key, const tensor::IndexerShape& shape,
                     const tensor::RotaryTable& rotary, const CpuVector& norm, const CpuVector& norm_bias,
                     float norm_epsilon, const tensor::BatchLayout& batch, CpuKvCache& cache, int32_t layer) {
  check_matrix("key", key, tensor::DType::kF32, key.rows, shape.head_dim);
  check_batch(batch, key.rows, cache);
  CHECK(norm.size() == shape.head_dim && norm_bias.size() == shape.head_dim,
        "the norm of an indexer's key has {} weights and {} biases, wanted {}", norm.size(), norm_bias.size(),
        shape.head_dim);
  CHECK(rotary.rotary_dim == shape.rope_dim, "{} rotary channels, wanted {}", rotary.rotary_dim, shape.rope_dim);
  CHECK(cache.shape().index_dim == shape.head_dim && layer >= 0 && layer < cache.shape().layer_count,
        "layer {} is not one of this cache, or its indexer's keys differ", layer);
  const RotaryAngles& angles = angles_for(device, rotary, positions_of(batch));
  const int32_t half = shape.rope_dim / 2;
  const auto padded = static_cast<size_t>(cache.padded_index_dim());
  const auto dim = static_cast<size_t>(shape.head_dim);
  const int32_t page_size = cache.shape().page_size;
  device.pool.run_ranges(key.rows, [&](int64_t begin, int64_t end, int slot) {
    const std::span values(device.slot_scratch[static_cast<size_t>(slot)].reserve_as<float>(padded), padded);
    std::ranges::fill(values, 0.0f);
    const auto first = std::upper_bound(batch.row_begin.begin(), batch.row_begin.end(), begin);
    auto s = static_cast<size_t>(first - batch.row_begin.begin() - 1);
    for (int64_t row = begin; row < end; ++row) {
      while (row >= batch.row_begin[s + 1]) ++s;
      const int32_t position = angles.positions[static_cast<size_t>(row)];
      layer_norm_row(row_of<float>(key, row), norm.data(), norm_bias.data(), double{norm_epsilon}, shape.head_dim,
                     values.data());
      device.kernels.rotate(values.data(), angles.cos.data() + row * half, angles.sin.data() + row * half, half);
      // A key that is not finite becomes NaN, the largest score, so that every row that could see it does.
      if (has_fault(cache.dtype(), values.first(dim)))
        std::ranges::fill(values.first(dim), std::numeric_limits<float>::quiet_NaN());
      cache.store_index_key(batch.pages[static_cast<size_t>(batch.page_begin[s] + position / page_size)], layer,
                            position % page_size, values.data());
    }
  });
}

}  // namespace millrace::cpu
