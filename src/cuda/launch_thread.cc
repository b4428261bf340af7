#include "cuda/launch_thread.h"

#include <utility>

#include "base/check.h"
#include "base/parallel_for.h"
#include "base/thread_name.h"

namespace millrace::cuda {
namespace {

/// Threads of run_on_host(), the calling one included.
constexpr int32_t kHostThreads = 4;

}  // namespace

LaunchThread::LaunchThread() : thread_([this] { work_loop(); }) {}

LaunchThread::~LaunchThread() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void LaunchThread::post(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    CHECK(queue_.size() < kMaxQueued, "{} pieces of work wait to be launched", queue_.size());
    queue_.push_back(std::move(work));
  }
  changed_.notify_one();
}

void LaunchThread::work_loop() {
  name_thread("cuda launches");
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return closing_ || !queue_.empty(); });
    if (queue_.empty()) return;
    std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
  }
}

void run_on_host(int64_t items, const std::function<void(int64_t begin, int64_t end)>& body) {
  if (items <= 0) return;
  parallel_for({.count = items,
                .block = (items + kHostThreads - 1) / kHostThreads,
                .threads = kHostThreads,
                .thread_name = "cuda host"},
               body);
}

}  // namespace millrace::cuda
