#include "sched/steps/step_epoch.h"

#include <utility>

#include "base/result.h"
#include "comm/ring_reason.h"

namespace millrace::sched {
namespace {

class EpochBoard final : public StepBoard {
 public:
  EpochBoard(std::shared_ptr<StepEpoch> epoch, uint32_t ring, async::Runtime& runtime,
             std::function<void(uint64_t)> start, std::function<void(const std::string&)> leave)
      : epoch_(std::move(epoch)), ring_(ring), runtime_(runtime), start_(std::move(start)), leave_(std::move(leave)) {}
  ~EpochBoard() override { epoch_->forget_waiter(ring_); }

  [[nodiscard]] uint64_t target() const override { return epoch_->target(); }
  void start_step(uint64_t step) override { start_(step); }
  [[nodiscard]] asio::awaitable<void> wait_beyond(uint64_t seen) override {
    while (const std::optional<async::Event> news = epoch_->wait_for_news(ring_, runtime_, seen)) {
      co_await news->wait();
    }
  }
  void leave(const std::string& reason) override { leave_(reason); }

 private:
  const std::shared_ptr<StepEpoch> epoch_;
  const uint32_t ring_;
  async::Runtime& runtime_;
  const std::function<void(uint64_t)> start_;
  const std::function<void(const std::string&)> leave_;
};

}  // namespace

void StepEpoch::raise_target(uint64_t step) {
  uint64_t now = target();
  while (now < step && !target_.compare_exchange_weak(now, step, std::memory_order_acq_rel)) {
  }
  if (now >= step) return;
  const std::lock_guard lock(mutex_);
  wake_all();
}

void StepEpoch::end(int32_t ring, const std::string& reason, const StepEpochs::EndFn& on_end) {
  {
    const std::lock_guard lock(mutex_);
    if (ending_) return;
    ending_ = {.ring = ring, .reason = reason};
  }
  if (on_end) on_end(number_, ring, reason);
  const std::lock_guard lock(mutex_);
  is_announced_ = true;
  wake_all();
}

/// Wakes the rings that wait. The caller holds the mutex.
void StepEpoch::wake_all() {
  for (auto& waiter : waiters_) {
    if (waiter) std::exchange(waiter, std::nullopt)->set();
  }
}

std::optional<async::Event> StepEpoch::wait_for_news(uint32_t ring, async::Runtime& runtime, uint64_t seen) {
  const std::lock_guard lock(mutex_);
  if (is_announced_) {
    throw_error(ErrorCode::kUnavailable, comm::ring_reason(static_cast<int32_t>(ring), ending_->ring, ending_->reason));
  }
  if (target() > seen) return std::nullopt;
  return waiters_[ring].emplace(runtime);
}

void StepEpoch::forget_waiter(uint32_t ring) {
  const std::lock_guard lock(mutex_);
  waiters_[ring].reset();
}

std::unique_ptr<StepBoard> make_board(std::shared_ptr<StepEpoch> epoch, uint32_t ring, async::Runtime& runtime,
                                      std::function<void(uint64_t)> start,
                                      std::function<void(const std::string&)> leave) {
  return std::make_unique<EpochBoard>(std::move(epoch), ring, runtime, std::move(start), std::move(leave));
}

}  // namespace millrace::sched
