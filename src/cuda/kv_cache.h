#pragma once

#include "cuda/device.h"
#include "cuda/kernels.h"
#include "tensor/backend.h"
#include "tensor/kv_dtype.h"

namespace millrace::cuda {

/// Returns the layout of a cache for `--kv-cache-dtype`, without memory.
[[nodiscard]] DeviceKvCache layout_of(const tensor::KvCacheShape& shape, tensor::KvDType stored);

/// The KV cache in device memory: page by page, and layer by layer within a page. One launch of copy_pages copies up to
/// PageCopyList::kMaxPages pages to the host, or one layer of them back.
class CudaKvCache final : public tensor::KvCache {
 public:
  CudaKvCache(Device& device, const tensor::KvCacheShape& shape, tensor::KvDType stored);
  /// Returns page_bytes() of such a cache. page_count is ignored.
  [[nodiscard]] static size_t page_bytes_of(const tensor::KvCacheShape& shape, tensor::KvDType stored);
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
