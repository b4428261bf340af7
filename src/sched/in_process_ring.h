#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "async/task_group.h"
#include "sched/head.h"
#include "sched/stage_loop.h"

namespace millrace::sched {

/// A whole ring in one process: the head and the stage loops, each on the Runtime given for it, joined by in-process
/// links. The Runtimes outlive it, and nothing runs on them any more when it is destroyed.
class InProcessRing {
 public:
  using RunnerFactory = std::function<std::unique_ptr<StageRunner>(async::Runtime& runtime)>;

  /// stage_runtimes and runners: one per stage, in order. Nothing runs before start().
  InProcessRing(async::Runtime& head_runtime, const std::vector<async::Runtime*>& stage_runtimes,
                const std::vector<RunnerFactory>& runners, const HeadOptions& head, const StageBounds& bounds);

  void start();
  /// Ends every loop; the Runtimes then run out of work.
  void stop() { head_->stop(); }
  [[nodiscard]] Head& head() { return *head_; }
  /// For a caller on whose thread all Runtimes run: whether all loops have ended.
  [[nodiscard]] bool stopped() const;

 private:
  struct Part {
    explicit Part(async::Runtime& its_runtime) : runtime(its_runtime), tasks(its_runtime) {}
    async::Runtime& runtime;
    async::TaskGroup tasks;
  };
  std::vector<std::unique_ptr<Part>> parts_;  // the head's first, then the stages'
  std::unique_ptr<Head> head_;
  std::vector<std::unique_ptr<StageLoop>> stages_;
};

}  // namespace millrace::sched
