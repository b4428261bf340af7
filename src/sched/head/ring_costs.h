#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "sched/scheduler/cost_model.h"

namespace millrace::sched {

class Scheduler;

/// The costs of micro-batches as far as the head knows them, and the limits of the ring; plain data.
struct RingCosts {
  /// Each stage's coefficients while no other stage computes; empty until something is known of every stage.
  std::vector<CostCoefficients> stages;  // [stage_count]
  /// The stages whose refit is not usable now; `stages` has their earlier coefficients.
  std::vector<StageId> fallbacks;
  std::vector<double> relative_errors;  // [stage_count] recent mean |measured / predicted - 1|
  uint32_t page_size = 0;
  uint32_t page_count = 0;
  uint32_t max_running = 0;
  uint32_t context_length = 0;
  uint32_t processors = 0;     ///< that all stages share; 0: unknown, or several machines
  uint32_t stage_threads = 1;  ///< compute threads of a stage, where processors is not 0
  Contention contention;       ///< between stages that compute at the same time
};

/// Returns what `scheduler` knows at this moment. On the head's thread.
[[nodiscard]] RingCosts ring_costs_of(const Scheduler& scheduler);

}  // namespace millrace::sched
