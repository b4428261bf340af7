// The ops of latent attention as plain loops; see plain_kernels.cc.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "cpu/kv_codes.h"
#include "cuda/emulator/emulator.h"
#include "cuda/latent_kernels.h"
#include "cuda_backend/plain_numbers.h"
#include "cuda_backend/plain_rows.h"

namespace millrace::cuda {
namespace {

/// Returns a token in a page.
std::byte* latent_at(const DeviceKvCache& cache, uint32_t page, int32_t layer, int32_t token) {
  return static_cast<std::byte*>(cache.data) + page * kv_page_bytes(cache) +
         static_cast<size_t>(layer) * kv_layer_bytes(cache) + static_cast<size_t>(token * latent_token_bytes(cache));
}

/// Returns whether a page cannot store a value of a latent.
bool is_fault(const DeviceKvCache& cache, float value) {
  if (cache.element == KvElement::kBf16) return !std::isfinite(to_float(to_bf16(value)));
  return !(std::abs(value) < cpu::kMinCodedFault);
}

/// Stores a latent and its rotated key in bf16 at a token.
void store_token(const DeviceKvCache& cache, const std::vector<float>& latent, const std::vector<uint16_t>& key,
                 std::byte* token) {
  if (cache.element == KvElement::kBf16) {
    std::ranges::copy(key, std::ranges::transform(latent, bf16(token), to_bf16).out);
    return;
  }
  const tensor::KvDType dtype = cache.element == KvElement::kInt8 ? tensor::KvDType::kInt8 : tensor::KvDType::kFp8E4M3;
  cpu::encode_values(dtype, latent_scale_channels(cache), latent, token, token + latent_scales_offset(cache));
  std::ranges::copy(key, bf16(token + code_stride(cache.latent_dim)));
}

/// Returns a token's latent and rotated key in bf16.
std::vector<uint16_t> load_token(const DeviceKvCache& cache, const std::byte* token) {
  const auto key_dim = static_cast<size_t>(cache.head_dim);
  if (cache.element == KvElement::kBf16) return {bf16(token), bf16(token) + key_dim};
  const auto dim = static_cast<size_t>(cache.latent_dim);
  const auto* const codes = reinterpret_cast<const uint8_t*>(token);
  const uint16_t* const scales = bf16(token + latent_scales_offset(cache));
  std::vector<uint16_t> values;
  for (size_t i = 0; i < dim; ++i) {
    const float scale = to_float(scales[i / static_cast<size_t>(latent_scale_channels(cache))]);
    values.push_back(to_bf16(code_number(cache.element, codes[i]) * scale));
  }
  const uint16_t* const key = bf16(token + code_stride(cache.latent_dim));
  values.insert(values.end(), key, key + key_dim - dim);
  return values;
}

/// Computes one head's result [latent_dim] for a query [latent_dim + rope_dim] over the tokens that it sees.
std::vector<uint16_t> attend(const std::vector<uint16_t>& query, const tensor::LatentShape& shape,
                             const std::vector<std::vector<uint16_t>>& tokens) {
  std::vector<float> weights;
  for (const auto& token : tokens) weights.push_back(dot(query.data(), token.data(), query.size()) * shape.scale);
  const float max = *std::ranges::max_element(weights);
  std::vector<float> sums(static_cast<size_t>(shape.latent_dim), 0.0f);
  float total = 0.0f;
  for (size_t n = 0; n < tokens.size(); ++n) {
    const float weight = std::exp(weights[n] - max);
    total += weight;
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += weight * to_float(tokens[n][i]);
  }
  std::vector<uint16_t> result;
  for (const float sum : sums) result.push_back(to_bf16(sum / total));
  return result;
}

/// Computes both ops: rows at positions from chosen_count on see what they have chosen, the others all.
void attend_rows(const float* q, const tensor::LatentShape& shape, const DeviceRotary& rotary,
                 const DeviceExpansion& expansion, const int32_t* chosen, int32_t chosen_count,
                 const DeviceBatch& batch, const DeviceKvCache& cache, int32_t layer, void* out) {
  const auto nope = static_cast<size_t>(shape.nope_dim);
  const auto latent = static_cast<size_t>(shape.latent_dim);
  const auto value_dim = static_cast<size_t>(shape.value_dim);
  each_row(batch, [&](int32_t row, int32_t sequence, int32_t position) {
    std::vector<int32_t> tokens(static_cast<size_t>(position) + 1);
    std::iota(tokens.begin(), tokens.end(), 0);
    if (chosen != nullptr && position >= chosen_count) {
      const int32_t* const own = chosen + static_cast<ptrdiff_t>(row) * chosen_count;
      tokens.assign(own, own + chosen_count);
    }
    std::vector<std::vector<uint16_t>> latents;
    for (const int32_t token : tokens) {
      const uint32_t page = page_of(batch, cache, sequence, token);
      latents.push_back(load_token(cache, latent_at(cache, page, layer, token % cache.page_size)));
    }
    for (int32_t head = 0; head < shape.head_count; ++head) {
      const auto of_head = static_cast<size_t>(head);
      const auto pair = static_cast<size_t>(row) * static_cast<size_t>(shape.head_count) + of_head;
      const size_t width = nope + static_cast<size_t>(shape.rope_dim);
      std::vector<float> own(q + pair * width, q + (pair + 1) * width);
      for (float& value : own) value *= query_factor(rotary, position);
      std::vector<uint16_t> plain(nope);
      std::transform(own.begin(), own.begin() + shape.nope_dim, plain.begin(), to_bf16);
      std::vector<uint16_t> query(width - nope + latent);
      const uint16_t* to_latents = bf16(expansion.queries) + of_head * latent * nope;
      for (size_t i = 0; i < latent; ++i) query[i] = to_bf16(dot(plain.data(), to_latents + i * nope, nope));
      rotate(own.data() + nope, rotary, position, query.data() + latent);
      const std::vector<uint16_t> result = attend(query, shape, latents);
      const uint16_t* from_latents = bf16(expansion.values) + of_head * value_dim * latent;
      for (size_t i = 0; i < value_dim; ++i)
        bf16(out)[pair * value_dim + i] = to_bf16(dot(result.data(), from_latents + i * latent, latent));
    }
  });
}

}  // namespace

void store_latent(cudaStream_t stream, const float* kv, const tensor::LatentShape& shape, const DeviceRotary& rotary,
                  const float* norm, float norm_epsilon, const DeviceBatch& batch, const BatchBounds& bounds,
                  const DeviceKvCache& cache, int32_t layer) {
  emulator::emulated_enqueue(stream, [=] {
    check_bounds("store_latent", batch, bounds);
    each_row(batch, [&](int32_t row, int32_t sequence, int32_t position) {
      const float* from = kv + static_cast<size_t>(row * shape.key_dim());
      float squares = 0.0f;
      for (int32_t i = 0; i < shape.latent_dim; ++i) squares += from[i] * from[i];
      const float inverse = 1.0f / std::sqrt(squares / static_cast<float>(shape.latent_dim) + norm_epsilon);
      std::vector<float> latent;
      for (int32_t i = 0; i < shape.latent_dim; ++i) latent.push_back(from[i] * inverse * norm[i]);
      std::vector<uint16_t> key(static_cast<size_t>(shape.rope_dim));
      rotate(from + shape.latent_dim, rotary, position, key.data());
      if (std::ranges::any_of(latent, [&](float value) { return is_fault(cache, value); })) {
        std::ranges::fill(latent, 0.0f);
        std::ranges::fill(key, to_bf16(std::numeric_limits<float>::quiet_NaN()));
      }
      store_token(cache, latent, key,
                  latent_at(cache, page_of(batch, cache, sequence, position), layer, position % cache.page_size));
    });
  });
}

size_t latent_attention_workspace_bytes(const tensor::LatentShape&, const BatchBounds& bounds, MatrixInstruction) {
  constexpr size_t kRowBytes = 2048;  // of a split
  return static_cast<size_t>(bounds.splits) * static_cast<size_t>(std::min(bounds.sequence_rows, kMaxSplitKvRows)) *
         kRowBytes;
}

size_t latent_attention_shared_bytes(const tensor::LatentShape&) {
  return 0;
}

void latent_attention(cudaStream_t stream, const float* q, const tensor::LatentShape& shape, const DeviceRotary& rotary,
                      const DeviceExpansion& expansion, const DeviceBatch& batch, const BatchBounds& bounds,
                      const DeviceKvCache& cache, int32_t layer, MatrixInstruction, void* out, void*, size_t) {
  emulator::emulated_enqueue(stream, [=] {
    check_bounds("latent_attention", batch, bounds);
    attend_rows(q, shape, rotary, expansion, nullptr, 0, batch, cache, layer, out);
  });
}

size_t sparse_latent_attention_workspace_bytes(const tensor::LatentShape& shape, int32_t, const BatchBounds& bounds,
                                               MatrixInstruction by) {
  return latent_attention_workspace_bytes(shape, bounds, by);
}

void sparse_latent_attention(cudaStream_t stream, const float* q, const tensor::LatentShape& shape,
                             const DeviceRotary& rotary, const DeviceExpansion& expansion, const int32_t* chosen,
                             int32_t chosen_count, const DeviceBatch& batch, const BatchBounds& bounds,
                             const DeviceKvCache& cache, int32_t layer, MatrixInstruction, void* out, void*, size_t) {
  emulator::emulated_enqueue(stream, [=] {
    check_bounds("sparse_latent_attention", batch, bounds);
    attend_rows(q, shape, rotary, expansion, chosen, chosen_count, batch, cache, layer, out);
  });
}

}  // namespace millrace::cuda
