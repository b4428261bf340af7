#include "sched/stage/rank_name.h"

#include <fmt/format.h>

namespace millrace::sched {

std::string rank_name(StageId stage, tensor::RankPosition position) {
  if (position.size == 1) return fmt::format("stage {}", stage.value());
  return fmt::format("stage {} rank {}", stage.value(), position.rank);
}

}  // namespace millrace::sched
