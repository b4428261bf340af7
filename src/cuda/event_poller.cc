#include "cuda/event_poller.h"

#include <fmt/core.h>
#include <sys/prctl.h>

#include <chrono>
#include <stdexcept>
#include <utility>

#include "base/check.h"
#include "cuda/error.h"

namespace millrace::cuda {
namespace {

using namespace std::chrono_literals;

/// Polls without a pause after a completion. Beyond them the thread sleeps between polls.
constexpr int kSpinPolls = 200;
constexpr std::chrono::microseconds kPollInterval = 10us;
constexpr unsigned long kTimerSlackNs = 1000;

std::exception_ptr failure_of(cudaError_t outcome) {
  if (outcome == cudaSuccess) return nullptr;
  (void)cudaGetLastError();
  return std::make_exception_ptr(std::runtime_error("CUDA: work on the device has failed: " + describe_error(outcome)));
}

}  // namespace

EventPoller::EventPoller(int device, Lost lost)
    : device_(device),
      lost_(std::move(lost)),
      thread_([this] { poll_loop(); }),
      failed_calls_([this] { on_failed_call(); }) {}

void EventPoller::finish() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void EventPoller::watch(size_t lane, const Stream& stream, Callback done) {
  Pending pending{.event = std::nullopt, .record_error = nullptr, .stream = &stream, .done = std::move(done)};
  try {
    Event event = events_.take();
    event.record(stream);
    pending.event = std::move(event);
  } catch (...) {
    pending.record_error = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex_);
    CHECK(pending_count_ < kMaxPending, "{} pieces of work are pending", pending_count_);
    ++pending_count_;
    lanes_[lane].push_back(std::move(pending));
  }
  changed_.notify_one();
}

bool EventPoller::complete_some(std::unique_lock<std::mutex>& lock) {
  bool any = false;
  for (auto& lane : lanes_) {
    if (lane.empty()) continue;
    const Pending& oldest = lane.front();  // a deque does not move it while others are added
    lock.unlock();
    const cudaError_t outcome =
        oldest.event ? cudaEventQuery(oldest.event->get()) : cudaStreamSynchronize(oldest.stream->get());
    lock.lock();
    if (outcome == cudaErrorNotReady) continue;
    Pending complete = std::move(lane.front());
    lane.pop_front();
    --pending_count_;
    any = true;
    lock.unlock();
    std::exception_ptr failure = complete.record_error ? std::move(complete.record_error) : failure_of(outcome);
    const bool failed = failure != nullptr;
    complete.done(std::move(failure));
    complete.done = nullptr;
    if (failed) report_if_lost();
    if (complete.event) events_.give_back(std::move(*complete.event));
    lock.lock();
  }
  return any;
}

/// Calls `lost` when a fault has ended the device's context. Every later call of this process then returns the error.
void EventPoller::report_if_lost() {
  size_t free = 0;
  size_t total = 0;
  if (!lost_) return;
  const cudaError_t outcome = cudaMemGetInfo(&free, &total);
  if (outcome == cudaSuccess) return;
  (void)cudaGetLastError();
  std::exchange(lost_, nullptr)(fmt::format("device {} is lost to this process: {}", device_, describe_error(outcome)));
}

void EventPoller::on_failed_call() {
  {
    const std::lock_guard lock(mutex_);
    a_call_failed_ = true;
  }
  changed_.notify_one();
}

void EventPoller::poll_loop() {
  prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
  (void)cudaSetDevice(device_);
  int looks = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    if (pending_count_ == 0) {
      if (std::exchange(a_call_failed_, false)) {
        lock.unlock();
        report_if_lost();
        lock.lock();
        continue;
      }
      if (closing_) return;
      changed_.wait(lock, [this] { return pending_count_ > 0 || closing_ || a_call_failed_; });
      looks = 0;
      continue;
    }
    if (complete_some(lock)) {
      looks = 0;
    } else if (++looks > kSpinPolls) {
      lock.unlock();
      std::this_thread::sleep_for(kPollInterval);
      lock.lock();
    }
  }
}

}  // namespace millrace::cuda
