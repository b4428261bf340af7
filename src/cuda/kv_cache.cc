#include "cuda/kv_cache.h"

#include "base/check.h"
#include "cuda/error.h"

namespace millrace::cuda {

CudaKvCache::CudaKvCache(Device& device, const tensor::KvCacheShape& shape)
    : device_(device),
      shape_(shape),
      layout_{nullptr, shape.layer_count, shape.kv_head_count, shape.head_dim, shape.page_size} {
  CHECK(shape.layer_count >= 0 && shape.kv_head_count > 0 && shape.head_dim > 0 && shape.page_size > 0 &&
            shape.page_count > 0,
        "a KV cache of {} layers, {} heads, head_dim {}, {} pages of {} tokens", shape.layer_count, shape.kv_head_count,
        shape.head_dim, shape.page_count, shape.page_size);
  pages_ = allocate_device(device.ordinal, page_bytes() * static_cast<size_t>(shape.page_count), device.set_up);
  layout_.data = pages_.data();
}

void CudaKvCache::read_page(PageId page, std::span<std::byte> into) const {
  CHECK(into.size() == page_bytes(), "a page of {} bytes into {}", page_bytes(), into.size());
  check(cudaMemcpyAsync(into.data(), pages_.data() + page.value() * page_bytes(), page_bytes(), cudaMemcpyDefault,
                        device_.store.get()),
        "cudaMemcpyAsync");
}

void CudaKvCache::write_layer(PageId page, int32_t layer, std::span<const std::byte> from) {
  CHECK(from.size() == page_bytes(), "a page of {} bytes from {}", page_bytes(), from.size());
  const size_t layer_bytes = kv_layer_bytes(layout_);
  const size_t offset = static_cast<size_t>(layer) * layer_bytes;
  check(cudaMemcpyAsync(pages_.data() + page.value() * page_bytes() + offset, from.data() + offset, layer_bytes,
                        cudaMemcpyDefault, device_.load.get()),
        "cudaMemcpyAsync");
}

}  // namespace millrace::cuda
