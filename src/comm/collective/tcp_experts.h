#pragma once

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "async/event.h"
#include "comm/collective/shared_experts.h"
#include "comm/ring_experts.h"

/// The exchange of experts between rings of several processes, from host memory. docs/collectives.md is its contract.
namespace millrace::comm {

/// Some ranks of a ring: those with these numbers, of these stages.
struct RankBlock {
  int32_t first_stage = 0;
  int32_t stage_count = 1;
  int32_t first_rank = 0;
  int32_t rank_count = 1;  ///< of each of its stages

  [[nodiscard]] static RankBlock all(const SharedExperts::Shape& shape) {
    return {.first_stage = 0, .stage_count = shape.stage_count, .first_rank = 0, .rank_count = shape.rank_count};
  }
  [[nodiscard]] bool contains(int32_t stage, int32_t rank) const {
    return stage >= first_stage && stage < first_stage + stage_count && rank >= first_rank &&
           rank < first_rank + rank_count;
  }
};

struct TcpExpertsOptions {
  SharedExperts::Shape shape;
  int32_t ring = 0;  ///< of the ranks in this process
  RankBlock here;    ///< the ranks in this process
  /// The epoch that all rings have in common, whose number is part of every hello, and the listeners of all ranks.
  ExpertEpoch epoch;
  TcpLinkOptions sockets;
  /// Longest time in which the path to a peer that sends nothing may be dead.
  std::chrono::milliseconds silence{10'000};
};

/// The exchanges of the ranks of one ring in one process with all others of their stages, for one common epoch. They
/// end together. The ends share ownership. Thread-safe.
class TcpExperts {
 public:
  using AbortFn = SharedExperts::AbortFn;

  /// Connects each rank of this process with all ranks of its stage in all rings. The lower position of a pair accepts
  /// on `listener`. Runs on `runtime`, the listener's. `done` is set by this function, or by the caller to end it
  /// early: the result is kAborted then. Other errors are those of connect_lanes() and accept_lanes(), with the peer's
  /// name.
  [[nodiscard]] static asio::awaitable<Result<std::shared_ptr<TcpExperts>>> connect(async::Runtime& runtime,
                                                                                    TcpListener& listener,
                                                                                    TcpExpertsOptions options,
                                                                                    AbortFn on_abort, async::Event done,
                                                                                    async::TimePoint deadline);
  ~TcpExperts();
  TcpExperts(const TcpExperts&) = delete;
  TcpExperts& operator=(const TcpExperts&) = delete;

  /// Returns the end of a rank, each of which is taken once. It uses the threads of `backend`, which outlives it, and
  /// host copies of matrices on a device (stage_experts).
  [[nodiscard]] static std::unique_ptr<tensor::ExpertExchange> join(const std::shared_ptr<TcpExperts>& experts,
                                                                    int32_t stage, int32_t rank,
                                                                    tensor::Backend& backend);
  /// Ends all exchanges of this process, and with it those of the others: ranks of `ring` get `reason`, and those of
  /// other rings get it with the ring's name.
  void abort(int32_t ring, const std::string& reason);

 private:
  friend class TcpExpertsEnd;
  struct Connections;
  struct Fate;
  TcpExperts(TcpExpertsOptions options, AbortFn on_abort);
  [[nodiscard]] asio::awaitable<void> connect_pair(async::Runtime& runtime, TcpListener& listener, size_t stage_rank,
                                                   int32_t other, async::Event done, async::TimePoint deadline);
  [[nodiscard]] int32_t end_count() const { return options_.shape.ring_count * options_.shape.rank_count; }

  const TcpExpertsOptions options_;
  const std::unique_ptr<Fate> fate_;
  const std::unique_ptr<Connections> connections_;
};

}  // namespace millrace::comm
