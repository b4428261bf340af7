#include "sched/head/ring_connection.h"

#include <utility>

#include "base/check.h"

namespace millrace::sched {

RingConnection::RingConnection(RingEpoch epoch, const RingTimers& timers,
                               std::unique_ptr<comm::LinkSender> to_first_stage, async::TimePoint now)
    : epoch_(epoch), timers_(timers), to_first_stage_(std::move(to_first_stage)), last_output_(now) {}

std::vector<std::byte> RingConnection::encode(Plan& plan) {
  plan.id = next_plan_;
  plan.epoch = epoch_;
  return plan.encode();
}

void RingConnection::send(std::vector<std::byte> bytes, async::TimePoint now) {
  sent_.push_back(now);
  to_first_stage_->send(comm::MessageKind::kPlan, epoch_, next_plan_, std::move(bytes));
  next_plan_ = PlanId(next_plan_.value() + 1);
}

void RingConnection::output_arrived(async::TimePoint now) {
  CHECK(!sent_.empty(), "an output arrived while no plan was in flight");
  sent_.pop_front();
  last_output_ = now;
}

async::TimePoint RingConnection::next_deadline() const {
  return sent_.empty() ? last_output_ + timers_.heartbeat : sent_.front() + timers_.watchdog;
}

bool RingConnection::heartbeat_due(async::TimePoint now) const {
  return sent_.empty() && now >= last_output_ + timers_.heartbeat;
}

bool RingConnection::overdue(async::TimePoint now) const {
  return !sent_.empty() && now - sent_.front() >= timers_.watchdog;
}

}  // namespace millrace::sched
