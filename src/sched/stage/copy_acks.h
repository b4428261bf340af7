#pragma once

#include <span>
#include <unordered_map>
#include <vector>

#include "async/wait_list.h"
#include "cache/page_copy.h"

namespace millrace::sched {

/// Merges this stage's acknowledgements of page copies with those of the stages before it. When both have come, a copy
/// is acknowledged downstream with the smaller number of good pages. Owned by the stage loop for one epoch, on its
/// thread.
class CopyAcks {
 public:
  /// The first stage has no stage before it, so that its own acknowledgements are complete at once.
  CopyAcks(async::Runtime& runtime, bool first) : first_(first), ready_signal_(runtime) {}

  /// This stage has finished a copy with `done` good pages.
  void add_own(cache::CopyId copy, size_t done);
  /// The stage before has acknowledged these copies, whose plan may still be on its way. Throws kData for a copy that
  /// is acknowledged twice.
  void add_upstream(std::span<const cache::CopyAck> acks);
  /// Returns the acknowledgements that became complete since the last call. Waits for some; returns none after stop().
  [[nodiscard]] asio::awaitable<std::vector<cache::CopyAck>> next();
  /// Ends the waits of next().
  void stop();

 private:
  struct PartialAck {
    uint32_t done = 0;
    bool own = false;
  };
  void merge(const cache::CopyAck& ack, bool own);
  void complete(const cache::CopyAck& ack);

  const bool first_;
  bool stopping_ = false;
  std::unordered_map<cache::CopyId, PartialAck> partial_;  // one of the two acknowledgements has come
  std::vector<cache::CopyAck> complete_;                   // to be sent
  async::WaitList ready_signal_;
};

}  // namespace millrace::sched
