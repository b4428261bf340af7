#include "cuda/kv_cache.h"

#include <algorithm>

#include "base/check.h"

namespace millrace::cuda {
namespace {

static_assert(kInt8ScaleChannels == tensor::kInt8ScaleChannels);
static_assert(kLatentScaleChannels == tensor::kLatentScaleChannels);

/// Alignment of the words that copy_pages moves.
constexpr size_t kHostPageAlignment = 16;

/// Returns what pages of a cache store. States keep their own dtype.
KvElement element_of(const tensor::KvCacheShape& shape, tensor::KvDType stored) {
  if (stored == tensor::KvDType::kAuto || shape.state_values > 0) return KvElement::kBf16;
  return stored == tensor::KvDType::kInt8 ? KvElement::kInt8 : KvElement::kE4M3;
}

}  // namespace

DeviceKvCache layout_of(const tensor::KvCacheShape& shape, tensor::KvDType stored) {
  return {.layer_count = shape.layer_count,
          .kv_head_count = shape.kv_head_count,
          .head_dim = shape.head_dim,
          .latent_dim = shape.latent_dim,
          .index_dim = shape.index_dim,
          .state_values = shape.state_values,
          .page_size = shape.page_size,
          .element = element_of(shape, stored)};
}

CudaKvCache::CudaKvCache(Device& device, const tensor::KvCacheShape& shape, tensor::KvDType stored)
    : device_(device), shape_(shape), layout_(layout_of(shape, stored)) {
  const bool has_heads = shape.kv_head_count > 0 && shape.head_dim > 0;
  CHECK(shape.layer_count >= 0 && (has_heads || shape.state_values > 0) && shape.page_size > 0 && shape.page_count > 0,
        "a KV cache of {} layers, {} heads, head_dim {}, {} pages of {} tokens", shape.layer_count, shape.kv_head_count,
        shape.head_dim, shape.page_count, shape.page_size);
  pages_ = allocate_device(device.ordinal, page_bytes() * static_cast<size_t>(shape.page_count), device.set_up);
  layout_.data = pages_.data();
}

size_t CudaKvCache::page_bytes_of(const tensor::KvCacheShape& shape, tensor::KvDType stored) {
  return kv_page_bytes(layout_of(shape, stored));
}

void CudaKvCache::read_pages(std::span<const tensor::PageTransfer> pages) const {
  copy(device_.store, PageCopyDirection::kToHost, 0, shape_.layer_count, pages);
}

void CudaKvCache::write_layer(int32_t layer, std::span<const tensor::PageTransfer> pages) {
  CHECK(layer >= 0 && layer < shape_.layer_count, "layer {} of {}", layer, shape_.layer_count);
  copy(device_.load, PageCopyDirection::kToDevice, layer, 1, pages);
}

void CudaKvCache::copy(const Stream& stream, PageCopyDirection way, int32_t first_layer, int32_t layer_count,
                       std::span<const tensor::PageTransfer> pages) const {
  for (size_t begin = 0; begin < pages.size(); begin += PageCopyList::kMaxPages) {
    PageCopyList pairs;
    for (const auto& [page, host] :
         pages.subspan(begin, std::min<size_t>(PageCopyList::kMaxPages, pages.size() - begin))) {
      CHECK(page.value() < static_cast<uint32_t>(shape_.page_count), "page {} of {}", page.value(), shape_.page_count);
      CHECK(reinterpret_cast<uintptr_t>(host) % kHostPageAlignment == 0, "a host page at an unaligned address");
      pairs.page[pairs.count] = page.value();
      pairs.host[pairs.count++] = host;
    }
    copy_pages(stream.get(), way, layout_, first_layer, layer_count, pairs);
  }
}

}  // namespace millrace::cuda
