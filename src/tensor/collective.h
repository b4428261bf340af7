#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "tensor/backend.h"
#include "tensor/sum_shards.h"

namespace millrace::tensor {

/// The exception of calls in a group that was aborted, with the reason of the first abort.
struct CollectiveAborted : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What a device needs to open one rank's end of a group (Backend::open_collective).
struct CollectiveOptions {
  RankPosition position;
  std::vector<std::byte> id;  ///< Backend::make_channel_id of rank 0, equal on all ranks
  std::string name;           ///< of the group, for error messages: "the ranks of stage 1"
  size_t max_bytes = 0;       ///< of the largest result of a call; larger ones may wait for the device
  std::chrono::milliseconds open_timeout{30'000};
};

/// One rank's end of the exchanges between the ranks of a stage. All ranks make the same calls in the same order.
///
/// Calls are made inside work submitted to the rank's backend, in stream order with its ops. A CPU rank waits in the
/// call; a GPU rank launches. Every call throws CollectiveAborted with the reason once the group is aborted.
class Collective {
 public:
  virtual ~Collective() = default;
  [[nodiscard]] virtual RankPosition position() const = 0;
  /// Replaces `sums` (f32) [T, N] by its sum over all ranks. Ranks are added pairwise by recursive doubling: first
  /// neighbours, then pairs, then fours. All ranks get the same bits, those of the tree over shards. The payload of a
  /// NaN may differ from that of the tree.
  virtual void all_reduce(Matrix sums) = 0;
  /// Replaces integers [T, N] by their sum over all ranks, which an int32 holds. They travel as they are, whatever the
  /// dtype of other sums.
  virtual void all_reduce(IntMatrix sums) = 0;
  /// Writes to `out` [T, N · size] the slices [T, N] of all ranks side by side, in the order of ranks.
  virtual void all_gather(Matrix slice, Matrix out) = 0;
  /// Ends the group from any thread: waiting and later calls of all ranks throw `reason`. The first reason counts.
  virtual void abort(const std::string& reason) = 0;
};

}  // namespace millrace::tensor
