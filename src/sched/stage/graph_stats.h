#pragma once

#include "base/ids.h"
#include "tensor/replay.h"

namespace millrace::sched {

/// How the decode steps of a stage came to its device.
struct StageGraphStats {
  StageId stage;
  tensor::GraphStats::Counts counts{};
};

}  // namespace millrace::sched
