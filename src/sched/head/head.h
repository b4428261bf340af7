#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "async/task_group.h"
#include "comm/link.h"
#include "sched/head/engine.h"
#include "sched/head/flush_queue.h"
#include "sched/head/head_options.h"
#include "sched/head/output_delivery.h"
#include "sched/head/profile_log.h"
#include "sched/head/request_intake.h"
#include "sched/head/ring_connection.h"
#include "sched/head/ring_stats.h"
#include "sched/scheduler/scheduler.h"
#include "sched/steps/step_participant.h"

namespace millrace::sched {

/// The turn loop: it asks the scheduler for plans while the window has room, sends them into the ring, books the
/// outputs and delivers them. It also carries out the controls that the intake passes on. Owned by Ring. Engine's
/// functions may be called from any thread; everything else happens on the head's own Runtime. Created before and
/// destroyed after all TokenStreams.
class Head final : public Engine {
 public:
  Head(async::Runtime& runtime, HeadOptions options);

  /// Runs until stop().
  [[nodiscard]] asio::awaitable<void> run();
  /// Refuses new requests, ends those in flight as kAborted and closes the ring. run() then returns. May be called from
  /// any thread.
  void stop();
  /// Notes that the head stops soon: a ring that breaks before is no fault. May be called from any thread.
  void expect_stop() { stop_expected_ = true; }

  /// Sends plans to `to_first_stage` from now on. No other ring is attached. The head is ready when the stages have
  /// been timed, or when the first empty plan has come back. A ring that shares experts has `steps`: it then sends
  /// plans without rows where it has no work and other rings step on.
  void attach(RingEpoch epoch, std::unique_ptr<comm::LinkSender> to_first_stage,
              std::unique_ptr<comm::LinkReceiver> from_last_stage, std::unique_ptr<StepParticipant> steps = nullptr);
  /// Sets the sizes of the page pools of the ring that is attached next; none is now. The context follows them, and
  /// waiting requests that do not fit any more end with kUnavailable. Unchanged sizes keep everything.
  void resize_pools(cache::PoolSizes pages);
  /// Returns when the attached ring has broken or the head stops. A break ends every running request with an error;
  /// waiting ones stay queued.
  [[nodiscard]] asio::awaitable<void> wait_until_broken();
  /// Breaks the attached ring, if any, for a reason that the links do not know.
  void break_ring(const std::string& reason);
  /// Refuses new requests for `reason` while it is not empty: the ring is silent, and may yet go on.
  void set_stall(const std::string& reason) { intake_.set_stall(reason); }
  [[nodiscard]] bool stopping() const { return stopping_; }
  [[nodiscard]] const std::string& break_reason() const { return break_reason_; }

  [[nodiscard]] ModelInfo model_info() const override;
  [[nodiscard]] EngineStatus status() const override { return intake_.status(); }
  [[nodiscard]] Result<std::unique_ptr<TokenStream>> submit(GenerateRequest request, async::Runtime& client) override;
  bool abort(const std::string& request_id) override { return intake_.abort(request_id); }
  [[nodiscard]] std::shared_ptr<const RingView> ring_stats() const override {
    return {std::shared_ptr<void>(), &stats_};
  }
  [[nodiscard]] asio::awaitable<Result<void>> flush_cache(async::Runtime& runtime, async::Duration timeout) override;
  bool pause(PauseMode mode) override { return intake_.push(Pause{mode}); }
  bool resume() override { return intake_.push(Resume{}); }
  bool return_waiting(const std::string& reason) override { return intake_.push(ReturnWaiting{reason}); }
  bool rebuild(const std::string& reason) override { return intake_.push(Rebuild{reason}); }

 private:
  using Outputs = std::shared_ptr<comm::LinkReceiver>;
  using Steps = std::shared_ptr<StepParticipant>;

  /// What follows from the sizes of the page pools, for other threads than the head's.
  struct Capacity {
    uint32_t context_length = 0;  // tokens
    uint32_t page_count = 0;      // of the first cache group
    std::vector<Concurrency> concurrency;
  };
  [[nodiscard]] static Capacity capacity_of(const SchedulerOptions& options);
  /// Returns the capacity as of now. May be called from any thread.
  [[nodiscard]] Capacity capacity() const;

  [[nodiscard]] asio::awaitable<void> take_turns();
  [[nodiscard]] asio::awaitable<void> wait_for_ring();
  [[nodiscard]] bool send_next_plan();
  [[nodiscard]] bool send_step_without_rows();
  void send(Plan plan, async::TimePoint begin);
  void work_on_masks();
  void check_watchdog();
  [[nodiscard]] async::TimePoint next_deadline() const;

  [[nodiscard]] bool attached(RingEpoch epoch) const { return ring_ && ring_->epoch() == epoch; }
  [[nodiscard]] asio::awaitable<void> receive_outputs(RingEpoch epoch, Outputs from_last_stage);
  [[nodiscard]] asio::awaitable<void> receive_acks(RingEpoch epoch, Outputs from_last_stage);
  [[nodiscard]] asio::awaitable<void> follow_steps(RingEpoch epoch, Steps steps);
  void book(const comm::Message& message);
  [[nodiscard]] Result<void> acknowledge(const comm::Message& message);

  [[nodiscard]] asio::awaitable<void> receive_controls();
  void handle(Submission submission);
  void queue(Submission submission);
  void handle(AbortSequence abort);
  void handle(Pause pause);
  void handle(Resume resume);
  void handle(Flush flush);
  void handle(ReturnWaiting returned);
  void handle(Rebuild rebuild);
  void handle(Stop stop);

  [[nodiscard]] bool needs_expiry_scan() const;
  void expire_requests();
  void fail_expired(const std::vector<SequenceId>& expired, const std::string& message);
  void publish();
  void audit() const;

  async::Runtime& runtime_;
  const HeadOptions options_;
  const RequestTimeouts timeouts_;
  RequestIntake intake_;
  Scheduler scheduler_;
  mutable std::mutex capacity_mutex_;
  Capacity capacity_;  // guarded by capacity_mutex_
  RingStats stats_;
  OutputDelivery delivery_;
  FlushQueue flushes_;
  ProfileLog profile_log_;
  std::optional<RingConnection> ring_;  // none: no ring is attached
  Steps steps_;                         // of the attached ring, where it shares experts
  async::TaskGroup tasks_;
  async::WaitList wake_;
  async::WaitList broken_signal_;
  async::TimePoint last_expiry_;  // when time limits were last checked
  uint64_t outputs_booked_ = 0;
  std::string break_reason_;
  bool stopping_ = false;
  std::atomic<bool> stop_expected_ = false;
};

}  // namespace millrace::sched
