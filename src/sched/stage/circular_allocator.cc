#include "sched/stage/circular_allocator.h"

#include "base/check.h"

namespace millrace::sched {

std::optional<std::span<std::byte>> CircularAllocator::allocate(size_t size) {
  const size_t whole = footprint(size);
  const auto begin = find_room(whole);
  if (!begin) return std::nullopt;
  pieces_.push_back({*begin, *begin + whole});
  return memory_.subspan(*begin, size);
}

void CircularAllocator::free_oldest() {
  CHECK(!pieces_.empty(), "memory is returned that was never taken");
  pieces_.pop_front();
}

std::optional<size_t> CircularAllocator::find_room(size_t size) const {
  if (pieces_.empty()) return size <= memory_.size() ? std::optional<size_t>(0) : std::nullopt;
  const size_t oldest = pieces_.front().begin;
  const Piece& newest = pieces_.back();
  if (newest.begin < oldest) {  // wrapped around
    return newest.end + size <= oldest ? std::optional(newest.end) : std::nullopt;
  }
  if (newest.end + size <= memory_.size()) return newest.end;
  return size <= oldest ? std::optional<size_t>(0) : std::nullopt;
}

}  // namespace millrace::sched
