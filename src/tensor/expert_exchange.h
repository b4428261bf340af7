#pragma once

#include <cstdint>
#include <string>

#include "tensor/backend.h"
#include "tensor/sum_shards.h"

namespace millrace::tensor {

/// The largest matrices of an exchange, by which it sizes its own memory.
struct ExchangeBounds {
  int64_t rows = 0;      ///< of this ring
  int64_t all_rows = 0;  ///< of all rings together
  int64_t hidden = 0;
  int64_t experts = 0;
  DType compute_dtype = DType::kBF16;
};

/// One rank's end of the exchange between all ranks of all rings that divide the experts of a stage among them. A rank
/// of ring d has the position d · ranks + rank, and owns the experts of that position's shards. All ranks make the same
/// calls in the same order, for batches of their own: begin_step(), then dispatch() and combine() for each sparse
/// layer.
///
/// These three are called inside work submitted to the rank's backend, with matrices in its memory, and wait in that
/// work. The backend of a GPU launches work on a thread of its own (cuda::CudaOptions::waits_for_rings). Each of them
/// throws CollectiveAborted with the reason once the exchange is aborted.
class ExpertExchange {
 public:
  virtual ~ExpertExchange() = default;
  [[nodiscard]] virtual RankPosition position() const = 0;
  /// Allocates the memory of calls within `bounds`. Called outside submitted work, before the first step, where the
  /// stage has sparse layers. Throws std::runtime_error when memory is short.
  virtual void reserve(const ExchangeBounds& /*bounds*/) {}
  /// Begins the step with this number. `has_rows` says whether the rank's ring has any. Returns whether some ring has;
  /// otherwise the step is over. Rings whose numbers differ end the exchange.
  [[nodiscard]] virtual bool begin_step(uint64_t step, bool has_rows) = 0;
  /// Copies x (compute) [T, H] and router_logits (f32) [T, experts] of every ring to the beginning of `all_x` and
  /// `all_logits`, ring after ring. Ranks of one ring pass equal rows. Returns the number of rows of all rings. The
  /// inputs stay unchanged until combine().
  [[nodiscard]] virtual int64_t dispatch(Matrix x, Matrix router_logits, Matrix all_x, Matrix all_logits) = 0;
  /// Writes to `sums` (f32) [T, H] the sums over all ranks of the rows of this ring. `all_sums` (f32) has what this
  /// rank's experts contribute to every row that dispatch() returned, and stays unchanged until the next call. Ranks
  /// are added pairwise, as in Collective::all_reduce, so the sum is that of the tree over shards.
  virtual void combine(Matrix all_sums, Matrix sums) = 0;
  /// Ends the exchange from any thread: waiting and later calls of all ranks throw `reason`, which other rings get with
  /// the name of this one. The first reason counts.
  virtual void abort(const std::string& reason) = 0;
};

}  // namespace millrace::tensor
