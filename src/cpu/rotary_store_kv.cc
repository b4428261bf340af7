#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "base/check.h"
#include "cpu/ops.h"
#include "cpu/rotary_angles.h"

namespace millrace::cpu {
namespace {

using tensor::HeadNorm;
using tensor::Matrix;

/// Moves a non-finite value, or one that overflows in the cache, to the key. Only rows that attend to this position may
/// become NaN. Kernels multiply masked values by zero, which a NaN survives, but they ignore masked keys' scores.
void confine_fault(const CpuKvCache& cache, std::span<float> key, std::span<float> value) {
  if (!cache.has_fault(value)) return;
  std::ranges::fill(key, std::numeric_limits<float>::quiet_NaN());
  std::ranges::fill(value, 0.0f);
}

/// Returns whether a norm of q and k, if there is one, is of each head. The sizes of its weights must fit.
bool check_norms(const tensor::AttentionShape& shape, const tensor::RotaryTable& rotary, const CpuVector* q_norm,
                 const CpuVector* k_norm) {
  const int64_t dim = shape.head_dim;
  const int64_t query = shape.head_count * dim;
  const int64_t key = shape.kv_head_count * dim;
  CHECK(shape.queries_only || (q_norm == nullptr) == (k_norm == nullptr), "q and k are normalised both or not at all");
  if (q_norm == nullptr) return true;
  const auto has_sizes = [&](int64_t q_size, int64_t k_size) {
    return q_norm->size() == q_size && (k_norm == nullptr || k_norm->size() == k_size);
  };
  const bool has_head_weights = has_sizes(dim, dim);
  CHECK(shape.head_norm == HeadNorm::kRms     ? has_head_weights || has_sizes(query, key)
        : shape.head_norm == HeadNorm::kLayer ? has_sizes(query, key)
                                              : has_head_weights,
        "q and k norms are [{}] and [{}], with heads of {} and widths of {} and {}", q_norm->size(),
        k_norm == nullptr ? 0 : k_norm->size(), dim, query, key);
  CHECK(shape.head_norm != HeadNorm::kRotatedRms || rotary.attention_factor == 1.0f,
        "a norm after a rotation that scales by {}", rotary.attention_factor);
  const bool per_head = has_head_weights || shape.head_norm == HeadNorm::kLayer;
  CHECK(per_head || (!shape.queries_only && !shape.values_are_keys), "a norm over all heads of more than q, k and v");
  return per_head;
}

}  // namespace

void rotary_store_kv(Device& device, Matrix qkv, const tensor::AttentionShape& shape, const tensor::RotaryTable& rotary,
                     const CpuVector* q_norm, const CpuVector* k_norm, float norm_epsilon,
                     const tensor::BatchLayout& batch, CpuKvCache& cache, int32_t layer, Matrix q) {
  const int32_t dim = shape.head_dim;
  const int32_t kv_heads = shape.kv_head_count;
  const int32_t value_head = shape.head_count + (shape.values_are_keys ? 0 : kv_heads);  // head of qkv with the first v
  const int32_t stored_heads = shape.queries_only ? 0 : kv_heads;
  const int32_t heads = shape.queries_only ? shape.head_count : value_head + kv_heads;
  check_matrix("qkv", qkv, tensor::DType::kF32, q.rows, int64_t{heads} * dim);
  check_matrix("q", q, device.compute_dtype, qkv.rows, int64_t{shape.head_count} * dim);
  check_batch(batch, q.rows, cache);
  const bool per_head = check_norms(shape, rotary, q_norm, k_norm);
  CHECK(rotary.rotary_dim % 2 == 0 && rotary.rotary_dim <= dim, "{} rotary channels of {}", rotary.rotary_dim, dim);
  CHECK(cache.shape().kv_head_count == kv_heads && cache.shape().head_dim == dim && layer >= 0 &&
            layer < cache.shape().layer_count,
        "layer {} is not one of this cache, or its heads differ", layer);

  const RotaryAngles& angles = angles_for(device, rotary, positions_of(batch));
  const int32_t half = rotary.rotary_dim / 2;
  const auto padded = static_cast<size_t>(cache.padded_dim());
  const std::vector<float> ones(shape.value_norm ? static_cast<size_t>(dim) : 0, 1.0f);
  const auto turn = [&](float* values, const CpuVector* norm, int32_t head, int64_t row) {
    const bool has_norm = norm != nullptr && per_head;
    if (has_norm && shape.head_norm == HeadNorm::kRms)
      device.kernels.rms_norm(values, norm->data(), norm_epsilon, values, dim);
    if (has_norm && shape.head_norm == HeadNorm::kLayer)
      layer_norm_row(values, norm->data() + head * dim, nullptr, double{norm_epsilon}, dim, values);
    device.kernels.rotate(values, angles.cos.data() + row * half, angles.sin.data() + row * half, half);
    if (has_norm && shape.head_norm == HeadNorm::kRotatedRms)
      device.kernels.rms_norm(values, norm->data(), norm_epsilon, values, dim);
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
      turn(values, q_norm, head, row);
      const float factor = query_factor(rotary, position);
      for (int32_t i = 0; factor != 1.0f && i < dim; ++i) values[i] *= factor;
      device.store_row(values, row_of<std::byte>(q, row) + static_cast<size_t>(head * dim) * tensor::size_of(q.dtype),
                       q.dtype, dim);
    }
    float* const value = values + padded;
    std::fill(values, values + 2 * padded, 0.0f);
    for (int32_t head = 0; head < stored_heads; ++head) {
      std::memcpy(values, in + (shape.head_count + head) * dim, static_cast<size_t>(dim) * sizeof(float));
      turn(values, k_norm, head, row);
      std::memcpy(value, in + (value_head + head) * dim, static_cast<size_t>(dim) * sizeof(float));
      if (shape.value_norm) device.kernels.rms_norm(value, ones.data(), norm_epsilon, value, dim);
      confine_fault(cache, {values, padded}, {value, padded});
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
