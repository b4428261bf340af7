#pragma once

#include "base/ids.h"
#include "tensor/replay.h"

namespace millrace::sched {

/// Counts of a stage's decode steps by how they were launched on its device.
struct StageGraphStats {
  StageId stage;
  uint32_t rank = 0;
  tensor::GraphStats::Counts counts{};
};

}  // namespace millrace::sched
