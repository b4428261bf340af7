#include "cpu/kv_cache.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace millrace::cpu {
namespace {

/// The maximum of a token's codes and scales, for a head of 512 channels.
constexpr size_t kMaxCodedTokenBytes = 2 * (512 + 512 / 16 * 2);

/// Returns the element index in a K group of `channel` of key `lane`. `depth` channels of a key are adjacent.
size_t key_index(int32_t lane, int32_t channel, int32_t depth) {
  return static_cast<size_t>((channel / depth * kGroupKeys + lane) * depth + channel % depth);
}

/// Returns the element index in a V group of `channel` of value `lane`. `depth` values of a channel are adjacent.
size_t value_index(int32_t lane, int32_t channel, int32_t depth, int32_t padded_dim) {
  return static_cast<size_t>((lane / depth * padded_dim + channel) * depth + lane % depth);
}

/// Returns the layout of codes of keys and values, if the cache stores them.
std::optional<KvCodeLayout> code_layout(const tensor::KvCacheShape& shape, tensor::DType dtype, int head_multiple,
                                        tensor::KvDType stored) {
  if (stored == tensor::KvDType::kAuto || shape.state_values > 0 || shape.latent_dim > 0) return std::nullopt;
  const auto padded = static_cast<int32_t>(round_up(shape.head_dim, head_multiple));
  return KvCodeLayout(stored, padded, dtype == tensor::DType::kBF16 ? 2 : 1);
}

/// Returns the layout of codes of latents, if the cache stores them.
std::optional<LatentCodeLayout> latent_code_layout(const tensor::KvCacheShape& shape, tensor::DType dtype,
                                                   tensor::KvDType stored) {
  if (stored == tensor::KvDType::kAuto || shape.latent_dim == 0) return std::nullopt;
  return LatentCodeLayout(stored, dtype, shape.latent_dim, shape.head_dim - shape.latent_dim);
}

/// Returns the bytes of the keys, the values or the latents of one head and layer in a page, or half those of its
/// codes. A page of states has none.
size_t side_bytes_of(const tensor::KvCacheShape& shape, tensor::DType dtype, int head_multiple,
                     tensor::KvDType stored) {
  if (shape.state_values > 0) return 0;
  const auto tokens = static_cast<size_t>(shape.page_size);
  if (const auto latents = latent_code_layout(shape, dtype, stored)) return tokens * latents->token_bytes();
  if (const auto codes = code_layout(shape, dtype, head_multiple, stored)) return tokens * codes->token_bytes() / 2;
  return tokens * static_cast<size_t>(round_up(shape.head_dim, head_multiple)) * tensor::size_of(dtype);
}

}  // namespace

bool has_fault(tensor::DType dtype, std::span<const float> values) {
  constexpr uint32_t kInfinity = 0x7F800000;
  constexpr uint32_t kRoundsToInfinity = 0x7F7F8000;  // in bf16
  const uint32_t least_fault = dtype == tensor::DType::kBF16 ? kRoundsToInfinity : kInfinity;
  uint32_t largest = 0;
  for (const float x : values) largest = std::max(largest, std::bit_cast<uint32_t>(x) & 0x7FFFFFFF);
  return largest >= least_fault;
}

bool CpuKvCache::has_fault(std::span<const float> values) const {
  if (!has_codes()) return cpu::has_fault(dtype_, values);
  return std::ranges::any_of(values, [](float x) { return !(std::abs(x) < kMinCodedFault); });
}

CpuKvCache::CpuKvCache(const tensor::KvCacheShape& shape, tensor::DType dtype, int head_multiple,
                       tensor::KvDType stored)
    : shape_(shape),
      dtype_(dtype),
      padded_dim_(static_cast<int32_t>(round_up(shape.head_dim, head_multiple))),
      padded_value_dim_(
          static_cast<int32_t>(round_up(shape.latent_dim > 0 ? shape.latent_dim : shape.head_dim, head_multiple))),
      padded_index_dim_(static_cast<int32_t>(round_up(shape.index_dim, head_multiple))),
      element_(static_cast<uint32_t>(tensor::size_of(dtype))),
      codes_(code_layout(shape, dtype, head_multiple, stored)),
      latent_codes_(latent_code_layout(shape, dtype, stored)),
      side_bytes_(side_bytes_of(shape, dtype, head_multiple, stored)),
      page_bytes_(page_bytes_of(shape, dtype, head_multiple, stored)) {
  const bool has_heads = shape.kv_head_count > 0 && shape.head_dim > 0;
  CHECK(shape.layer_count >= 0 && has_heads != has_states() && shape.page_size > 0 && shape.page_count > 0,
        "a KV cache of {} layers, {} heads, head_dim {}, {} pages of {} tokens", shape.layer_count, shape.kv_head_count,
        shape.head_dim, shape.page_count, shape.page_size);
  CHECK(shape.latent_dim == 0 || (shape.kv_head_count == 1 && shape.latent_dim < shape.head_dim),
        "latents of {} in {} heads of {} values", shape.latent_dim, shape.kv_head_count, shape.head_dim);
  CHECK(shape.index_dim == 0 || has_latents(), "keys of an indexer of {} values without latents", shape.index_dim);
  buffer_ = allocate_pages(page_bytes_ * static_cast<size_t>(shape.page_count));
}

size_t CpuKvCache::page_bytes_of(const tensor::KvCacheShape& shape, tensor::DType dtype, int head_multiple,
                                 tensor::KvDType stored) {
  if (shape.state_values > 0)
    return static_cast<size_t>(shape.layer_count) * static_cast<size_t>(shape.state_values) * sizeof(float);
  const size_t sides = shape.latent_dim > 0 ? 1 : 2;
  const size_t index_bytes = static_cast<size_t>(shape.page_size) *
                             static_cast<size_t>(round_up(shape.index_dim, head_multiple)) * tensor::size_of(dtype);
  return static_cast<size_t>(shape.layer_count) *
         (static_cast<size_t>(shape.kv_head_count) * sides * side_bytes_of(shape, dtype, head_multiple, stored) +
          index_bytes);
}

void CpuKvCache::store_values(const float* values, int32_t count, std::byte* to) const {
  if (dtype_ == tensor::DType::kF32) {
    std::memcpy(to, values, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  auto* const narrow = reinterpret_cast<uint16_t*>(to);
  for (int32_t i = 0; i < count; ++i) narrow[i] = tensor::BFloat16::from_float(values[i]).bits;
}

void CpuKvCache::store_latent(PageId id, int32_t layer, int32_t offset, const float* latent) const {
  if (latent_codes_) {
    const auto dim = static_cast<size_t>(shape_.head_dim);
    return latent_codes_->encode({latent, dim}, latent_codes_at(id, layer, offset));
  }
  store_values(latent, padded_dim_, layer_of_page(id, layer) + static_cast<size_t>(offset) * padded_dim_ * element_);
}

void CpuKvCache::store_index_key(PageId id, int32_t layer, int32_t offset, const float* key) const {
  store_values(key, padded_index_dim_, index_key_at(id, layer, offset));
}

void CpuKvCache::store_codes(PageId id, int32_t layer, int32_t head, int32_t offset, const float* key,
                             const float* value) const {
  const auto dim = static_cast<size_t>(padded_dim_);
  const size_t token_bytes = codes_->token_bytes();
  std::byte* const head_codes = keys(id, layer, head);
  if (!grouped())
    return codes_->encode({key, dim}, {value, dim}, head_codes + static_cast<size_t>(offset) * token_bytes);
  alignas(2) std::byte token[kMaxCodedTokenBytes];
  CHECK(token_bytes <= sizeof(token), "tokens of {} bytes", token_bytes);
  codes_->encode({key, dim}, {value, dim}, token);
  codes_->place(token, offset % kGroupKeys,
                head_codes + static_cast<size_t>(offset / kGroupKeys * kGroupKeys) * token_bytes);
}

void CpuKvCache::store(PageId id, int32_t layer, int32_t head, int32_t offset, const float* key,
                       const float* value) const {
  if (codes_) return store_codes(id, layer, head, offset, key, value);
  const size_t group = grouped() ? static_cast<size_t>(offset / kGroupKeys) * group_bytes() : 0;
  std::byte* k = keys(id, layer, head) + group;
  std::byte* v = values(id, layer, head) + group;
  const int32_t depth = dtype_ == tensor::DType::kBF16 ? 2 : 1;
  const auto scatter = [&](auto* k_out, auto* v_out, auto convert) {
    for (int32_t i = 0; i < padded_dim_; ++i) {
      const int32_t lane = offset % kGroupKeys;
      const size_t linear = static_cast<size_t>(offset) * static_cast<size_t>(padded_dim_) + static_cast<size_t>(i);
      k_out[grouped() ? key_index(lane, i, depth) : linear] = convert(key[i]);
      v_out[grouped() ? value_index(lane, i, depth, padded_dim_) : linear] = convert(value[i]);
    }
  };
  if (dtype_ == tensor::DType::kBF16) {
    scatter(reinterpret_cast<uint16_t*>(k), reinterpret_cast<uint16_t*>(v),
            [](float x) { return tensor::BFloat16::from_float(x).bits; });
  } else {
    scatter(reinterpret_cast<float*>(k), reinterpret_cast<float*>(v), [](float x) { return x; });
  }
}

void CpuKvCache::read_pages(std::span<const tensor::PageTransfer> pages) const {
  for (int32_t layer = 0; layer < shape_.layer_count; ++layer) {
    const size_t offset = static_cast<size_t>(layer) * layer_bytes();
    for (const tensor::PageTransfer& transfer : pages) {
      std::memcpy(transfer.host + offset, layer_of_page(transfer.page, layer), layer_bytes());
    }
  }
}

void CpuKvCache::write_layer(int32_t layer, std::span<const tensor::PageTransfer> pages) {
  CHECK(layer >= 0 && layer < shape_.layer_count, "layer {} of {}", layer, shape_.layer_count);
  const size_t offset = static_cast<size_t>(layer) * layer_bytes();
  for (const tensor::PageTransfer& transfer : pages) {
    std::memcpy(layer_of_page(transfer.page, layer), transfer.host + offset, layer_bytes());
  }
}

void CpuKvCache::clear_values(std::byte* group, int32_t first) const {
  const int32_t depth = dtype_ == tensor::DType::kBF16 ? 2 : 1;
  for (int32_t lane = first; lane < kGroupKeys; ++lane) {
    for (int32_t i = 0; i < padded_dim_; ++i) {
      const size_t index = value_index(lane, i, depth, padded_dim_);
      if (depth == 2) {
        reinterpret_cast<uint16_t*>(group)[index] = 0;
      } else {
        reinterpret_cast<float*>(group)[index] = 0.0f;
      }
    }
  }
}

}  // namespace millrace::cpu
