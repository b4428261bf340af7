#include "cuda/launch_thread.h"

#include <utility>

#include "base/check.h"
#include "base/thread_name.h"

namespace millrace::cuda {

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

}  // namespace millrace::cuda
