#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sched/plan/concurrency.h"
#include "sched/scheduler/scheduler_options.h"

/// What running sequences need of the cache groups' pools. Admission goes by it, and the log at start reports it.
namespace millrace::sched {

/// Returns the pages of a window group for which admission keeps room while a sequence runs that becomes `tokens` long:
/// those that it keeps between its plans, with those of rejected drafts, and those that a decode step adds.
[[nodiscard]] size_t running_window_pages(const SchedulerOptions& options, const WindowSpec& spec, uint64_t tokens);
/// Returns the pages of a window group for which admission keeps room besides, for the prompts of a plan.
[[nodiscard]] size_t prompt_window_pages(const SchedulerOptions& options, const WindowSpec& spec);

/// Returns how many requests of `tokens` tokens have room at once.
[[nodiscard]] Concurrency concurrency_at(const SchedulerOptions& options, uint32_t tokens);
/// Returns the concurrency of short and long requests, and of those that fill the context; by length.
[[nodiscard]] std::vector<Concurrency> concurrency(const SchedulerOptions& options);

}  // namespace millrace::sched
