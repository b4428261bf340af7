#pragma once

#include <deque>
#include <memory>
#include <string>

#include "comm/link.h"
#include "sched/plan/plan.h"
#include "sched/plan/plan_output.h"

namespace millrace::sched {

/// The times after which the head acts on a ring by itself.
struct RingTimers {
  async::Duration heartbeat{};  ///< an idle ring gets an empty plan this often
  async::Duration watchdog{};   ///< a plan that is in flight longer is overdue
};

/// The head's way into one ring epoch: it numbers plans, sends them to the first stage, and tracks how long each is in
/// flight. Owned by the head while the ring is attached, on its thread.
class RingConnection {
 public:
  RingConnection(RingEpoch epoch, const RingTimers& timers, std::unique_ptr<comm::LinkSender> to_first_stage,
                 async::TimePoint now);

  [[nodiscard]] RingEpoch epoch() const { return epoch_; }
  /// Sets the plan's id and epoch, and encodes it: the bytes that send() wants next.
  [[nodiscard]] std::vector<std::byte> encode(Plan& plan);
  void send(std::vector<std::byte> bytes, async::TimePoint now);
  /// Notes an output: the oldest plan is in flight no more.
  void output_arrived(async::TimePoint now);
  /// Ends the epoch for the stages: the first stage receives `reason`.
  void close(const std::string& reason) { to_first_stage_->close(reason); }

  /// Returns when heartbeat_due() or overdue() has to be asked again.
  [[nodiscard]] async::TimePoint next_deadline() const;
  [[nodiscard]] bool heartbeat_due(async::TimePoint now) const;
  /// Returns whether the oldest plan in flight is past the watchdog's time.
  [[nodiscard]] bool overdue(async::TimePoint now) const;
  [[nodiscard]] PlanId oldest_plan() const { return PlanId(next_plan_.value() - sent_.size()); }
  /// Returns how long the oldest plan has been in flight; there is one.
  [[nodiscard]] async::Duration oldest_age(async::TimePoint now) const { return now - sent_.front(); }

 private:
  const RingEpoch epoch_;
  const RingTimers timers_;
  const std::unique_ptr<comm::LinkSender> to_first_stage_;
  PlanId next_plan_{0};
  std::deque<async::TimePoint> sent_;  // of the plans in flight, the oldest first
  async::TimePoint last_output_;       // or the begin of the epoch
};

}  // namespace millrace::sched
