#pragma once

#include <atomic>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace millrace::cpu {

/// Runs submitted work in order on one worker thread. Owned by a backend; `submit` may be called from any thread. The
/// destructor finishes submitted work, then joins.
class Stream {
 public:
  /// Maximum of waiting work. More is a programmer error, since the window of plans is far smaller.
  static constexpr size_t kMaxQueued = 4096;

  /// Starts the worker thread with this name on CPU `pin`; negative: on any CPU.
  explicit Stream(std::string_view name, int pin = -1);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// Queues `work`. `done` is called on the worker with the exception that `work` threw, or null.
  void submit(std::function<void()> work, std::function<void(std::exception_ptr)> done);
  [[nodiscard]] bool on_worker() const { return std::this_thread::get_id() == worker_.get_id(); }

 private:
  struct Item {
    std::function<void()> work;
    std::function<void(std::exception_ptr)> done;
  };
  void work_loop();

  std::mutex mutex_;
  std::deque<Item> queue_;
  std::atomic<int32_t> submitted_{0};  // counts submissions and the closing
  std::atomic<bool> closing_{false};
  std::thread worker_;
};

}  // namespace millrace::cpu
