#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "async/event.h"
#include "sched/steps/step_board.h"

namespace millrace::sched {

/// The rings of one process that share experts, and their common epochs. An epoch begins when all rings have joined it.
/// It ends for all when the first leaves. Its coordinator is a word in memory. Thread-safe; outlives the boards.
class StepGroup {
 public:
  /// Receives the end of an epoch before any ring does, once per epoch, on the thread that ends it.
  using EndFn = std::function<void(uint64_t epoch, int32_t ring, const std::string& reason)>;

  StepGroup(uint32_t ring_count, uint64_t lookahead, EndFn on_end = {});

  /// A ring's part in an epoch.
  struct Membership {
    uint64_t epoch = 0;
    std::unique_ptr<StepBoard> board;
  };
  /// Waits until every ring has joined; a ring that was in an epoch has called leave() before. Throws ErrorException
  /// (kAborted) after interrupt().
  [[nodiscard]] asio::awaitable<Membership> join(uint32_t ring, async::Runtime& runtime);
  /// Ends the epoch that `ring` is in, for all rings: the others get the reason with the name of this one.
  void end(uint32_t ring, const std::string& reason);
  /// Ends an epoch by its number; nothing happens if that is over. `ring` < 0: no ring failed.
  void end_epoch(uint64_t epoch, int32_t ring, const std::string& reason);
  /// Records that `ring` has no work left in its epoch.
  void leave(uint32_t ring);
  /// Makes a join() of this ring throw, and later ones.
  void interrupt(uint32_t ring);

 private:
  class Board;
  struct Epoch;
  struct Ring {
    std::shared_ptr<Epoch> epoch;        // that it is in
    std::optional<async::Event> joined;  // while it waits
    bool interrupted = false;
  };
  void begin_if_complete();

  const uint32_t ring_count_;
  const uint64_t lookahead_;
  const EndFn on_end_;
  std::mutex mutex_;
  std::vector<Ring> rings_;  // guarded by mutex_, as the next
  std::shared_ptr<Epoch> newest_;
  uint64_t epochs_ = 0;
};

}  // namespace millrace::sched
