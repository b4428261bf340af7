#pragma once

#include <string>

#include "async/task_group.h"
#include "sched/head/head.h"
#include "sched/ring/ring_builder.h"

namespace millrace::sched {

/// The head and the coroutine that keeps a ring built for it: after a break it builds the next epoch by itself. Used on
/// the head's Runtime unless stated otherwise. The Runtime and the ring builder outlive it, and nothing runs on the
/// Runtime any more when it is destroyed.
class Ring {
 public:
  Ring(async::Runtime& head_runtime, const HeadOptions& head, RingBuilder& ring_builder);

  /// Starts the head and the first epoch. Called once, from any thread.
  void start();
  /// Ends every loop; the Runtimes then run out of work. May be called from any thread.
  void stop();
  [[nodiscard]] Head& head() { return head_; }
  /// Returns whether everything has ended, for a caller on whose thread all Runtimes run.
  [[nodiscard]] bool stopped() const { return tasks_.size() == 0; }

 private:
  [[nodiscard]] asio::awaitable<void> keep_built();
  [[nodiscard]] asio::awaitable<std::string> run_epoch(RingEpoch epoch);

  async::Runtime& runtime_;
  RingBuilder& ring_builder_;
  Head head_;
  std::string build_failure_;  // why the last epoch was not built; empty: it was
  async::TaskGroup tasks_;
};

}  // namespace millrace::sched
