#include "sched/steps/step_server.h"

#include <utility>

#include "base/result.h"

namespace millrace::sched {

void StepServer::handle(StepMessage message) {
  if (auto* join = std::get_if<JoinEpoch>(&message)) {
    if (std::exchange(takes_part_, true)) throw_error(ErrorCode::kData, "it joins the steps twice");
    epoch_ = 0;
    tasks_.spawn("steps of a ring elsewhere", run_epoch(std::move(join->experts)));
  } else if (const auto* reached = std::get_if<StepReached>(&message)) {
    if (board_ && reached->epoch == epoch_) board_->start_step(reached->step);
  } else if (const auto* ended = std::get_if<EpochEnded>(&message)) {
    if (takes_part_ && epoch_ != 0 && ended->epoch == epoch_) group_.end_epoch(epoch_, ended->ring, ended->reason);
  } else if (const auto* left = std::get_if<EpochLeft>(&message)) {
    if (!takes_part_ || epoch_ == 0 || left->epoch != epoch_) {
      throw_error(ErrorCode::kData, "it leaves steps that it has no part in");
    }
    group_.end(ring_, "has left");
    group_.leave(ring_);
    takes_part_ = false;
  } else {
    throw_error(ErrorCode::kData, "it sent a message about steps that only the coordinator sends");
  }
}

/// Takes part in the next epoch for the ring, and tells it the targets and the end.
asio::awaitable<void> StepServer::run_epoch(comm::RingExperts experts) {
  if (closed_) co_return;  // close() may come before the task's first step
  comm::set_host(experts.endpoints, host_);
  StepGroup::Membership membership;
  try {
    membership = co_await group_.join(ring_, runtime_, std::move(experts));
  } catch (const ErrorException&) {
    co_return;  // close() has withdrawn it
  }
  const uint64_t epoch = epoch_ = membership.epoch;
  const std::shared_ptr<StepBoard> board = board_ = std::move(membership.board);
  for (comm::RingExperts& ring : membership.rings) ring.endpoints = comm::for_others(std::move(ring.endpoints));
  if (!closed_) send_(EpochBegun{.epoch = epoch, .rings = std::move(membership.rings)});
  std::string reason;
  try {
    for (uint64_t seen = 0;;) {
      co_await board->wait_beyond(seen);
      seen = board->target();
      if (!closed_) send_(StepReached{.epoch = epoch, .step = seen});
    }
  } catch (const ErrorException& ended) {
    reason = ended.what();
  }
  if (!closed_) send_(EpochEnded{.epoch = epoch, .ring = -1, .reason = reason});
  if (board_ == board) board_ = nullptr;
}

asio::awaitable<void> StepServer::close(std::string reason) {
  closed_ = true;
  group_.withdraw(ring_);
  group_.end(ring_, reason);
  co_await tasks_.join();
  if (takes_part_) group_.leave(ring_);
  takes_part_ = false;
}

}  // namespace millrace::sched
