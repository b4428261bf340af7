#pragma once

#include <cstddef>
#include <utility>

namespace millrace::server {

/// Bounds the memory of all request bodies together. The first bytes of each are free, so that large bodies cannot keep
/// small ones out. A body that is alone may exceed the limit, so that nothing waits for ever. Owned by the Server; its
/// executor only. Outlives its reservations.
class BodyBudget {
 public:
  /// Bytes of each body that are free; the number of connections bounds their sum.
  static constexpr size_t kUnchargedBytes = 64u << 10;

  explicit BodyBudget(size_t limit) : limit_(limit) {}
  BodyBudget(const BodyBudget&) = delete;
  BodyBudget& operator=(const BodyBudget&) = delete;
  ~BodyBudget();

  /// One body's share of the budget, from its first byte to its last use.
  class Reservation {
   public:
    /// Makes a reservation without a budget, and so without a bound.
    Reservation() = default;
    explicit Reservation(BodyBudget& budget) : budget_(&budget) {}
    Reservation(Reservation&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)), used_bytes_(std::exchange(other.used_bytes_, 0)) {}
    Reservation& operator=(Reservation&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(used_bytes_, other.used_bytes_);
      return *this;
    }
    ~Reservation() {
      if (budget_ != nullptr) budget_->used_bytes_ -= used_bytes_;
    }

    /// Changes the share to that of a body of `bytes`; returns false, and changes nothing, when there is no room.
    [[nodiscard]] bool resize(size_t bytes);

   private:
    BodyBudget* budget_ = nullptr;
    size_t used_bytes_ = 0;
  };

  /// Returns whether one more body of `bytes` would fit now.
  [[nodiscard]] bool has_room(size_t bytes) const { return has_room_for(charged_bytes(bytes), 0); }
  /// Returns the bytes charged to bodies, without their free parts.
  [[nodiscard]] size_t used_bytes() const { return used_bytes_; }
  [[nodiscard]] size_t limit() const { return limit_; }

 private:
  static size_t charged_bytes(size_t bytes);
  /// Returns whether a share may grow from `already` to `wanted` bytes.
  [[nodiscard]] bool has_room_for(size_t wanted, size_t already) const;

  const size_t limit_;
  size_t used_bytes_ = 0;
};

}  // namespace millrace::server
