#pragma once

#include <unordered_map>
#include <vector>

#include "async/task_group.h"
#include "cache/page_copy.h"
#include "sched/stage/stage_runner.h"

namespace millrace::sched {

/// The copies between tiers that plans ask of one stage, in one epoch of the ring. They go on beside the plans and
/// are acknowledged when they are done here and on all stages before; runs wait for the loads begun before them. Owned
/// by the stage loop, on its thread; what it starts belongs to the loop's task group, so that no copy outlives its
/// epoch.
class StageCopies {
 public:
  /// `first`: no stage before this one has to be through with a copy too.
  StageCopies(async::Runtime& runtime, bool first, StageRunner& runner, async::TaskGroup& tasks,
              uint32_t host_page_count);

  /// Answers a plan's question what is held, and starts its persists, probes and fetches: they wait for no other plan.
  void start(const std::vector<cache::PageCopy>& copies);
  /// Begins a plan's loads, when the plans before it have run and before it does. A host page that holds nothing is
  /// kData.
  void load(const std::vector<cache::PageCopy>& copies);
  /// Starts the stores of a plan whose slices have run.
  void store(const std::vector<cache::PageCopy>& copies);
  /// The epoch ends: what has not been begun with the page store is not begun any more.
  void stop();
  /// The stage before is through with these copies, whose plan may still be on its way. kData for one named twice.
  void fold(std::span<const cache::CopyAck> acks);
  /// What has ended since the last call, here and on all stages before. Waits for some; nothing after stop().
  [[nodiscard]] asio::awaitable<std::vector<cache::CopyAck>> next_acks();

 private:
  /// Copies of one kind with the store, several at once.
  struct Batch {
    const cache::PageCopy& copy;
    size_t next = 0;
    size_t good = 0;  ///< pages from the first on that are good, as far as is known
  };
  [[nodiscard]] asio::awaitable<void> finish_loads(std::vector<cache::PageCopy> loads, async::Event loaded);
  [[nodiscard]] asio::awaitable<void> run_store(cache::PageCopy copy);
  [[nodiscard]] asio::awaitable<void> run_with_page_store(cache::PageCopy copy);
  [[nodiscard]] asio::awaitable<void> copy_pages(Batch& batch);
  [[nodiscard]] asio::awaitable<bool> copy_page(const cache::PageCopy& copy, size_t index);
  void check_valid(const cache::PageCopy& copy) const;
  void set_valid(const cache::PageCopy& copy, size_t count, bool valid);
  void answer_verify(const cache::PageCopy& copy);
  void acknowledge(const cache::PageCopy& copy, size_t done);
  /// One of the two words on a copy, this stage's and that of those before.
  void merge_ack(const cache::CopyAck& ack, bool own);
  void send(const cache::CopyAck& ack);

  struct PartialAck {
    uint32_t done;
    bool own;
  };
  async::Runtime& runtime_;
  const bool first_;
  StageRunner& runner_;
  async::TaskGroup& tasks_;
  StageRunner::HostTier& tier_;  // a page is not held while something is written to it
  bool stopping_ = false;
  std::unordered_map<cache::CopyId, PartialAck> partial_acks_;  // of copies that lack the other word
  std::vector<cache::CopyAck> acks_;                            // to be sent
  async::WaitList acked_;
};

}  // namespace millrace::sched
