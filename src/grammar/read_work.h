#pragma once

#include <cstdint>

#include "base/result.h"
#include "grammar/work_budget.h"

namespace millrace::grammar {

/// Counts the work of reading one schema in the steps of WorkBudget, and ends the reading beyond a limit. All parts of
/// a reader share one, so that no combination of them takes long. Lives while one schema is read.
class ReadWork {
 public:
  static constexpr uint64_t kMaxSteps = 40'000'000;

  explicit ReadWork(uint64_t max_steps = kMaxSteps) : max_steps_(max_steps), budget_(max_steps) {}

  /// Counts steps. Throws an ErrorException without a position beyond the limit, also on each later call.
  void spend(uint64_t steps) {
    budget_.spend(steps);
    if (is_exhausted()) throw ErrorException(error());
  }
  [[nodiscard]] bool is_exhausted() const { return budget_.is_exhausted(); }
  [[nodiscard]] uint64_t used() const { return budget_.used(); }
  [[nodiscard]] Error error() const {
    return make_error(ErrorCode::kInvalidArgument,
                      "it takes more than {} steps to read (many schemas, combinations of them, or large patterns)",
                      max_steps_);
  }

 private:
  uint64_t max_steps_;
  WorkBudget budget_;
};

}  // namespace millrace::grammar
