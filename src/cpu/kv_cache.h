#pragma once

#include "cpu/device.h"
#include "tensor/backend.h"

namespace millrace::cpu {

/// Each layer has its part of all pages side by side: [layer][page][kv head][K | V], so that attention reads pages with
/// neighbouring ids as one run. On the host and in stores a page is [layer][kv head][K | V].
///
/// Per head, keys lie in groups of 16 as kernels.h wants them: K groups [padded_dim / depth][16][depth], V groups
/// [16 / depth][padded_dim][depth]. When the page size is no multiple of 16 a page holds its tokens one after another
/// instead, K [tokens][padded_dim], V [tokens][padded_dim], and attention gathers groups from them.
class CpuKvCache final : public tensor::KvCache {
 public:
  /// Heads are padded with zeros to a multiple of `head_multiple` channels.
  CpuKvCache(const tensor::KvCacheShape& shape, tensor::DType dtype, int head_multiple);
  /// page_bytes() of such a cache, whatever its page_count.
  [[nodiscard]] static size_t page_bytes_of(const tensor::KvCacheShape& shape, tensor::DType dtype, int head_multiple);
  [[nodiscard]] const tensor::KvCacheShape& shape() const override { return shape_; }
  [[nodiscard]] size_t page_bytes() const override { return page_bytes_; }
  void read_pages(std::span<const tensor::PageTransfer> pages) const override;
  void write_layer(int32_t layer, std::span<const tensor::PageTransfer> pages) override;

  [[nodiscard]] tensor::DType dtype() const { return dtype_; }
  [[nodiscard]] int32_t padded_dim() const { return padded_dim_; }
  [[nodiscard]] bool grouped() const { return shape_.page_size % kGroupKeys == 0; }
  /// Bytes of 16 keys (or values) of a head.
  [[nodiscard]] size_t group_bytes() const { return size_t{kGroupKeys} * padded_dim_ * element_; }

  [[nodiscard]] std::byte* keys(PageId id, int32_t layer, int32_t head) const {
    return layer_of_page(id, layer) + static_cast<size_t>(head) * 2 * side_bytes_;
  }
  [[nodiscard]] std::byte* values(PageId id, int32_t layer, int32_t head) const {
    return keys(id, layer, head) + side_bytes_;
  }

  /// Stores one token's key and value, f32 [padded_dim] each, at `offset` in the page.
  void store(PageId id, int32_t layer, int32_t head, int32_t offset, const float* key, const float* value) const;
  /// Where token `offset` of an ungrouped page has its key and its value, [padded_dim] each.
  [[nodiscard]] const std::byte* key_at(PageId id, int32_t layer, int32_t head, int32_t offset) const {
    return keys(id, layer, head) + static_cast<size_t>(offset) * static_cast<size_t>(padded_dim_) * element_;
  }
  [[nodiscard]] const std::byte* value_at(PageId id, int32_t layer, int32_t head, int32_t offset) const {
    return key_at(id, layer, head, offset) + side_bytes_;
  }
  /// Zeroes lanes [first, 16) of a V group.
  void clear_values(std::byte* group, int32_t first) const;

 private:
  /// Bytes of a page in one layer.
  [[nodiscard]] size_t layer_bytes() const { return static_cast<size_t>(shape_.kv_head_count) * 2 * side_bytes_; }
  [[nodiscard]] std::byte* layer_of_page(PageId id, int32_t layer) const {
    const auto first = static_cast<size_t>(layer) * static_cast<size_t>(shape_.page_count);
    return buffer_.data() + (first + id.value()) * layer_bytes();
  }

  tensor::KvCacheShape shape_;
  tensor::DType dtype_;
  int32_t padded_dim_;
  uint32_t element_;
  size_t side_bytes_;  // K or V of a head and layer in a page
  size_t page_bytes_;
  tensor::Buffer buffer_;
};

}  // namespace millrace::cpu
