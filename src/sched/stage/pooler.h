#pragma once

#include <cstddef>
#include <span>
#include <unordered_map>
#include <vector>

#include "sched/plan/plan.h"
#include "sched/plan/plan_output.h"
#include "tensor/backend.h"

namespace millrace::sched {

/// Makes vectors of prompts from rows of the final norm. It keeps the sum of each sequence that is pooled by mean, row
/// after row in f64, so that the bits do not depend on chunks. Owned by the last stage's ModelRunner, on its thread;
/// sums outlive an epoch unused, since each sequence begins its own anew.
class Pooler {
 public:
  /// Returns how many rows of the slice pool() takes.
  [[nodiscard]] static uint32_t row_count(const PlanSlice& slice);
  /// Returns the index in the slice of the first row that pool() takes.
  [[nodiscard]] static uint32_t first_row(const PlanSlice& slice);

  /// Takes the rows of one slice, in f32 or bf16, and adds the slice's vector, or its fault, to `output`.
  void pool(const PlanSlice& slice, tensor::Matrix rows, SliceOutput& output);

 private:
  void add_rows(const PlanSlice& slice, tensor::Matrix rows);

  std::unordered_map<SlotId, std::vector<double>> sums_;  // [hidden] each
};

}  // namespace millrace::sched
