#pragma once

#include <memory>

#include "sched/steps/step_board.h"

namespace millrace::sched {

/// One ring's part in the steps that rings with shared experts run together. A step is one forward pass; the exchange
/// of experts waits for all rings, so a ring without work steps along until it has caught up. Owned by the head while a
/// ring is attached, on its thread.
class StepParticipant {
 public:
  explicit StepParticipant(std::unique_ptr<StepBoard> board) : board_(std::move(board)) {}

  /// Counts a step that begins now, with rows or without. Returns its number, from 1 on. Announces a step past the
  /// coordinator's, so that the other rings follow.
  [[nodiscard]] uint64_t begin_step() {
    ++step_;
    if (step_ > board_->target()) board_->start_step(step_);
    return step_;
  }
  /// Returns whether the ring has to step along even without work.
  [[nodiscard]] bool behind() const { return step_ < board_->target(); }
  /// Returns the last step that has begun here.
  [[nodiscard]] uint64_t step() const { return step_; }

  /// Returns when behind() may have become true since the last return. Throws as StepBoard::wait_beyond().
  [[nodiscard]] asio::awaitable<void> wait_for_target() {
    co_await board_->wait_beyond(seen_);
    seen_ = board_->target();
  }
  /// Ends the epoch of all participants.
  void leave(const std::string& reason) { board_->leave(reason); }

 private:
  const std::unique_ptr<StepBoard> board_;
  uint64_t step_ = 0;
  uint64_t seen_ = 0;  // the target at the last return of wait_for_target()
};

}  // namespace millrace::sched
