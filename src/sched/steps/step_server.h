#pragma once

#include <memory>
#include <string>

#include "async/task_group.h"
#include "sched/steps/step_group.h"
#include "sched/steps/step_messages.h"

namespace millrace::sched {

/// The member of a StepGroup that stands for one ring of another process, for as long as that ring is connected. Its
/// counterpart is a RemoteStepGroup. Used on one Runtime; destroyed after close().
class StepServer {
 public:
  /// `host`: where other processes reach the ring's head. `send` sends to the ring's process. `group` outlives the
  /// server.
  StepServer(async::Runtime& runtime, StepGroup& group, uint32_t ring, std::string host, SendStepMessage send)
      : runtime_(runtime),
        group_(group),
        ring_(ring),
        host_(std::move(host)),
        send_(std::move(send)),
        tasks_(runtime) {}

  /// Acts on a message of the ring. Throws ErrorException (kData) for one that cannot come now.
  void handle(StepMessage message);
  /// Ends the ring's part for `reason`, which the other rings get with its name: the connection is gone.
  [[nodiscard]] asio::awaitable<void> close(std::string reason);

 private:
  [[nodiscard]] asio::awaitable<void> run_epoch(comm::RingExperts experts);

  async::Runtime& runtime_;
  StepGroup& group_;
  const uint32_t ring_;
  const std::string host_;
  const SendStepMessage send_;
  bool takes_part_ = false;  // from its join until it has left
  uint64_t epoch_ = 0;       // 0: none has begun since the join
  std::shared_ptr<StepBoard> board_;
  bool closed_ = false;
  async::TaskGroup tasks_;
};

}  // namespace millrace::sched
