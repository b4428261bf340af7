#pragma once

#include <vector>

#include "async/task_group.h"
#include "cache/page_copy.h"
#include "sched/stage/copy_acks.h"
#include "sched/stage/stage_bounds.h"
#include "sched/stage/stage_runner.h"

namespace millrace::sched {

/// Runs the copies between tiers that plans ask of one rank of a stage, and tracks which host pages hold valid data.
/// Copies run concurrently with plans; runs wait for the loads begun before them. Owned by the stage loop for one
/// epoch, on its thread. What it starts belongs to the loop's task group, so that no copy outlives its epoch.
class StageCopies {
 public:
  StageCopies(async::Runtime& runtime, StageRunner& runner, async::TaskGroup& tasks, CopyAcks& acks,
              const StageBounds& bounds);

  /// Answers a plan's verify, and starts its persists, probes and fetches, which wait for no other plan.
  void start(const std::vector<cache::PageCopy>& copies);
  /// Begins a plan's loads, after the plans before it have run and before it runs. Throws kData for a host page without
  /// valid data.
  void load(const std::vector<cache::PageCopy>& copies);
  /// Starts the stores of a plan whose slices have run.
  void store(const std::vector<cache::PageCopy>& copies);
  /// Starts no further transfer with the page store: the epoch ends. Those under way are given up soon.
  void stop();

 private:
  /// The progress of one copy with the page store, several pages of which are under way at once.
  struct Batch {
    const cache::PageCopy& copy;
    size_t next = 0;
    size_t good = 0;  ///< pages from the first on that are good, as far as is known
  };
  [[nodiscard]] asio::awaitable<void> finish_loads(std::vector<cache::PageCopy> loads, async::Event loaded);
  [[nodiscard]] asio::awaitable<void> run_store(cache::PageCopy copy);
  [[nodiscard]] asio::awaitable<void> run_with_page_store(cache::PageCopy copy);
  [[nodiscard]] asio::awaitable<void> give_up_late_transfers();
  [[nodiscard]] asio::awaitable<void> copy_pages(Batch& batch);
  [[nodiscard]] asio::awaitable<void> find_last_page(Batch& batch);
  [[nodiscard]] bool probes_snapshots(const cache::PageCopy& copy) const;
  [[nodiscard]] asio::awaitable<bool> copy_page(const cache::PageCopy& copy, size_t index);
  [[nodiscard]] cache::PageStore* store_of(const cache::PageCopy& copy) const;
  [[nodiscard]] bool has_store() const;
  void check_valid(const cache::PageCopy& copy) const;
  void set_valid(const cache::PageCopy& copy, size_t count, bool valid);
  void answer_verify(const cache::PageCopy& copy);

  async::Runtime& runtime_;
  StageRunner& runner_;
  async::TaskGroup& tasks_;
  CopyAcks& acks_;
  const std::vector<cache::WindowPool> windows_;
  StageRunner::HostTier& tier_;  // a page is not valid while it is written to
  bool stopping_ = false;
  size_t transfers_ = 0;  // copies with the page store under way
  async::WaitList transfer_ended_;
};

}  // namespace millrace::sched
