#pragma once

#include <cstddef>
#include <cstdint>

#include "base/ids.h"

namespace millrace::sched {

/// The times of one plan with slices on one rank of a stage, in ns on that rank's clock.
struct StageReport {
  StageId stage;
  PlanId plan;
  int64_t plan_ns = 0;      ///< the plan arrived
  int64_t input_ns = 0;     ///< its activations arrived; on the first stage equal to plan_ns
  int64_t begin_ns = 0;     ///< it was submitted to the device
  int64_t end_ns = 0;       ///< the device was done
  uint64_t sent_bytes = 0;  ///< activations sent on; 0 on the last stage
  uint32_t rank = 0;        ///< 0: the stage's leader
  static constexpr size_t kWireBytes = 56;
  [[nodiscard]] int64_t run_ns() const { return end_ns - begin_ns; }
};

}  // namespace millrace::sched
