#include "cuda/emulator/fake_stream.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <random>

#include "base/check.h"

namespace millrace::emulator {
namespace {

thread_local std::vector<CUstream_st*> captures_of_thread;
std::atomic<uint64_t> stream_count{0};
std::atomic<uint64_t> capture_count{0};

// The bookkeeping of std::atomic::wait would order the waiter before the waker.
void wait_while(const std::atomic<uint32_t>& word, uint32_t value, const timespec* most = nullptr) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, most, nullptr, 0);
}

void wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

Delays delays;

bool thread_captures() {
  return !captures_of_thread.empty();
}

void spoil_captures() {
  for (CUstream_st* stream : captures_of_thread) stream->spoil_capture();
}

void Signal::set(cudaError_t outcome) {
  time_ = std::chrono::steady_clock::now();
  outcome_.store(outcome, std::memory_order_release);
  wake(outcome_);
}

cudaError_t Signal::query() const {
  return static_cast<cudaError_t>(outcome_.load(std::memory_order_acquire));
}

cudaError_t Signal::wait() const {
  while (query() == cudaErrorNotReady) wait_while(outcome_, cudaErrorNotReady);
  return query();
}

cudaError_t Signal::wait(std::chrono::microseconds most) const {
  if (query() == cudaErrorNotReady) {
    const timespec patience{.tv_sec = 0, .tv_nsec = std::chrono::nanoseconds(most).count()};
    wait_while(outcome_, cudaErrorNotReady, &patience);
  }
  return query();
}

}  // namespace millrace::emulator

using millrace::emulator::Signal;
using millrace::emulator::Work;
using millrace::emulator::WorkList;

CUstream_st::CUstream_st(int its_device) : device(its_device), newest_(new Task) {
  thread_ = std::thread([this, first = newest_, number = ++millrace::emulator::stream_count]() mutable {
    std::minstd_rand random(static_cast<uint32_t>(millrace::emulator::delays.seed + number));
    for (Task* done = first;;) {
      Task* const next = next_task(*done);
      delete done;
      done = next;
      if (!next->work) {
        delete next;
        return;
      }
      const int64_t max_us = millrace::emulator::delays.max_us.load();
      if (max_us > 0) {
        const auto wait_us = std::uniform_int_distribution<int64_t>(0, max_us)(random);
        std::this_thread::sleep_for(std::chrono::microseconds(wait_us));
      }
      next->work();
      next->work = [] {};
    }
  });
}

CUstream_st::~CUstream_st() {
  CHECK(!capturing(), "a stream is destroyed while it is captured");
  enqueue({});
  thread_.join();
}

CUstream_st::Task* CUstream_st::next_task(const Task& done) {
  for (;;) {
    const uint32_t seen = submitted_.load(std::memory_order_acquire);
    sleeps_.store(true, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // before it looks again, as in enqueue()
    Task* const next = done.next.load(std::memory_order_acquire);
    if (next == nullptr) millrace::emulator::wait_while(submitted_, seen);
    sleeps_.store(false, std::memory_order_relaxed);
    if (next != nullptr) return next;
  }
}

void CUstream_st::enqueue(Work work) {
  if (capturing()) {
    captured_->push_back(std::move(work));
    return;
  }
  const std::lock_guard lock(submit_mutex_);
  auto* task = new Task{std::move(work)};
  newest_->next.store(task, std::memory_order_release);
  newest_ = task;
  submitted_.fetch_add(1, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (sleeps_.load(std::memory_order_relaxed)) millrace::emulator::wake(submitted_);
}

void CUstream_st::begin_capture() {
  captured_ = std::make_unique<WorkList>();
  capturer_ = std::this_thread::get_id();
  capture_number_ = ++millrace::emulator::capture_count;
  spoilt_ = false;
  millrace::emulator::captures_of_thread.push_back(this);
}

std::unique_ptr<WorkList> CUstream_st::end_capture() {
  std::erase(millrace::emulator::captures_of_thread, this);
  auto captured = std::move(captured_);
  return spoilt_ ? nullptr : std::move(captured);
}

std::shared_ptr<Signal> CUstream_st::mark() {
  auto signal = std::make_shared<Signal>();
  enqueue([signal] { signal->set(cudaSuccess); });
  return signal;
}
