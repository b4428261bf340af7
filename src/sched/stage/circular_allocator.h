#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <span>

namespace millrace::sched {

/// Allocates pieces of one memory block that are freed in the order of their allocation. The block is used as a circle,
/// so that many small pieces fit where few large ones do. Pieces are contiguous: in a block of three times the largest
/// piece, two of the largest can always be allocated. Owned by StageInputs, on its thread.
class CircularAllocator {
 public:
  explicit CircularAllocator(std::span<std::byte> memory) : memory_(memory) {}

  /// Returns `size` > 0 bytes at a multiple of kAlignment from the block's begin; nothing while there is no room.
  [[nodiscard]] std::optional<std::span<std::byte>> allocate(size_t size);
  /// Frees the piece that was allocated first.
  void free_oldest();
  [[nodiscard]] size_t allocated_count() const { return pieces_.size(); }

  static constexpr size_t kAlignment = 64;
  /// Returns the bytes that a piece of `size` occupies.
  [[nodiscard]] static constexpr size_t footprint(size_t size) {
    return (size + kAlignment - 1) / kAlignment * kAlignment;
  }

 private:
  struct Piece {
    size_t begin = 0;
    size_t end = 0;
  };
  [[nodiscard]] std::optional<size_t> find_room(size_t size) const;

  const std::span<std::byte> memory_;
  std::deque<Piece> pieces_;  // oldest first
};

}  // namespace millrace::sched
