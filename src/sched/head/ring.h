#pragma once

#include <memory>
#include <string>

#include "async/task_group.h"
#include "sched/head/head.h"
#include "sched/stage/local_stages.h"

namespace millrace::sched {

/// The head's ends of a ring that has formed.
struct RingEnds {
  std::unique_ptr<comm::LinkSender> to_first_stage;
  std::unique_ptr<comm::LinkReceiver> from_last_stage;
};

/// Makes epochs of a ring, one after another. Used on the head's Runtime.
class RingBuilder {
 public:
  virtual ~RingBuilder() = default;
  /// Waits until every stage is there and runs in `epoch`. Throws ErrorException when that failed; tear_down() is
  /// called then too.
  [[nodiscard]] virtual asio::awaitable<RingEnds> build(RingEpoch epoch) = 0;
  /// Returns when no stage runs in `epoch` any more.
  [[nodiscard]] virtual asio::awaitable<void> tear_down(RingEpoch epoch, std::string reason) = 0;
  /// Makes a build() under way throw, and those to come.
  virtual void interrupt() = 0;
};

/// The ring of one process: its stages between two in-process links.
class InProcessRingBuilder final : public RingBuilder {
 public:
  InProcessRingBuilder(async::Runtime& head_runtime, LocalStages& stages, const RingConfig& shape)
      : runtime_(head_runtime), stages_(stages), shape_(shape) {}
  [[nodiscard]] asio::awaitable<RingEnds> build(RingEpoch epoch) override;
  [[nodiscard]] asio::awaitable<void> tear_down(RingEpoch epoch, std::string reason) override;
  void interrupt() override {}

 private:
  async::Runtime& runtime_;
  LocalStages& stages_;
  const RingConfig shape_;
};

/// The head and the coroutine that keeps a ring formed under it: after a break it forms the next epoch by itself.
/// The Runtime and the ring_builder outlive it, and nothing runs on the Runtime any more when it is destroyed.
class Ring {
 public:
  Ring(async::Runtime& head_runtime, const HeadOptions& head, RingBuilder& ring_builder);

  void start();
  /// From any thread: ends every loop; the Runtimes then run out of work.
  void stop();
  [[nodiscard]] Head& head() { return head_; }
  /// For a caller on whose thread all Runtimes run: whether everything has ended.
  [[nodiscard]] bool stopped() const { return tasks_.size() == 0; }

 private:
  [[nodiscard]] asio::awaitable<void> keep_built();
  [[nodiscard]] asio::awaitable<std::string> run_epoch(RingEpoch epoch);

  async::Runtime& runtime_;
  RingBuilder& ring_builder_;
  Head head_;
  std::string build_failure_;  // why the last epoch did not form; empty: it did
  async::TaskGroup tasks_;
};

}  // namespace millrace::sched
