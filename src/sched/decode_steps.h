#pragma once

#include "base/ids.h"
#include "tensor/replay.h"

namespace millrace::sched {

/// How the decode steps of a stage came to its device.
struct StageDecodeSteps {
  StageId stage;
  tensor::DecodeSteps::Counts counts{};
};

}  // namespace millrace::sched
