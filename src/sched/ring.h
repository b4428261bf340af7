#pragma once

#include <memory>
#include <string>

#include "async/task_group.h"
#include "sched/head.h"
#include "sched/local_stages.h"

namespace millrace::sched {

/// The head's ends of a ring that has formed.
struct RingEnds {
  std::unique_ptr<comm::LinkSender> to_first_stage;
  std::unique_ptr<comm::LinkReceiver> from_last_stage;
};

/// Makes generations of a ring, one after another. Used on the head's Runtime.
class RingFormer {
 public:
  virtual ~RingFormer() = default;
  /// Waits until every stage is there and runs in `generation`. Throws ErrorException when that failed; dissolve() is
  /// called then too.
  [[nodiscard]] virtual asio::awaitable<RingEnds> form(Generation generation) = 0;
  /// Returns when no stage runs in `generation` any more.
  [[nodiscard]] virtual asio::awaitable<void> dissolve(Generation generation, std::string reason) = 0;
  /// Makes a form() under way throw, and those to come.
  virtual void interrupt() = 0;
};

/// The ring of one process: its stages between two in-process links.
class InProcessFormer final : public RingFormer {
 public:
  InProcessFormer(async::Runtime& head_runtime, LocalStages& stages, const RingShape& shape)
      : runtime_(head_runtime), stages_(stages), shape_(shape) {}
  [[nodiscard]] asio::awaitable<RingEnds> form(Generation generation) override;
  [[nodiscard]] asio::awaitable<void> dissolve(Generation generation, std::string reason) override;
  void interrupt() override {}

 private:
  async::Runtime& runtime_;
  LocalStages& stages_;
  const RingShape shape_;
};

/// The head and the coroutine that keeps a ring formed under it: after a break it forms the next generation by itself.
/// The Runtime and the former outlive it, and nothing runs on the Runtime any more when it is destroyed.
class Ring {
 public:
  Ring(async::Runtime& head_runtime, const HeadOptions& head, RingFormer& former);

  void start();
  /// From any thread: ends every loop; the Runtimes then run out of work.
  void stop();
  [[nodiscard]] Head& head() { return head_; }
  /// For a caller on whose thread all Runtimes run: whether everything has ended.
  [[nodiscard]] bool stopped() const { return tasks_.size() == 0; }

 private:
  [[nodiscard]] asio::awaitable<void> keep_formed();
  [[nodiscard]] asio::awaitable<std::string> run_generation(Generation generation);

  async::Runtime& runtime_;
  RingFormer& former_;
  Head head_;
  std::string obstacle_;  // why the last generation did not form; empty: it did
  async::TaskGroup tasks_;
};

}  // namespace millrace::sched
