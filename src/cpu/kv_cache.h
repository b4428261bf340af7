#pragma once

#include <optional>
#include <span>

#include "cpu/device.h"
#include "cpu/kv_codes.h"
#include "cpu/latent_codes.h"
#include "tensor/backend.h"

namespace millrace::cpu {

/// Returns whether one of the values is not finite, or is not once stored as `dtype`.
[[nodiscard]] bool has_fault(tensor::DType dtype, std::span<const float> values);

/// The KV cache in host memory. Each layer's parts of all pages are contiguous, [layer][page][kv head][K | V], so that
/// attention reads pages with consecutive ids as one run. On the host tier and in stores a page is [layer][kv head][K |
/// V].
///
/// Per head, keys are groups of 16 in the layout of kernels.h: K groups [padded_dim / depth][16][depth], V groups [16 /
/// depth][padded_dim][depth]. If 16 does not divide the page size, a page holds K [tokens][padded_dim] and V
/// [tokens][padded_dim], and attention gathers groups. A page of latents holds [tokens][padded_dim] only, of which
/// attention reads in place or gathers into groups of both kinds, then an indexer's keys [tokens][padded_index_dim]. A
/// page of states holds [state_values] (f32) per layer.
///
/// A cache of 8-bit codes has groups of K and V together, or tokens of both, as KvCodeLayout says, or latents, as
/// LatentCodeLayout says. Attention widens them to dtype().
class CpuKvCache final : public tensor::KvCache {
 public:
  /// Allocates the cache. Heads are padded with zeros to a multiple of `head_multiple` channels. Attention reads
  /// `dtype`. Unless `stored` is kAuto, the cache stores codes, except of states and an indexer's keys.
  CpuKvCache(const tensor::KvCacheShape& shape, tensor::DType dtype, int head_multiple,
             tensor::KvDType stored = tensor::KvDType::kAuto);
  /// Returns page_bytes() of such a cache. page_count is ignored.
  [[nodiscard]] static size_t page_bytes_of(const tensor::KvCacheShape& shape, tensor::DType dtype, int head_multiple,
                                            tensor::KvDType stored);
  [[nodiscard]] const tensor::KvCacheShape& shape() const override { return shape_; }
  [[nodiscard]] size_t page_bytes() const override { return page_bytes_; }
  void read_pages(std::span<const tensor::PageTransfer> pages) const override;
  void write_layer(int32_t layer, std::span<const tensor::PageTransfer> pages) override;

  /// Returns the dtype of the groups that attention reads.
  [[nodiscard]] tensor::DType dtype() const { return dtype_; }
  [[nodiscard]] bool has_codes() const { return codes_ || latent_codes_; }
  /// Returns the layout of codes of keys and values; null if the cache stores none.
  [[nodiscard]] const KvCodeLayout* codes() const { return codes_ ? &*codes_ : nullptr; }
  /// Returns the layout of codes of latents; null if the cache stores none.
  [[nodiscard]] const LatentCodeLayout* latent_codes() const { return latent_codes_ ? &*latent_codes_ : nullptr; }
  [[nodiscard]] int32_t padded_dim() const { return padded_dim_; }
  /// Returns the channels of a value, padded.
  [[nodiscard]] int32_t padded_value_dim() const { return padded_value_dim_; }
  /// Returns the channels of an indexer's key, padded.
  [[nodiscard]] int32_t padded_index_dim() const { return padded_index_dim_; }
  [[nodiscard]] bool has_latents() const { return shape_.latent_dim > 0; }
  [[nodiscard]] bool has_states() const { return shape_.state_values > 0; }
  [[nodiscard]] bool grouped() const { return !has_latents() && shape_.page_size % kGroupKeys == 0; }
  /// Returns the bytes of 16 keys of a head.
  [[nodiscard]] size_t group_bytes() const { return size_t{kGroupKeys} * padded_dim_ * element_; }
  /// Returns the bytes of 16 values of a head.
  [[nodiscard]] size_t value_group_bytes() const { return size_t{kGroupKeys} * padded_value_dim_ * element_; }

  /// Returns the codes of a token of an ungrouped page, or of the group that begins with it.
  [[nodiscard]] const std::byte* codes_at(PageId id, int32_t layer, int32_t head, int32_t offset) const {
    return keys(id, layer, head) + static_cast<size_t>(offset) * codes_->token_bytes();
  }

  /// Returns the codes of a token of a page of latents.
  [[nodiscard]] std::byte* latent_codes_at(PageId id, int32_t layer, int32_t offset) const {
    return layer_of_page(id, layer) + static_cast<size_t>(offset) * latent_codes_->token_bytes();
  }

  [[nodiscard]] std::byte* keys(PageId id, int32_t layer, int32_t head) const {
    return layer_of_page(id, layer) + static_cast<size_t>(head) * 2 * side_bytes_;
  }
  [[nodiscard]] std::byte* values(PageId id, int32_t layer, int32_t head) const {
    return keys(id, layer, head) + side_bytes_;
  }

  /// Returns a sequence's state, [state_values], in a layer of a cache of states.
  [[nodiscard]] float* state(PageId id, int32_t layer) const {
    return reinterpret_cast<float*>(layer_of_page(id, layer));
  }

  /// Stores one token's key and value, f32 [padded_dim] each, at `offset` in the page.
  void store(PageId id, int32_t layer, int32_t head, int32_t offset, const float* key, const float* value) const;
  /// Returns whether a value, or a value of a latent, cannot be stored as a finite number.
  [[nodiscard]] bool has_fault(std::span<const float> values) const;
  /// Stores one token's latent and key, f32 [padded_dim], at `offset` in a page of latents.
  void store_latent(PageId id, int32_t layer, int32_t offset, const float* latent) const;
  /// Stores one token's key of the indexer, f32 [padded_index_dim], at `offset` in a page of latents.
  void store_index_key(PageId id, int32_t layer, int32_t offset, const float* key) const;
  /// Returns the indexer's key, [padded_index_dim], of token `offset` in a page of latents.
  [[nodiscard]] std::byte* index_key_at(PageId id, int32_t layer, int32_t offset) const {
    return layer_of_page(id, layer) + side_bytes_ + static_cast<size_t>(offset) * index_token_bytes();
  }
  /// Returns the key, [padded_dim], of token `offset` in an ungrouped page without codes.
  [[nodiscard]] const std::byte* key_at(PageId id, int32_t layer, int32_t head, int32_t offset) const {
    return keys(id, layer, head) + static_cast<size_t>(offset) * static_cast<size_t>(padded_dim_) * element_;
  }
  /// Returns the value, [padded_value_dim], of token `offset` in an ungrouped page without codes.
  [[nodiscard]] const std::byte* value_at(PageId id, int32_t layer, int32_t head, int32_t offset) const {
    return key_at(id, layer, head, offset) + (has_latents() ? 0 : side_bytes_);
  }
  /// Zeroes the lanes [first, 16) of a V group.
  void clear_values(std::byte* group, int32_t first) const;

 private:
  void store_codes(PageId id, int32_t layer, int32_t head, int32_t offset, const float* key, const float* value) const;
  /// Returns the bytes of a page in one layer.
  [[nodiscard]] size_t layer_bytes() const {
    if (has_states()) return static_cast<size_t>(shape_.state_values) * sizeof(float);
    return static_cast<size_t>(shape_.kv_head_count) * (has_latents() ? 1 : 2) * side_bytes_ +
           static_cast<size_t>(shape_.page_size) * index_token_bytes();
  }
  /// Returns the bytes of an indexer's key; 0 where there is none.
  [[nodiscard]] size_t index_token_bytes() const { return static_cast<size_t>(padded_index_dim_) * element_; }
  /// Converts f32 [count] to the cache's dtype.
  void store_values(const float* values, int32_t count, std::byte* to) const;
  [[nodiscard]] std::byte* layer_of_page(PageId id, int32_t layer) const {
    const auto first = static_cast<size_t>(layer) * static_cast<size_t>(shape_.page_count);
    return buffer_.data() + (first + id.value()) * layer_bytes();
  }

  tensor::KvCacheShape shape_;
  tensor::DType dtype_;
  int32_t padded_dim_;
  int32_t padded_value_dim_;
  int32_t padded_index_dim_;
  uint32_t element_;
  std::optional<KvCodeLayout> codes_;
  std::optional<LatentCodeLayout> latent_codes_;
  size_t side_bytes_;  // K or V of a head and layer in a page, or half of its codes, or its latents
  size_t page_bytes_;
  tensor::Buffer buffer_;
};

}  // namespace millrace::cpu
