#include "comm/buffer_pool.h"

#include <mutex>
#include <new>
#include <vector>

namespace millrace::comm {
namespace {

constexpr size_t kGranule = size_t{64} << 10;

struct Free {
  void operator()(std::byte* memory) const { ::operator delete(memory, std::align_val_t(BufferPool::kAlignment)); }
};

struct Memory {
  std::unique_ptr<std::byte, Free> bytes;
  size_t capacity = 0;
};

}  // namespace

struct BufferPool::Shelf {
  const size_t max_kept;
  std::mutex mutex;
  std::vector<Memory> idle;     // guarded by mutex; the last one was used last
  size_t allocations = 0;       // guarded by mutex

  Memory take(size_t size) {
    Memory memory;
    const std::lock_guard lock(mutex);
    for (size_t i = idle.size(); i-- > 0 && !memory.bytes;) {
      if (idle[i].capacity < size) continue;
      memory = std::move(idle[i]);
      idle.erase(idle.begin() + static_cast<ptrdiff_t>(i));
    }
    if (memory.bytes) return memory;
    if (!idle.empty()) idle.pop_back();  // too small; its successor takes its place
    ++allocations;
    const size_t capacity = (size + kGranule) / kGranule * kGranule;
    auto* bytes = static_cast<std::byte*>(::operator new(capacity, std::align_val_t(kAlignment)));
    return {std::unique_ptr<std::byte, Free>(bytes), capacity};
  }

  void put_back(Memory memory) {
    const std::lock_guard lock(mutex);
    if (idle.size() < max_kept) idle.push_back(std::move(memory));
  }
};

BufferPool::BufferPool(size_t max_kept) : shelf_(std::make_shared<Shelf>(max_kept)) {
  shelf_->idle.reserve(max_kept);
}

std::shared_ptr<std::byte> BufferPool::take(size_t size) {
  Memory memory = shelf_->take(size);
  const size_t capacity = memory.capacity;
  return {memory.bytes.release(), [shelf = shelf_, capacity](std::byte* bytes) {
            shelf->put_back({std::unique_ptr<std::byte, Free>(bytes), capacity});
          }};
}

size_t BufferPool::allocation_count() const {
  const std::lock_guard lock(shelf_->mutex);
  return shelf_->allocations;
}

}  // namespace millrace::comm
