#pragma once

#include <cstdint>

#include "async/runtime.h"
#include "sched/head/model_info.h"
#include "sched/scheduler/scheduler_options.h"

namespace millrace::sched {

/// What a Head is built with.
struct HeadOptions {
  SchedulerOptions scheduler;
  ModelInfo model;
  uint32_t max_queued = 0;             ///< requests that may wait for a slot or pages; more end with kExhausted
  async::Duration heartbeat{};         ///< an idle ring gets an empty plan this often
  async::Duration watchdog{};          ///< a plan that takes longer, and a second, breaks the ring
  async::Duration queue_timeout{};     ///< a request that waits longer ends with kTimeout; 0: none
  async::Duration prefetch_timeout{};  ///< a request waits for its prefetch no longer; 0: no limit
  bool audit = false;                  ///< CHECKs the scheduler's invariants after every event; for simulation
  async::Duration run_timeout{};       ///< a request that runs longer ends with kTimeout; 0: none
};

}  // namespace millrace::sched
