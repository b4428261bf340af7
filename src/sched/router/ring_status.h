#pragma once

#include <span>
#include <string>
#include <vector>

#include "sched/head/engine.h"

/// What several rings are together, for clients that see one engine; plain functions.
namespace millrace::sched {

/// Returns the status of rings that are one engine. It is ready while a ring has no fault. `faults` says per ring why
/// it takes no requests; empty: it takes them.
[[nodiscard]] EngineStatus combine_statuses(std::span<const EngineStatus> rings, std::span<const std::string> faults);
/// Returns the model as all rings can serve it: the smallest context, all pages.
[[nodiscard]] ModelInfo combine_models(std::span<const ModelInfo> rings);

}  // namespace millrace::sched
