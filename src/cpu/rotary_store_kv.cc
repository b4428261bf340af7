#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "base/check.h"
#include "cpu/ops.h"

namespace millrace::cpu {
namespace {

using tensor::Matrix;

/// Tables that are kept: a model has one or two, for global and local layers. Further ones are recomputed.
constexpr size_t kKeptAngles = 4;

std::vector<int32_t> positions_of(const tensor::BatchLayout& batch) {
  std::vector<int32_t> positions;
  positions.reserve(static_cast<size_t>(batch.row_count()));
  for (size_t s = 0; s < batch.sequence_count(); ++s) {
    for (int32_t row = batch.row_begin[s]; row < batch.row_begin[s + 1]; ++row) {
      positions.push_back(batch.prefix[s] + row - batch.row_begin[s]);
    }
  }
  return positions;
}

/// Computes angles as the f32 product position · frequency, like the reference models. cos and sin use double
/// precision, since f32 argument reduction fails at position 10^6.
void compute_angles(Device& device, const float* frequencies, std::vector<int32_t> positions, RotaryAngles& angles) {
  const auto half = static_cast<size_t>(angles.rotary_dim / 2);
  angles.positions.clear();  // until the angles are there: memory may be short
  angles.cos.resize(positions.size() * half);
  angles.sin.resize(positions.size() * half);
  device.pool.run_ranges(static_cast<int64_t>(positions.size()), [&](int64_t begin, int64_t end, int) {
    for (auto row = static_cast<size_t>(begin); row < static_cast<size_t>(end); ++row) {
      for (size_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(positions[row]) * frequencies[i];
        angles.cos[row * half + i] = static_cast<float>(std::cos(static_cast<double>(angle))) * angles.factor;
        angles.sin[row * half + i] = static_cast<float>(std::sin(static_cast<double>(angle))) * angles.factor;
      }
    }
  });
  angles.positions = std::move(positions);
}

const RotaryAngles& angles_for(Device& device, const tensor::RotaryTable& rotary, std::vector<int32_t> positions) {
  const CpuVector& frequencies = as_cpu(*rotary.inverse_frequency);
  CHECK(frequencies.size() == rotary.rotary_dim / 2, "{} rotary frequencies for {} channels", frequencies.size(),
        rotary.rotary_dim);
  std::vector<RotaryAngles>& kept = device.rotary_angles;
  ++device.rotary_clock;
  auto found = std::find_if(kept.begin(), kept.end(), [&](const RotaryAngles& angles) {
    return angles.frequencies == frequencies.serial() && angles.rotary_dim == rotary.rotary_dim &&
           angles.factor == rotary.attention_factor;
  });
  const bool known = found != kept.end();
  if (!known && kept.size() < kKeptAngles) {
    found = kept.emplace(kept.end());
  } else if (!known) {
    found = std::min_element(kept.begin(), kept.end(),
                             [](const auto& a, const auto& b) { return a.last_use < b.last_use; });
  }
  found->last_use = device.rotary_clock;
  if (known && found->positions == positions) return *found;
  found->frequencies = frequencies.serial();
  found->rotary_dim = rotary.rotary_dim;
  found->factor = rotary.attention_factor;
  compute_angles(device, frequencies.data(), std::move(positions), *found);
  return *found;
}

/// Moves a non-finite value, or one that overflows in `dtype`, to the key. Only rows that attend to this position may
/// become NaN. Kernels multiply masked values by zero, which a NaN survives, but they ignore masked keys' scores.
void confine_fault(tensor::DType dtype, std::span<float> key, std::span<float> value) {
  constexpr uint32_t kInfinity = 0x7F800000;
  constexpr uint32_t kRoundsToInfinity = 0x7F7F8000;  // in bf16
  const uint32_t least_fault = dtype == tensor::DType::kBF16 ? kRoundsToInfinity : kInfinity;
  uint32_t largest = 0;
  for (const float x : value) largest = std::max(largest, std::bit_cast<uint32_t>(x) & 0x7FFFFFFF);
  if (largest < least_fault) return;
  std::ranges::fill(key, std::numeric_limits<float>::quiet_NaN());
  std::ranges::fill(value, 0.0f);
}

void scale_query(std::span<float> query, const tensor::RotaryTable& rotary, int32_t position) {
  const float periods = std::floor(static_cast<float>(position) / static_cast<float>(rotary.query_period));
  const float factor = 1.0f + rotary.query_beta * std::log(1.0f + periods);
  for (float& value : query) value *= factor;
}

}  // namespace

void rotary_store_kv(Device& device, Matrix qkv, const tensor::AttentionShape& shape, const tensor::RotaryTable& rotary,
                     const CpuVector* q_norm, const CpuVector* k_norm, float norm_epsilon,
                     const tensor::BatchLayout& batch, CpuKvCache& cache, int32_t layer, Matrix q) {
  const int32_t dim = shape.head_dim;
  const int32_t kv_heads = shape.kv_head_count;
  check_matrix("qkv", qkv, tensor::DType::kF32, q.rows, int64_t{shape.head_count + 2 * kv_heads} * dim);
  check_matrix("q", q, device.compute_dtype, qkv.rows, int64_t{shape.head_count} * dim);
  check_batch(batch, q.rows, cache);
  CHECK((q_norm == nullptr) == (k_norm == nullptr), "q and k are normalised both or not at all");
  const bool per_head = q_norm == nullptr || (q_norm->size() == dim && k_norm->size() == dim);
  CHECK(per_head || (q_norm->size() == q.cols && k_norm->size() == int64_t{kv_heads} * dim),
        "q and k norms are [{}] and [{}], wanted [{}], or [{}] and [{}]", q_norm->size(), k_norm->size(), dim, q.cols,
        kv_heads * dim);
  CHECK(rotary.rotary_dim % 2 == 0 && rotary.rotary_dim <= dim, "{} rotary channels of {}", rotary.rotary_dim, dim);
  CHECK(cache.shape().kv_head_count == kv_heads && cache.shape().head_dim == dim && layer >= 0 &&
            layer < cache.shape().layer_count,
        "layer {} is not one of this cache, or its heads differ", layer);

  const RotaryAngles& angles = angles_for(device, rotary, positions_of(batch));
  const int32_t half = rotary.rotary_dim / 2;
  const auto padded = static_cast<size_t>(cache.padded_dim());
  const auto turn = [&](float* head, const CpuVector* norm, int64_t row) {
    if (norm != nullptr && per_head) device.kernels.rms_norm(head, norm->data(), norm_epsilon, head, dim);
    device.kernels.rotate(head, angles.cos.data() + row * half, angles.sin.data() + row * half, half);
  };
  const auto store_rows = [&](size_t s, int64_t row, float* values) {
    const int32_t position = angles.positions[static_cast<size_t>(row)];
    const PageId page = batch.pages[static_cast<size_t>(batch.page_begin[s] + position / cache.shape().page_size)];
    auto* in = row_of<float>(qkv, row);
    if (!per_head) {
      float* const keys = in + q.cols;
      device.kernels.rms_norm(in, q_norm->data(), norm_epsilon, in, q.cols);
      device.kernels.rms_norm(keys, k_norm->data(), norm_epsilon, keys, int64_t{kv_heads} * dim);
    }
    for (int32_t head = 0; head < shape.head_count; ++head) {
      std::memcpy(values, in + head * dim, static_cast<size_t>(dim) * sizeof(float));
      turn(values, q_norm, row);
      if (rotary.query_beta != 0.0f) scale_query({values, static_cast<size_t>(dim)}, rotary, position);
      device.store_row(values, row_of<std::byte>(q, row) + static_cast<size_t>(head * dim) * tensor::size_of(q.dtype),
                       q.dtype, dim);
    }
    float* const value = values + padded;
    std::fill(values, values + 2 * padded, 0.0f);
    for (int32_t head = 0; head < kv_heads; ++head) {
      std::memcpy(values, in + (shape.head_count + head) * dim, static_cast<size_t>(dim) * sizeof(float));
      turn(values, k_norm, row);
      std::memcpy(value, in + (shape.head_count + kv_heads + head) * dim, static_cast<size_t>(dim) * sizeof(float));
      confine_fault(cache.dtype(), {values, padded}, {value, padded});
      cache.store(page, layer, head, position % cache.shape().page_size, values, value);
    }
  };
  device.pool.run_ranges(qkv.rows, [&](int64_t begin, int64_t end, int slot) {
    float* values = device.slot_scratch[static_cast<size_t>(slot)].reserve_as<float>(2 * padded);
    const auto first = std::upper_bound(batch.row_begin.begin(), batch.row_begin.end(), begin);
    auto s = static_cast<size_t>(first - batch.row_begin.begin() - 1);
    for (int64_t row = begin; row < end; ++row) {
      while (row >= batch.row_begin[s + 1]) ++s;
      store_rows(s, row, values);
    }
  });
}

}  // namespace millrace::cpu
