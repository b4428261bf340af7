#pragma once

#include "sched/scheduler/admission_controller.h"
#include "sched/scheduler/scheduler_state.h"
#include "sched/scheduler/waiting_queue.h"

namespace millrace::sched {

/// Sends running sequences back to the queue: for a decode step that finds no page, and for a waiting request of higher
/// priority. The victim is the running sequence of the lowest rank: smaller priorities first, then those admitted last.
/// It keeps its tokens and is prefilled again later. Part of Scheduler, with its thread and lifetime.
class Preemptor {
 public:
  Preemptor(SchedulerState& state, WaitingQueue& queue, AdmissionController& admission)
      : state_(state), queue_(queue), admission_(admission) {}

  /// Makes room for the queue's next sequence, under the priority policy only. Nothing happens if even all victims
  /// would not make enough.
  void make_room_for_next();
  /// Extends a decoding sequence's pages to all of its tokens, at other sequences' cost if none is free. False: it
  /// can't decode in this plan, and may be in the queue again itself.
  [[nodiscard]] bool reserve_page(Sequence& sequence);
  /// Returns the sequences sent back for want of pages or slots, since the start.
  [[nodiscard]] uint64_t retraction_count() const { return retraction_count_; }

 private:
  [[nodiscard]] Sequence* victim_for(Sequence& requester) const;
  void retract(Sequence& sequence);

  SchedulerState& state_;
  WaitingQueue& queue_;
  AdmissionController& admission_;
  uint64_t retraction_count_ = 0;
};

}  // namespace millrace::sched
