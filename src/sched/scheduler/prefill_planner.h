#pragma once

#include <vector>

#include "sched/scheduler/admission_controller.h"
#include "sched/scheduler/chunker.h"
#include "sched/scheduler/plan_builder.h"
#include "sched/scheduler/scheduler_state.h"
#include "sched/scheduler/waiting_queue.h"

namespace millrace::sched {

/// Plans the prefill of one plan within the Chunker's budget: the next chunk of each begun prompt, then first chunks of
/// queued prompts. While a long prompt has its turn, short prompts ride along in a part of the budget. Part of
/// Scheduler, with its thread and lifetime.
class PrefillPlanner {
 public:
  PrefillPlanner(SchedulerState& state, WaitingQueue& queue, AdmissionController& admission, PlanBuilder& builder,
                 Chunker& chunker)
      : state_(state), queue_(queue), admission_(admission), builder_(builder), chunker_(chunker) {}

  /// Adds chunks to the plan being built, after its decode steps.
  void plan();

 private:
  [[nodiscard]] std::vector<uint32_t> backlog() const;
  [[nodiscard]] std::vector<Sequence*> partial_prompts() const;
  void add_short_prompts(const std::vector<Sequence*>& begun);
  void admit_short_prompts(uint32_t budget);
  [[nodiscard]] uint32_t add_whole(Sequence& sequence);
  [[nodiscard]] bool add_first_chunk(const Sequence* before);
  [[nodiscard]] bool add_chunk(Sequence& sequence);
  [[nodiscard]] bool extend_windows(Sequence& sequence, uint32_t count);

  SchedulerState& state_;
  WaitingQueue& queue_;
  AdmissionController& admission_;
  PlanBuilder& builder_;
  Chunker& chunker_;
};

}  // namespace millrace::sched
