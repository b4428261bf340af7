#include "sched/steps/step_group.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/result.h"
#include "comm/ring_reason.h"
#include "sched/steps/step_coordinator.h"

namespace millrace::sched {

/// What the rings share in one epoch.
struct StepGroup::Epoch {
  Epoch(uint64_t its_number, uint64_t lookahead, size_t rings)
      : number(its_number), coordinator(lookahead), waiters(rings) {}
  const uint64_t number;
  StepCoordinator coordinator;
  struct Ending {
    int32_t ring;
    std::string reason;
  };
  std::mutex mutex;
  std::optional<Ending> ending;                      // guarded by mutex, as the next
  std::vector<std::optional<async::Event>> waiters;  // [rings] set at news

  /// Wakes the rings that wait. The caller holds the mutex.
  void wake_all() {
    for (auto& waiter : waiters) {
      if (waiter) std::exchange(waiter, std::nullopt)->set();
    }
  }
};

class StepGroup::Board final : public StepBoard {
 public:
  Board(StepGroup& group, std::shared_ptr<Epoch> epoch, uint32_t ring, async::Runtime& runtime)
      : group_(group), epoch_(std::move(epoch)), ring_(ring), runtime_(runtime) {}
  ~Board() override {
    const std::lock_guard lock(epoch_->mutex);
    epoch_->waiters[ring_].reset();
  }

  [[nodiscard]] uint64_t target() const override { return epoch_->coordinator.step(); }
  void start_step(uint64_t step) override {
    if (!epoch_->coordinator.start_step(step)) return;
    const std::lock_guard lock(epoch_->mutex);
    epoch_->wake_all();
  }
  [[nodiscard]] asio::awaitable<void> wait_beyond(uint64_t seen) override {
    while (std::optional<async::Event> news = wait_for_news(seen)) co_await news->wait();
  }
  void leave(const std::string& reason) override {
    group_.end_epoch(epoch_->number, static_cast<int32_t>(ring_), reason);
  }

 private:
  /// Returns an event for the next news; nothing if there are some already. Throws when the epoch is over.
  [[nodiscard]] std::optional<async::Event> wait_for_news(uint64_t seen) {
    const std::lock_guard lock(epoch_->mutex);
    if (epoch_->ending) {
      const auto& [origin, reason] = *epoch_->ending;
      throw ErrorException(
          Error{ErrorCode::kUnavailable, comm::ring_reason(static_cast<int32_t>(ring_), origin, reason)});
    }
    if (target() > seen) return std::nullopt;
    return epoch_->waiters[ring_].emplace(runtime_);
  }

  StepGroup& group_;
  const std::shared_ptr<Epoch> epoch_;
  const uint32_t ring_;
  async::Runtime& runtime_;
};

StepGroup::StepGroup(uint32_t ring_count, uint64_t lookahead, EndFn on_end)
    : ring_count_(ring_count), lookahead_(lookahead), on_end_(std::move(on_end)), rings_(ring_count) {}

asio::awaitable<StepGroup::Membership> StepGroup::join(uint32_t ring, async::Runtime& runtime) {
  const async::Event joined(runtime);
  {
    const std::lock_guard lock(mutex_);
    CHECK(!rings_[ring].epoch && !rings_[ring].joined, "ring {} joins an epoch before it has left the last one", ring);
    rings_[ring].joined = joined;
    if (rings_[ring].interrupted) joined.set();
    begin_if_complete();
  }
  co_await joined.wait_uncancelled();
  const std::lock_guard lock(mutex_);
  rings_[ring].joined.reset();
  if (!rings_[ring].epoch) throw ErrorException(Error{ErrorCode::kAborted, "interrupted"});
  co_return Membership{.epoch = rings_[ring].epoch->number,
                       .board = std::make_unique<Board>(*this, rings_[ring].epoch, ring, runtime)};
}

/// Begins an epoch if every ring waits for one. The caller holds the mutex.
void StepGroup::begin_if_complete() {
  const auto waits = [](const Ring& ring) { return ring.joined && !ring.epoch && !ring.interrupted; };
  if (!std::ranges::all_of(rings_, waits)) return;
  newest_ = std::make_shared<Epoch>(++epochs_, lookahead_, ring_count_);
  for (Ring& ring : rings_) {
    ring.epoch = newest_;
    ring.joined->set();
  }
}

void StepGroup::end(uint32_t ring, const std::string& reason) {
  uint64_t epoch = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!rings_[ring].epoch) return;
    epoch = rings_[ring].epoch->number;
  }
  end_epoch(epoch, static_cast<int32_t>(ring), reason);
}

void StepGroup::end_epoch(uint64_t epoch, int32_t ring, const std::string& reason) {
  std::shared_ptr<Epoch> ended;
  {
    const std::lock_guard lock(mutex_);
    if (!newest_ || newest_->number != epoch) return;
    ended = newest_;
  }
  {
    const std::lock_guard lock(ended->mutex);
    if (ended->ending) return;
    ended->ending = {.ring = ring, .reason = reason};
  }
  if (on_end_) on_end_(epoch, ring, reason);
  const std::lock_guard lock(ended->mutex);
  ended->wake_all();
}

void StepGroup::leave(uint32_t ring) {
  const std::lock_guard lock(mutex_);
  rings_[ring].epoch.reset();
}

void StepGroup::interrupt(uint32_t ring) {
  const std::lock_guard lock(mutex_);
  rings_[ring].interrupted = true;
  if (rings_[ring].joined) rings_[ring].joined->set();
}

}  // namespace millrace::sched
