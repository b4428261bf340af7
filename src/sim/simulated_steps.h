#pragma once

#include <memory>
#include <string>

#include "async/task_group.h"
#include "async/virtual_runtime.h"
#include "sched/steps/remote_step_group.h"
#include "sched/steps/step_server.h"
#include "sim/simulated_link.h"

namespace millrace::sim {

/// The connection between the process of the step coordinator and that of one ring: messages take time, and the
/// connection may break. It is made again after a while. Owned by SimulatedExperts.
class SimulatedSteps {
 public:
  /// `group` is that of the coordinator's process, and `on_end` acts as that of a RemoteStepGroup.
  SimulatedSteps(async::VirtualWorld& world, sched::StepGroup& group, uint32_t ring, uint32_t ring_count,
                 const SimulatedLinkOptions& links, sched::StepEpochs::EndFn on_end);
  ~SimulatedSteps();

  /// Returns the epochs as the ring's process sees them.
  [[nodiscard]] sched::StepEpochs& epochs() { return steps_; }
  /// Breaks the connection for `reason`, from any virtual thread.
  void break_off(const std::string& reason);
  /// Breaks the connection, which is not made again.
  void stop();

 private:
  struct Connection;
  [[nodiscard]] asio::awaitable<void> run();
  [[nodiscard]] asio::awaitable<void> serve_ring(std::shared_ptr<Connection> connection);
  [[nodiscard]] asio::awaitable<void> serve_front(std::shared_ptr<Connection> connection);

  async::Runtime& front_;
  async::Runtime& ring_thread_;
  sched::StepGroup& group_;
  const uint32_t ring_;
  const SimulatedLinkOptions links_;
  sched::RemoteStepGroup steps_;
  std::shared_ptr<Connection> connection_;  // the newest
  bool stopping_ = false;
  async::TaskGroup front_tasks_;
  async::TaskGroup ring_tasks_;
};

}  // namespace millrace::sim
