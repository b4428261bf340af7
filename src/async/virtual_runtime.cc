#include "async/virtual_runtime.h"

#include "base/check.h"
#include "base/hash.h"
#include "base/random.h"

namespace millrace::async {

VirtualWorld::VirtualWorld(uint64_t seed) : seed_(seed) {}

VirtualWorld::~VirtualWorld() {
  timers_.clear();
  // Destroying a task may unwind a coroutine, which queues more.
  bool dropped = true;
  while (dropped) {
    dropped = false;
    for (const auto& thread : threads_) {
      auto tasks = std::exchange(thread->queue_, {});
      dropped |= !tasks.empty();
    }
  }
}

Runtime& VirtualWorld::add_thread() {
  threads_.push_back(std::make_unique<VirtualThread>(*this, threads_.size()));
  return *threads_.back();
}

uint64_t VirtualWorld::random() {
  const auto words = philox4x32({static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)},
                                {static_cast<uint32_t>(draws_), static_cast<uint32_t>(draws_ >> 32), 1, 0});
  ++draws_;
  return (uint64_t{words[0]} << 32) | words[1];
}

void VirtualWorld::run(TimePoint until) {
  for (;;) {
    if (step()) continue;
    if (!advance(until)) return;
  }
}

bool VirtualWorld::step() {
  if (runnable_.empty()) return false;
  const size_t pick = runnable_.size() == 1 ? 0 : random() % runnable_.size();
  VirtualThread& thread = *runnable_[pick];
  const auto task = std::move(thread.queue_.front());
  thread.queue_.pop_front();
  if (thread.queue_.empty()) {
    runnable_[pick] = runnable_.back();
    runnable_.pop_back();
  }
  ++steps_;
  trace_hash_ = mix_bits(trace_hash_ ^ (thread.index_ + 1) ^ static_cast<uint64_t>(now_.time_since_epoch().count()));
  task->run();
  return true;
}

bool VirtualWorld::advance(TimePoint until) {
  if (timers_.empty() || timers_.begin()->first.first > until) return false;
  const auto [key, timer] = *timers_.begin();
  now_ = std::max(now_, key.first);
  // Fires as a task of its thread, so that it takes its turn like everything else; until then it can be disarmed.
  timers_.erase(timers_.begin());
  VirtualExecutor(*timer.thread).execute([this, id = key.second, callback = timer.callback] {
    if (timer_deadlines_.erase(id) > 0) callback();
  });
  return true;
}

VirtualThread::~VirtualThread() = default;

asio::any_io_executor VirtualThread::executor() {
  return VirtualExecutor(*this);
}

TimerId VirtualThread::arm(TimePoint when, std::function<void()> callback) {
  const uint64_t id = world_.next_timer_++;
  world_.timers_.emplace(VirtualWorld::TimerKey(when, id), VirtualWorld::Timer{this, std::move(callback)});
  world_.timer_deadlines_.emplace(id, when);
  return TimerId{id};
}

void VirtualThread::disarm(TimerId timer) {
  const auto id = static_cast<uint64_t>(timer);
  const auto found = world_.timer_deadlines_.find(id);
  if (found == world_.timer_deadlines_.end()) return;
  world_.timers_.erase({found->second, id});
  world_.timer_deadlines_.erase(found);
}

void VirtualThread::enqueue(std::unique_ptr<Task> task) {
  if (queue_.empty()) world_.runnable_.push_back(this);
  queue_.push_back(std::move(task));
}

}  // namespace millrace::async
