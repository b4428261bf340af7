#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace millrace::grammar {

/// Memory for arrays of ids, which stay where they are until the arena ends. It comes in blocks, so that neither its
/// growth nor its end takes long. Owned by the container of the arrays.
class IdArena {
 public:
  /// Returns an array without values.
  [[nodiscard]] std::span<uint32_t> allocate(size_t count) {
    if (count > left_) {
      left_ = std::max(count, kBlockIds);
      next_ = blocks_.emplace_back(std::make_unique_for_overwrite<uint32_t[]>(left_)).get();
    }
    const std::span<uint32_t> ids(next_, count);
    next_ += count;
    left_ -= count;
    return ids;
  }
  [[nodiscard]] std::span<const uint32_t> copy_of(std::span<const uint32_t> ids) {
    const std::span<uint32_t> copy = allocate(ids.size());
    std::ranges::copy(ids, copy.begin());
    return copy;
  }

 private:
  static constexpr size_t kBlockIds = 4096;

  std::vector<std::unique_ptr<uint32_t[]>> blocks_;
  uint32_t* next_ = nullptr;
  size_t left_ = 0;
};

}  // namespace millrace::grammar
