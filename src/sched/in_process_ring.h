#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "async/task_group.h"
#include "sched/head.h"
#include "sched/local_stages.h"

namespace millrace::sched {

/// A whole ring in one process: the head, the local stages, and the coroutine that forms the ring and forms it again
/// when it breaks. The Runtimes outlive it, and nothing runs on them any more when it is destroyed.
class InProcessRing {
 public:
  /// stage_runtimes and runners: one per stage, in order. Nothing runs before start().
  InProcessRing(async::Runtime& head_runtime, std::vector<async::Runtime*> stage_runtimes,
                const std::vector<LocalStages::RunnerFactory>& runners, const HeadOptions& head,
                const RingShape& shape);

  void start();
  /// Ends every loop; the Runtimes then run out of work.
  void stop() { head_.stop(); }
  [[nodiscard]] Head& head() { return head_; }
  /// For a caller on whose thread all Runtimes run: whether everything has ended.
  [[nodiscard]] bool stopped() const { return tasks_.size() == 0; }

 private:
  [[nodiscard]] asio::awaitable<void> keep_formed();

  async::Runtime& runtime_;
  const RingShape shape_;
  Head head_;
  LocalStages stages_;
  async::TaskGroup tasks_;
};

}  // namespace millrace::sched
