#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <span>

namespace millrace::sched {

/// Memory handed out in pieces that come back in the order in which they were taken: a circle, so that many small
/// pieces are out where few large ones fit. A piece is never cut in two: of three times the largest, two of the largest
/// can always be out at once.
class CircularAllocator {
 public:
  explicit CircularAllocator(std::span<std::byte> memory) : memory_(memory) {}

  /// `size` bytes, more than none, at a multiple of kAlignment from the memory's begin; nothing while there is no room.
  [[nodiscard]] std::optional<std::span<std::byte>> allocate(size_t size);
  /// The piece that was taken first comes back.
  void free_oldest();
  [[nodiscard]] size_t allocated_count() const { return pieces_.size(); }

  static constexpr size_t kAlignment = 64;
  /// What a piece of `size` occupies.
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
