#pragma once

#include <string>
#include <vector>

#include "async/task_group.h"
#include "comm/link.h"
#include "sched/steps/step_board.h"
#include "sched/steps/step_coordinator.h"

/// The step coordinator over links, for rings in several processes. Each participant has two links of its own with the
/// coordinator. A message has no payload: its plan number is the step.
namespace millrace::sched {

/// The coordinator of one epoch. When a participant's link ends, or stop() is called, all participants get the reason
/// and run() returns. Used on one thread.
class StepServer {
 public:
  StepServer(async::Runtime& runtime, uint64_t lookahead) : coordinator_(lookahead), tasks_(runtime) {}

  /// Adds a participant before run(). Reasons name the participant by `name`: "ring 1".
  void add(std::string name, comm::Link link) { participants_.push_back({std::move(name), std::move(link)}); }
  /// Serves the epoch. Called once.
  [[nodiscard]] asio::awaitable<void> run();
  void stop(const std::string& reason);
  [[nodiscard]] uint64_t step() const { return coordinator_.step(); }

 private:
  struct Participant {
    std::string name;
    comm::Link link;
  };
  [[nodiscard]] asio::awaitable<void> serve(size_t index);

  StepCoordinator coordinator_;
  std::vector<Participant> participants_;
  bool stopped_ = false;
  async::TaskGroup tasks_;
};

/// Returns the board of a participant over its links with a StepServer.
[[nodiscard]] std::unique_ptr<StepBoard> make_remote_board(comm::Link link);

}  // namespace millrace::sched
