#include "cpu/memory.h"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include <fmt/core.h>

#include "base/machine.h"
#include "cpu/cpu_backend.h"

namespace millrace::cpu {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

std::atomic<uint64_t> packed_total = 0;

double megabytes(uint64_t bytes) {
  return static_cast<double>(bytes) / 1e6;
}

}  // namespace

tensor::Buffer allocate_pages(size_t bytes) {
  if (bytes == 0) return {};
  // A huge page must start at its own alignment, so larger blocks are mapped with room to align and trimmed.
  const size_t slack = bytes >= kHugePage ? kHugePage : 0;
  const size_t rounded = (bytes + 4095) & ~size_t{4095};
  void* mapped = mmap(nullptr, rounded + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    throw std::runtime_error(fmt::format("mmap of {:.1f} MB, {:.1f} MB of memory are available: {}", megabytes(bytes),
                                         megabytes(Machine().available_memory()), std::strerror(error)));
  }
  auto* start = static_cast<std::byte*>(mapped);
  if (slack != 0) {
    const size_t head = (kHugePage - reinterpret_cast<uintptr_t>(start) % kHugePage) % kHugePage;
    if (head != 0) munmap(start, head);
    start += head;
    if (slack != head) munmap(start + rounded, slack - head);
    madvise(start, rounded, MADV_HUGEPAGE);
  }
  return {start, bytes, [rounded](void* data) { munmap(data, rounded); }};
}

tensor::Buffer allocate_packed(size_t bytes) {
  auto pages = std::make_shared<tensor::Buffer>(allocate_pages(bytes));
  std::byte* const start = pages->data();
  packed_total += bytes;
  return {start, bytes, [pages, bytes](void*) mutable {
            pages.reset();
            packed_total -= bytes;
          }};
}

uint64_t packed_bytes() {
  return packed_total;
}

std::byte* Scratch::reserve(size_t bytes) {
  if (bytes > buffer_.bytes()) {
    buffer_ = {};
    buffer_ = allocate_pages(bytes + bytes / 2);
  }
  return buffer_.data();
}

}  // namespace millrace::cpu
