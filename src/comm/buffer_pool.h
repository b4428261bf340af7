#pragma once

#include <cstddef>
#include <memory>

namespace millrace::comm {

/// Receive buffers that are used again: once sizes have been seen, nothing of a tensor's size is allocated any more.
/// Memory comes back, from any thread, when the last copy of the pointer is gone; it may outlive the pool. Keeps at
/// most `max_kept` idle buffers.
class BufferPool {
 public:
  explicit BufferPool(size_t max_kept);

  /// `size` bytes or more, uninitialised, aligned to kAlignment.
  [[nodiscard]] std::shared_ptr<std::byte> take(size_t size);
  /// Buffers allocated since the start: constant in steady state.
  [[nodiscard]] size_t allocation_count() const;

  static constexpr size_t kAlignment = 64;

 private:
  struct Shelf;
  std::shared_ptr<Shelf> shelf_;
};

}  // namespace millrace::comm
