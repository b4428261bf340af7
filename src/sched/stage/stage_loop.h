#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "async/channel.h"
#include "async/task_group.h"
#include "comm/link.h"
#include "sched/plan/plan.h"
#include "sched/stage/copy_acks.h"
#include "sched/stage/run_watchdog.h"
#include "sched/stage/sequence_table.h"
#include "sched/stage/stage_copies.h"
#include "sched/stage/stage_inputs.h"
#include "sched/stage/stage_links.h"
#include "sched/stage/stage_runner.h"
#include "tensor/collective.h"

namespace millrace::sched {

struct StageLoopOptions {
  StageId stage;
  tensor::RankPosition position;  ///< of the rank in its stage; rank 0 is the leader
  bool first = false;
  bool last = false;
  StageBounds bounds;
  size_t window = 1;                  ///< plans that can be in flight: the bound of the batch queue
  async::Duration watchdog{};         ///< a run that takes longer since its plan arrived fails the stage; 0: no limit
  std::atomic<bool>* busy = nullptr;  ///< if set, the loop keeps here what LocalStages::busy() returns; outlives it

  [[nodiscard]] bool is_leader() const { return position.rank == 0; }
  /// Returns whether this rank samples and sends the output to the head.
  [[nodiscard]] bool samples() const { return last && is_leader(); }
};

/// One rank of a stage in one epoch of the ring. It receives plans, passes them on at once, and runs them in order. It
/// sends activations to the next stage, or outputs to the head. It decides nothing. Owned by LocalStages, on its rank's
/// Runtime. When a link closes or something fails, run() ends the exchanges between the ranks and closes all links with
/// the reason, which the head receives. Then it returns.
class StageLoop {
 public:
  StageLoop(async::Runtime& runtime, StageLoopOptions options, StageRunner& runner, StageLinks links);

  /// Runs the epoch to its end. Called once.
  [[nodiscard]] asio::awaitable<void> run();
  /// Ends run(); waits for a neighbour end with `reason`. A run under way on the device is awaited.
  void stop(const std::string& reason) { fail(reason); }
  /// Returns why run() ended: the first failure.
  [[nodiscard]] const std::string& end_reason() const { return end_reason_; }

 private:
  struct QueuedPlan {
    Plan plan;
    async::TimePoint arrived;
  };
  [[nodiscard]] asio::awaitable<void> receive_plans();
  [[nodiscard]] asio::awaitable<void> execute_plans();
  [[nodiscard]] asio::awaitable<void> receive_acks(size_t source, comm::LinkReceiver& from);
  [[nodiscard]] asio::awaitable<void> receive_reports(comm::LinkReceiver& from_rank);
  [[nodiscard]] asio::awaitable<void> send_acks();
  [[nodiscard]] asio::awaitable<void> execute(Plan plan, async::TimePoint arrived);
  [[nodiscard]] asio::awaitable<void> step_without_rows(const Plan& plan, async::TimePoint arrived);
  [[nodiscard]] asio::awaitable<StageRunner::Result> run_batch(const Plan& plan, const StageBatch& batch,
                                                               async::TimePoint arrived, StageReport& report);
  [[nodiscard]] asio::awaitable<StageRunner::Result> run_named(const StageBatch& batch,
                                                               std::span<const std::byte> input);
  void pass_on(const Plan& plan);
  void keep_report(const StageReport& report);
  [[nodiscard]] asio::awaitable<void> send_activations(const Plan& plan, std::span<const std::byte> activations);
  void send_output(const Plan& plan, std::vector<SliceOutput> slices, std::vector<StageReport> reports);
  [[nodiscard]] async::TimePoint arrival_of(const comm::Message& message) const;
  void fail(const std::string& reason);

  async::Runtime& runtime_;
  const StageLoopOptions options_;
  StageRunner& runner_;
  StageLinks links_;
  StageInputs inputs_;
  SequenceTable table_;
  async::TaskGroup tasks_;
  CopyAcks acks_;
  StageCopies copies_;
  RunWatchdog watchdog_;
  async::Channel<QueuedPlan> batch_queue_;
  std::vector<StageReport> unsent_reports_;  // ride on the next plan that passes
  std::deque<comm::Work> sends_;             // that may still read the runner's buffers, the oldest first
  RingEpoch epoch_;                          // of the plans
  size_t open_slots_ = 0;                    // after the newest plan that has come
  std::string end_reason_;
};

}  // namespace millrace::sched
