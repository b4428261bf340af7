#pragma once

#include <cstddef>
#include <utility>

namespace millrace::server {

/// How many bytes the bodies of all connections may take together. The beginning of each is free, so that large bodies
/// cannot keep small ones out; and one that holds all there is may grow, so that nothing waits for ever. Owned by the
/// front, its executor only; outlives its shares.
class BodyBudget {
 public:
  /// Of every body; the number of connections bounds their sum.
  static constexpr size_t kUnchargedBytes = 64u << 10;

  explicit BodyBudget(size_t limit) : limit_(limit) {}
  BodyBudget(const BodyBudget&) = delete;
  BodyBudget& operator=(const BodyBudget&) = delete;
  ~BodyBudget();

  /// What one body takes, from its first byte to the last use of it.
  class Reservation {
   public:
    /// Of no budget, and so without bound.
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

    /// For a body that has now so many bytes; false, and nothing changes, when there is no room for them.
    [[nodiscard]] bool resize(size_t bytes);

   private:
    BodyBudget* budget_ = nullptr;
    size_t used_bytes_ = 0;
  };

  /// Whether one more body of so many bytes would fit now.
  [[nodiscard]] bool has_room(size_t bytes) const { return has_room_for(charged_bytes(bytes), 0); }
  /// Without what is free.
  [[nodiscard]] size_t used_bytes() const { return used_bytes_; }
  [[nodiscard]] size_t limit() const { return limit_; }

 private:
  static size_t charged_bytes(size_t bytes);
  /// For `wanted` instead of `already`.
  [[nodiscard]] bool has_room_for(size_t wanted, size_t already) const;

  const size_t limit_;
  size_t used_bytes_ = 0;
};

}  // namespace millrace::server
