#pragma once

#include <string>

#include "base/result.h"
#include "cache/page_pool.h"
#include "cluster/messages.h"
#include "sched/stage/local_stages.h"

namespace millrace::cluster {

/// Makes the stages of one node around weights that are loaded, and measures the memory for their page pools. Its
/// functions block: they are called on a LoaderThread, one at a time, never while stages run.
class PoolHost {
 public:
  virtual ~PoolHost() = default;
  /// Frees the pools, if there are any, and with them the stages. Returns what load() would, with the memory that is
  /// available now.
  [[nodiscard]] virtual Result<Loaded> measure() = 0;
  /// Returns the stages with pools of these sizes, in a ring with this fingerprint. Their control Runtime is that of
  /// the Member or Coordinator. The same arguments give the same stages; others make new ones around the same weights.
  [[nodiscard]] virtual Result<sched::LocalStages*> stages(const Assignment& assignment, cache::PoolSizes pages,
                                                           const std::string& fingerprint) = 0;
};

/// A pool host that also loads the weights, on a node other than the head's. Outlives the Member.
class StageHost : public PoolHost {
 public:
  /// Loads the weights that the assignment names, unless it has exactly those already. Pools that were made for the
  /// same ring stay, and are reported.
  [[nodiscard]] virtual Result<Loaded> load(const Assignment& assignment) = 0;
};

}  // namespace millrace::cluster
