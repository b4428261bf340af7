#pragma once

#include <string>

#include "tensor/backend.h"
#include "tensor/sum_shards.h"

namespace millrace::tensor {

/// One rank's end of the exchanges between the ranks of a stage. All ranks make the same calls in the same order.
///
/// Calls are made inside work submitted to the rank's backend, in stream order with its ops. A CPU rank waits in the
/// call; a GPU rank launches. Every call throws std::runtime_error with the reason once the group is aborted.
class Collective {
 public:
  virtual ~Collective() = default;
  [[nodiscard]] virtual RankPosition position() const = 0;
  /// Replaces `sums` (f32) [T, N] by its sum over all ranks. Ranks are added pairwise by recursive doubling: first
  /// neighbours, then pairs, then fours. All ranks get the same bits, those of the tree over shards.
  virtual void all_reduce(Matrix sums) = 0;
  /// Writes to `out` [T, N · size] the slices [T, N] of all ranks side by side, in the order of ranks.
  virtual void all_gather(Matrix slice, Matrix out) = 0;
  /// Ends the group from any thread: waiting and later calls of all ranks throw `reason`. The first reason counts.
  virtual void abort(const std::string& reason) = 0;
};

}  // namespace millrace::tensor
