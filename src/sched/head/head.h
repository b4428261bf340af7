#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <variant>

#include "async/mailbox.h"
#include "async/task_group.h"
#include "base/check.h"
#include "comm/link.h"
#include "sched/head/engine.h"
#include "sched/head/ring_stats.h"
#include "sched/scheduler/scheduler.h"

namespace millrace::sched {

struct HeadOptions {
  SchedulerOptions scheduler;
  ModelInfo model;
  uint32_t max_queued = 0;             ///< requests that may wait; more are kExhausted
  async::Duration heartbeat{};         ///< an idle ring gets an empty plan so often
  async::Duration watchdog{};          ///< a plan that takes longer, and a second, breaks the ring
  async::Duration queue_timeout{};     ///< a request that waits longer ends with kTimeout; 0: none
  async::Duration prefetch_timeout{};  ///< a request waits for its prefetch no longer; 0: no limit
  bool audit = false;                  ///< CHECKs the scheduler's invariants after every event; for simulation
  async::Duration run_timeout{};       ///< a request that runs longer ends with kTimeout; 0: none
};

/// The one that decides: takes requests, keeps the window of plans full, books outputs, tells the clients. Engine's
/// functions may be called from any thread; everything else happens on the head's own Runtime. Created before and
/// destroyed after all TokenStreams.
class Head final : public Engine {
 public:
  Head(async::Runtime& runtime, HeadOptions options);

  /// Runs until stop().
  [[nodiscard]] asio::awaitable<void> run();
  /// From any thread: refuses new requests, ends those in flight as kAborted and closes the ring. run() then returns.
  void stop();

  /// A ring has formed: plans go to `to_first_stage` from now on. Not while another ring is attached. The head is ready
  /// when the ring's first empty plan has come back.
  void attach(RingEpoch epoch, std::unique_ptr<comm::LinkSender> to_first_stage,
              std::unique_ptr<comm::LinkReceiver> from_last_stage);
  /// Returns when the attached ring has broken or the head stops. A break ends every running request with an error;
  /// those that wait stay queued.
  [[nodiscard]] asio::awaitable<void> wait_until_broken();
  /// Breaks the attached ring, if any, for a reason that the links do not know.
  void break_ring(const std::string& reason);
  [[nodiscard]] bool stopping() const { return stopping_; }
  [[nodiscard]] const std::string& break_reason() const { return break_reason_; }

  [[nodiscard]] const ModelInfo& model_info() const override { return options_.model; }
  [[nodiscard]] EngineStatus status() const override;
  [[nodiscard]] Result<std::unique_ptr<TokenStream>> submit(GenerateRequest request, async::Runtime& client) override;
  bool abort(const std::string& request_id) override;
  [[nodiscard]] const RingStats* ring_stats() const override { return &stats_; }
  [[nodiscard]] asio::awaitable<Result<void>> flush_cache(async::Runtime& runtime, async::Duration timeout) override;
  bool pause(PauseMode mode) override { return controls_.try_push(Pause{mode}); }
  bool resume() override { return controls_.try_push(Resume{}); }

 private:
  using Events = async::Mailbox<GenerateEvent>;
  struct Submission {
    SequenceId id;
    GenerateRequest request;
    Events events;
    async::TimePoint submitted;
  };
  struct Abort {
    SequenceId id;
  };
  struct Pause {
    PauseMode mode;
  };
  struct Resume {};
  struct Flush {
    async::TimePoint deadline;
    async::Mailbox<Result<void>> answer;
  };
  struct Stop {};
  using Control = std::variant<Submission, Abort, Pause, Resume, Flush, Stop>;
  struct Client {
    std::string request_id;
    Events events;
    async::TimePoint submitted;
    std::optional<async::TimePoint> planned;
    Timings timings;  // as of the first token, or of now as long as there is none
    bool has_token = false;
  };
  class Stream;
  /// How often the requests are looked through for those past a time limit.
  static constexpr async::Duration kExpiryInterval = std::chrono::milliseconds(100);

  [[nodiscard]] asio::awaitable<void> run_turns();
  void check_clients() const;
  [[nodiscard]] asio::awaitable<void> receive_outputs(RingEpoch epoch,
                                                      std::shared_ptr<comm::LinkReceiver> from_last_stage);
  [[nodiscard]] asio::awaitable<void> receive_acks(RingEpoch epoch,
                                                   std::shared_ptr<comm::LinkReceiver> from_last_stage);
  void book(const comm::Message& message);
  [[nodiscard]] Result<void> acknowledge(const comm::Message& message);
  [[nodiscard]] asio::awaitable<void> receive_controls();
  void handle(Submission submission);
  void handle(Abort abort);
  void handle(Pause pause);
  void handle(Resume resume);
  void handle(Flush flush);
  void complete_flushes();
  void handle(Stop stop);
  [[nodiscard]] asio::awaitable<void> wait_for_ring();
  [[nodiscard]] bool has_time_limits() const;
  [[nodiscard]] bool needs_expiry_scan() const;
  [[nodiscard]] bool send_next_plan();
  void send(Plan plan, async::TimePoint begin);
  void send_heartbeat_if_due();
  void check_watchdog();
  void expire_requests();
  void fail_expired(std::vector<SequenceId> expired, const std::string& message);
  [[nodiscard]] async::TimePoint next_deadline() const;
  void log_profile();
  void deliver(SequenceUpdate update);
  /// The request's id is free from now on, unless another sequence has it already. From any thread.
  void forget(const std::string& request_id, SequenceId id);
  void end(const std::vector<SequenceId>& ids, const Error& error);
  void set_not_ready(const std::string& reason);
  void publish();
  void publish_costs();

  async::Runtime& runtime_;
  const HeadOptions options_;
  async::Mailbox<Control> controls_;

  // On the head's Runtime.
  Scheduler scheduler_;
  RingStats stats_;
  uint64_t outputs_booked_ = 0;
  std::unordered_map<SequenceId, Client> clients_;
  async::TaskGroup tasks_;
  async::WaitList wake_;
  async::WaitList broken_signal_;
  std::unique_ptr<comm::LinkSender> to_first_stage_;  // null: no ring is attached
  RingEpoch epoch_;
  PlanId next_plan_;
  std::deque<async::TimePoint> sent_;  // of the plans in flight
  std::vector<Flush> flushes_;         // not yet answered
  async::TimePoint last_output_;
  async::TimePoint last_expiry_;  // when time limits were looked at
  async::TimePoint profile_begin_;
  std::optional<async::TimePoint> contention_profile_begin_;  // when the stages began to be timed beside each other
  std::string break_reason_;
  bool stopping_ = false;

  // Shared with the clients' threads.
  mutable std::mutex mutex_;
  EngineStatus status_;                                // guarded by mutex_
  std::unordered_map<std::string, SequenceId> by_id_;  // guarded by mutex_
  uint32_t unhandled_submissions_ = 0;                 // guarded by mutex_
  std::atomic<uint64_t> next_sequence_{1};
};

}  // namespace millrace::sched
