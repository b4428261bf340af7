#include "cpu/stream.h"

#include <utility>

#include "base/check.h"
#include "base/thread_name.h"
#include "cpu/thread_pool.h"

namespace millrace::cpu {
namespace {

constexpr int kWorkerSpins = 1000;

}  // namespace

Stream::Stream(std::string_view name, int pin) {
  worker_ = std::thread([this, name = std::string(name), pin] {
    name_thread(name);
    if (pin >= 0) pin_to_cpu(pin);
    work_loop();
  });
}

Stream::~Stream() {
  closing_.store(true);
  submitted_.fetch_add(1);
  submitted_.notify_one();
  worker_.join();
}

void Stream::submit(std::function<void()> work, std::function<void(std::exception_ptr)> done) {
  {
    const std::lock_guard lock(mutex_);
    CHECK(queue_.size() < kMaxQueued, "{} pieces of work wait on one stream", queue_.size());
    queue_.push_back({std::move(work), std::move(done)});
  }
  submitted_.fetch_add(1);
  submitted_.notify_one();
}

void Stream::work_loop() {
  for (;;) {
    const int32_t seen = submitted_.load();
    std::unique_lock lock(mutex_);
    if (queue_.empty()) {
      lock.unlock();
      if (closing_.load()) return;
      for (int spin = 0; spin < kWorkerSpins && submitted_.load(std::memory_order_relaxed) == seen; ++spin)
        spin_pause();
      submitted_.wait(seen);
      continue;
    }
    Item item = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    std::exception_ptr failure;
    try {
      item.work();
    } catch (...) {
      failure = std::current_exception();
    }
    item.work = nullptr;
    item.done(failure);
  }
}

}  // namespace millrace::cpu
