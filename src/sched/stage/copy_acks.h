#pragma once

#include <span>
#include <unordered_map>
#include <vector>

#include "async/wait_list.h"
#include "cache/page_copy.h"

namespace millrace::sched {

/// Merges a rank's acknowledgements of page copies with those of its sources: the stage before, and on the leader the
/// other ranks of the stage. When all have come, a copy is acknowledged with the smallest number of good pages. Owned
/// by the stage loop for one epoch, on its thread.
class CopyAcks {
 public:
  /// Makes acks that wait for `source_count` sources; with none, the own acknowledgements are complete at once.
  CopyAcks(async::Runtime& runtime, size_t source_count) : source_count_(source_count), ready_signal_(runtime) {}

  /// Adds the acknowledgement of this rank, which has finished a copy with `done` good pages.
  void add_own(cache::CopyId copy, size_t done);
  /// Adds a source's acknowledgements of copies, whose plan may still be on its way. Throws kData for a copy that it
  /// acknowledges twice.
  void add(size_t source, std::span<const cache::CopyAck> acks);
  /// Returns the acknowledgements that became complete since the last call. Waits for some; returns none after stop().
  [[nodiscard]] asio::awaitable<std::vector<cache::CopyAck>> next();
  /// Ends the waits of next().
  void stop();

 private:
  struct PartialAck {
    uint32_t done = UINT32_MAX;
    size_t count = 0;      // of the acknowledgements that have come
    uint64_t sources = 0;  // of these, a bit each
  };
  void merge(const cache::CopyAck& ack, size_t source);

  const size_t source_count_;  // besides this rank, whose number as a source is this one
  bool stopping_ = false;
  std::unordered_map<cache::CopyId, PartialAck> partial_;  // some of the acknowledgements have come
  std::vector<cache::CopyAck> complete_;                   // to be sent
  async::WaitList ready_signal_;
};

}  // namespace millrace::sched
