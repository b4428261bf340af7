#pragma once

#include <cstdint>

namespace millrace::grammar {

/// Limits the work of one call in steps, of which each takes some tens of nanoseconds. Counting steps instead of time
/// gives the same result on every machine. Owned by the caller.
class WorkBudget {
 public:
  explicit WorkBudget(uint64_t steps) : limit_(steps) {}
  [[nodiscard]] static WorkBudget unlimited() { return WorkBudget(UINT64_MAX); }

  void spend(uint64_t steps) { used_ += steps; }
  [[nodiscard]] bool is_exhausted() const { return used_ >= limit_; }
  [[nodiscard]] uint64_t used() const { return used_; }

 private:
  uint64_t limit_;
  uint64_t used_ = 0;
};

}  // namespace millrace::grammar
