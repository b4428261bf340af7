#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/ring_experts.h"
#include "sched/steps/step_board.h"

namespace millrace::sched {

/// The common epochs of rings that share experts, as the rings of one process take part in them. An epoch begins when
/// all rings have joined it, and ends for all when the first leaves. Thread-safe; outlives the boards.
class StepEpochs {
 public:
  /// Receives the end of an epoch before any ring of this process does, once per epoch, on the thread that ends it.
  using EndFn = std::function<void(uint64_t epoch, int32_t ring, const std::string& reason)>;
  /// A ring's part in an epoch.
  struct Membership {
    uint64_t epoch = 0;
    std::vector<comm::RingExperts> rings;  ///< as each ring has given to join()
    std::unique_ptr<StepBoard> board;
  };

  virtual ~StepEpochs() = default;
  /// Waits until every ring has joined; a ring that was in an epoch has called leave() before. `experts`: what the
  /// other rings get to know of this one. Throws ErrorException (kAborted) after interrupt().
  [[nodiscard]] virtual asio::awaitable<Membership> join(uint32_t ring, async::Runtime& runtime,
                                                         comm::RingExperts experts) = 0;
  /// Ends the epoch that `ring` is in, for all rings: the others get the reason with the name of this one.
  virtual void end(uint32_t ring, const std::string& reason) = 0;
  /// Ends an epoch by its number; nothing happens if that is over. `ring` < 0: no ring failed.
  virtual void end_epoch(uint64_t epoch, int32_t ring, const std::string& reason) = 0;
  /// Records that `ring` has no work left in its epoch.
  virtual void leave(uint32_t ring) = 0;
  /// Makes a join() of this ring throw, and later ones.
  virtual void interrupt(uint32_t ring) = 0;
};

}  // namespace millrace::sched
