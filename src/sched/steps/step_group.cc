#include "sched/steps/step_group.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/result.h"
#include "sched/steps/step_coordinator.h"
#include "sched/steps/step_epoch.h"

namespace millrace::sched {

struct StepGroup::Epoch final : StepEpoch {
  Epoch(uint64_t number, uint64_t lookahead, std::vector<comm::RingExperts> its_rings)
      : StepEpoch(number, its_rings.size()), coordinator(lookahead), rings(std::move(its_rings)) {}
  StepCoordinator coordinator;
  const std::vector<comm::RingExperts> rings;
};

StepGroup::StepGroup(uint32_t ring_count, uint64_t lookahead, EndFn on_end, uint64_t last_epoch)
    : lookahead_(lookahead), on_end_(std::move(on_end)), rings_(ring_count), last_epoch_(last_epoch) {}

asio::awaitable<StepGroup::Membership> StepGroup::join(uint32_t ring, async::Runtime& runtime,
                                                       comm::RingExperts experts) {
  const async::Event joined(runtime);
  {
    const std::lock_guard lock(mutex_);
    CHECK(!rings_[ring].epoch && !rings_[ring].joined, "ring {} joins an epoch before it has left the last one", ring);
    rings_[ring].joined = joined;
    rings_[ring].experts = std::move(experts);
    rings_[ring].withdrawn = false;
    if (rings_[ring].interrupted) joined.set();
    begin_if_complete();
  }
  co_await joined.wait_uncancelled();
  const std::lock_guard lock(mutex_);
  rings_[ring].joined.reset();
  const std::shared_ptr<Epoch> epoch = rings_[ring].epoch;
  if (!epoch) throw_error(ErrorCode::kAborted, "interrupted");
  const auto start = [epoch](uint64_t step) {
    if (const auto target = epoch->coordinator.start_step(step)) epoch->raise_target(*target);
  };
  const auto leave = [this, number = epoch->number(), ring](const std::string& reason) {
    end_epoch(number, static_cast<int32_t>(ring), reason);
  };
  co_return Membership{
      .epoch = epoch->number(), .rings = epoch->rings, .board = make_board(epoch, ring, runtime, start, leave)};
}

/// Begins an epoch if every ring waits for one. The caller holds the mutex.
void StepGroup::begin_if_complete() {
  const auto waits = [](const Ring& ring) {
    return ring.joined && !ring.epoch && !ring.withdrawn && !ring.interrupted;
  };
  if (!std::ranges::all_of(rings_, waits)) return;
  std::vector<comm::RingExperts> rings;
  for (const Ring& ring : rings_) rings.push_back(ring.experts);
  newest_ = std::make_shared<Epoch>(++last_epoch_, lookahead_, std::move(rings));
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
    epoch = rings_[ring].epoch->number();
  }
  end_epoch(epoch, static_cast<int32_t>(ring), reason);
}

void StepGroup::end_epoch(uint64_t epoch, int32_t ring, const std::string& reason) {
  std::shared_ptr<Epoch> ended;
  {
    const std::lock_guard lock(mutex_);
    if (!newest_ || newest_->number() != epoch) return;
    ended = newest_;
  }
  ended->end(ring, reason, on_end_);
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

void StepGroup::withdraw(uint32_t ring) {
  const std::lock_guard lock(mutex_);
  rings_[ring].withdrawn = true;
  if (rings_[ring].joined) rings_[ring].joined->set();
}

}  // namespace millrace::sched
