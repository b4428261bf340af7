// The ops that only move bytes, as plain loops; see plain_kernels.cc.

#include <cstring>

#include "base/check.h"
#include "cuda/emulator/emulator.h"
#include "cuda/emulator/fake_memory.h"
#include "cuda/kernels.h"

namespace millrace::cuda {

void load_kernels() {}

void gather_rows(cudaStream_t stream, const void* in, size_t row_bytes, const int32_t* rows, int32_t count, void* out) {
  emulator::emulated_enqueue(stream, [=] {
    for (int32_t i = 0; i < count; ++i) {
      std::byte* to = static_cast<std::byte*>(out) + static_cast<size_t>(i) * row_bytes;
      if (rows[i] < 0) {
        std::memset(to, 0, row_bytes);
      } else {
        std::memcpy(to, static_cast<const std::byte*>(in) + static_cast<size_t>(rows[i]) * row_bytes, row_bytes);
      }
    }
  });
}

void add_values(cudaStream_t stream, const float* values, int64_t count, float* into) {
  emulator::emulated_enqueue(stream, [=] {
    for (int64_t i = 0; i < count; ++i) into[i] += values[i];
  });
}

void copy_pages(cudaStream_t stream, PageCopyDirection way, const DeviceKvCache& cache, int32_t first_layer,
                int32_t layer_count, const PageCopyList& pairs) {
  for (int32_t i = 0; i < pairs.count; ++i) {
    emulator::MemoryKind kind{};
    CHECK(
        emulator::find_memory_kind(pairs.host[i], kv_page_bytes(cache), kind) && kind == emulator::MemoryKind::kPinned,
        "a place of a page that no kernel reaches");
  }
  emulator::emulated_enqueue(stream, [=] {
    const size_t offset = static_cast<size_t>(first_layer) * kv_layer_bytes(cache);
    const size_t bytes = static_cast<size_t>(layer_count) * kv_layer_bytes(cache);
    for (int32_t i = 0; i < pairs.count; ++i) {
      std::byte* page = static_cast<std::byte*>(cache.data) + pairs.page[i] * kv_page_bytes(cache) + offset;
      std::byte* place = static_cast<std::byte*>(pairs.host[i]) + offset;
      std::memcpy(way == PageCopyDirection::kToHost ? place : page, way == PageCopyDirection::kToHost ? page : place,
                  bytes);
    }
  });
}

}  // namespace millrace::cuda
