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
  static constexpr size_t kFreeBytes = 64u << 10;

  explicit BodyBudget(size_t limit) : limit_(limit) {}
  BodyBudget(const BodyBudget&) = delete;
  BodyBudget& operator=(const BodyBudget&) = delete;
  ~BodyBudget();

  /// What one body takes, from its first byte to the last use of it.
  class Share {
   public:
    /// Of no budget, and so without bound.
    Share() = default;
    explicit Share(BodyBudget& budget) : budget_(&budget) {}
    Share(Share&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)), held_(std::exchange(other.held_, 0)) {}
    Share& operator=(Share&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(held_, other.held_);
      return *this;
    }
    ~Share() {
      if (budget_ != nullptr) budget_->held_ -= held_;
    }

    /// For a body that has now so many bytes; false, and nothing changes, when there is no room for them.
    [[nodiscard]] bool resize(size_t bytes);

   private:
    BodyBudget* budget_ = nullptr;
    size_t held_ = 0;
  };

  /// Whether one more body of so many bytes would fit now.
  [[nodiscard]] bool has_room(size_t bytes) const { return has_room_for(counted(bytes), 0); }
  /// Without what is free.
  [[nodiscard]] size_t held() const { return held_; }
  [[nodiscard]] size_t limit() const { return limit_; }

 private:
  static size_t counted(size_t bytes);
  /// For `wanted` instead of `already`.
  [[nodiscard]] bool has_room_for(size_t wanted, size_t already) const;

  const size_t limit_;
  size_t held_ = 0;
};

}  // namespace millrace::server
