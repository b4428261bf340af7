#pragma once

#include "cuda/device.h"
#include "cuda/kernels.h"
#include "tensor/backend.h"

namespace millrace::cuda {

/// Pages one after another, so that a page is one copy, and a layer of a page is another.
class CudaKvCache final : public tensor::KvCache {
 public:
  CudaKvCache(Device& device, const tensor::KvCacheShape& shape);
  [[nodiscard]] const tensor::KvCacheShape& shape() const override { return shape_; }
  [[nodiscard]] size_t page_bytes() const override { return kv_page_bytes(layout_); }
  void read_page(PageId page, std::span<std::byte> into) const override;
  void write_layer(PageId page, int32_t layer, std::span<const std::byte> from) override;
  [[nodiscard]] const DeviceKvCache& layout() const { return layout_; }

 private:
  Device& device_;
  const tensor::KvCacheShape shape_;
  DeviceKvCache layout_;
  tensor::Buffer pages_;  // [pages, page_bytes]
};

}  // namespace millrace::cuda
