#pragma once

#include <string>

#include "base/ids.h"
#include "tensor/collective.h"

namespace millrace::sched {

/// Returns "stage 1", or "stage 1 rank 0" where stages have several ranks.
[[nodiscard]] std::string rank_name(StageId stage, tensor::RankPosition position);

}  // namespace millrace::sched
