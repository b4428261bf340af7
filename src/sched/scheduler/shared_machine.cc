#include "sched/scheduler/shared_machine.h"

#include <algorithm>

namespace millrace::sched {

double Contention::slowdown(double prompt_share, double neighbours, double prompt_shares) const {
  const double others = neighbours - prompt_shares;
  return 1 + prompt_share * (prompt_by_prompt * prompt_shares + prompt_by_other * others) +
         (1 - prompt_share) * (other_by_prompt * prompt_shares + other_by_other * others);
}

double SharedMachine::processor_share(size_t running) const {
  return std::min(1.0, full_speed_runs() / static_cast<double>(running));
}

double SharedMachine::overlap_share(size_t running) const {
  if (running < 2) return 0;
  const double count = static_cast<double>(running);
  return (std::clamp(full_speed_runs(), 1.0, count) - 1) / (count - 1);
}

double SharedMachine::parallel_decodes(size_t running) const {
  const double count = static_cast<double>(running);
  const double at_once = std::min(full_speed_runs(), count);
  return at_once / contention.slowdown(0, overlap_share(running) * (count - 1), 0);
}

}  // namespace millrace::sched
