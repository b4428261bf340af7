#include <algorithm>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "cpu/ops.h"
#include "cpu/rotary_angles.h"

namespace millrace::cpu {
namespace {

/// Moves a fault of the latent to the key alone: only rows that attend to this position may become NaN. Kernels
/// multiply values that a row cannot see by zero, which a NaN survives, but they ignore such keys' scores.
void confine_latent_fault(const CpuKvCache& cache, std::span<float> latent, std::span<float> key) {
  if (!cache.has_fault(latent)) return;
  std::ranges::fill(latent, 0.0f);
  std::ranges::fill(key, std::numeric_limits<float>::quiet_NaN());
}

}  // namespace

void store_latent(Device& device, tensor::Matrix kv, const tensor::LatentShape& shape,
                  const tensor::RotaryTable& rotary, const CpuVector& norm, float norm_epsilon,
                  const tensor::BatchLayout& batch, CpuKvCache& cache, int32_t layer) {
  check_matrix("kv", kv, tensor::DType::kF32, kv.rows, shape.key_dim());
  check_batch(batch, kv.rows, cache);
  CHECK(norm.size() == shape.latent_dim, "the norm of a latent has {} weights, wanted {}", norm.size(),
        shape.latent_dim);
  CHECK(rotary.rotary_dim == shape.rope_dim, "{} rotary channels, wanted {}", rotary.rotary_dim, shape.rope_dim);
  CHECK(cache.shape().latent_dim == shape.latent_dim && cache.shape().head_dim == shape.key_dim() && layer >= 0 &&
            layer < cache.shape().layer_count,
        "layer {} is not one of this cache, or its latents differ", layer);
  const RotaryAngles& angles = angles_for(device, rotary, positions_of(batch));
  const int32_t half = shape.rope_dim / 2;
  const auto padded = static_cast<size_t>(cache.padded_dim());
  const auto latent_dim = static_cast<size_t>(shape.latent_dim);
  const int32_t page_size = cache.shape().page_size;
  const auto store_row = [&](size_t s, int64_t row, std::span<float> values) {
    const int32_t position = angles.positions[static_cast<size_t>(row)];
    const auto* const in = row_of<float>(kv, row);
    const std::span latent = values.first(latent_dim);
    const std::span key = values.subspan(latent_dim, static_cast<size_t>(shape.rope_dim));
    device.kernels.rms_norm(in, norm.data(), norm_epsilon, latent.data(), shape.latent_dim);
    std::memcpy(key.data(), in + shape.latent_dim, key.size_bytes());
    device.kernels.rotate(key.data(), angles.cos.data() + row * half, angles.sin.data() + row * half, half);
    confine_latent_fault(cache, latent, key);
    cache.store_latent(batch.pages[static_cast<size_t>(batch.page_begin[s] + position / page_size)], layer,
                       position % page_size, values.data());
  };
  device.pool.run_ranges(kv.rows, [&](int64_t begin, int64_t end, int slot) {
    const std::span values(device.slot_scratch[static_cast<size_t>(slot)].reserve_as<float>(padded), padded);
    std::ranges::fill(values, 0.0f);
    const auto first = std::upper_bound(batch.row_begin.begin(), batch.row_begin.end(), begin);
    auto s = static_cast<size_t>(first - batch.row_begin.begin() - 1);
    for (int64_t row = begin; row < end; ++row) {
      while (row >= batch.row_begin[s + 1]) ++s;
      store_row(s, row, values);
    }
  });
}

}  // namespace millrace::cpu
