#include "base/thread_affinity.h"

namespace millrace {

ScopedAffinity::ScopedAffinity(std::span<const int> processors) {
  if (processors.empty() || sched_getaffinity(0, sizeof(before_), &before_) != 0) return;
  cpu_set_t wanted;
  CPU_ZERO(&wanted);
  for (const int processor : processors) CPU_SET(static_cast<size_t>(processor), &wanted);
  changed_ = sched_setaffinity(0, sizeof(wanted), &wanted) == 0;
}

ScopedAffinity::~ScopedAffinity() {
  if (changed_) (void)sched_setaffinity(0, sizeof(before_), &before_);
}

}  // namespace millrace
