#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "async/channel.h"
#include "async/task_group.h"
#include "comm/link.h"
#include "sched/plan/plan.h"
#include "sched/stage/sequence_table.h"
#include "sched/stage/stage_copies.h"
#include "sched/stage/stage_inputs.h"
#include "sched/stage/stage_runner.h"

namespace millrace::sched {

struct StageLoopOptions {
  StageId stage;
  bool first = false;
  bool last = false;
  StageBounds bounds;
  size_t window = 1;           ///< plans that can be in flight: the bound of the batch queue
  async::Duration watchdog{};  ///< a run that goes on so long after its plan came fails the stage; 0: none does
};

/// One stage in one epoch of the ring: receives plans and passes them on at once, runs them in order, sends
/// activations on, or on the last stage the output to the head. Decides nothing. Lives on its stage's Runtime; run()
/// ends when the link before it closes or something fails, and then closes the link behind it with the reason, so that
/// the head learns it.
class StageLoop {
 public:
  StageLoop(async::Runtime& runtime, StageLoopOptions options, StageRunner& runner,
            std::unique_ptr<comm::LinkReceiver> upstream, std::unique_ptr<comm::LinkSender> downstream);
  ~StageLoop();

  [[nodiscard]] asio::awaitable<void> run();
  /// Ends run(); what waits for a neighbour ends with `reason`. A run under way on the device is awaited.
  void stop(const std::string& reason) { fail(reason); }
  /// Why run() ended: the first failure.
  [[nodiscard]] const std::string& end_reason() const { return end_reason_; }

 private:
  struct QueuedPlan {
    Plan plan;
    async::TimePoint arrived;
  };
  struct Running {
    PlanId plan;
    async::TimePoint arrived;
    async::TimePoint begun;
    std::shared_ptr<comm::Arrival> arrival;  // as in Message
  };
  [[nodiscard]] asio::awaitable<void> receive_plans();
  [[nodiscard]] asio::awaitable<void> execute_plans();
  [[nodiscard]] asio::awaitable<void> receive_acks();
  [[nodiscard]] asio::awaitable<void> send_acks();
  [[nodiscard]] asio::awaitable<void> execute(Plan plan, async::TimePoint arrived);
  void send_output(Plan plan, std::vector<SliceOutput> slices);
  [[nodiscard]] async::TimePoint arrival_of(const comm::Message& message) const;
  void fail(const std::string& reason);
  void arm_watchdog();
  void check_watchdog();

  async::Runtime& runtime_;
  const StageLoopOptions options_;
  StageRunner& runner_;
  std::unique_ptr<comm::LinkReceiver> upstream_;
  std::unique_ptr<comm::LinkSender> downstream_;
  StageInputs inputs_;
  SequenceTable table_;
  async::TaskGroup tasks_;
  StageCopies copies_;
  async::Channel<QueuedPlan> batch_queue_;
  std::vector<StageReport> unsent_reports_;  // ride on the next plan that passes
  std::deque<comm::Work> sends_;             // that are not known to have left the runner's buffers, the oldest first
  RingEpoch epoch_;                          // of the plans
  std::string end_reason_;
  std::optional<Running> running_;
  std::optional<async::TimerId>
      watchdog_timer_;  // one timer for all plans: it looks again when the present one will be late
};

}  // namespace millrace::sched
