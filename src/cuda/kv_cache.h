#pragma once

#include "cuda/device.h"
#include "cuda/kernels.h"
#include "tensor/backend.h"

namespace millrace::cuda {

/// Pages one after another, and in each its layers. However many pages go to the host, or a layer of them comes from
/// there, one launch of copy_pages takes up to PageCopyList::kMaxPages of them.
class CudaKvCache final : public tensor::KvCache {
 public:
  CudaKvCache(Device& device, const tensor::KvCacheShape& shape);
  /// page_bytes() of such a cache, whatever its page_count.
  [[nodiscard]] static size_t page_bytes_of(const tensor::KvCacheShape& shape);
  [[nodiscard]] const tensor::KvCacheShape& shape() const override { return shape_; }
  [[nodiscard]] size_t page_bytes() const override { return kv_page_bytes(layout_); }
  void read_pages(std::span<const tensor::PageTransfer> pages) const override;
  void write_layer(int32_t layer, std::span<const tensor::PageTransfer> pages) override;
  [[nodiscard]] const DeviceKvCache& layout() const { return layout_; }

 private:
  void copy(const Stream& stream, PageCopyDirection way, int32_t first_layer, int32_t layer_count,
            std::span<const tensor::PageTransfer> pages) const;

  Device& device_;
  const tensor::KvCacheShape shape_;
  DeviceKvCache layout_;
  tensor::Buffer pages_;  // [pages, page_bytes]
};

}  // namespace millrace::cuda
