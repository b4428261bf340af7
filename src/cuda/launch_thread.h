#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace millrace::cuda {

/// Runs work in order on a thread of its own. A backend has one where launching may wait for other ranks or rings, so
/// that the thread that submits never does. `post` may be called from any thread. The destructor finishes posted work,
/// then joins.
class LaunchThread {
 public:
  /// Maximum of waiting work. More is a programmer error, since the window of plans is far smaller.
  static constexpr size_t kMaxQueued = 4096;

  LaunchThread();
  ~LaunchThread();
  LaunchThread(const LaunchThread&) = delete;
  LaunchThread& operator=(const LaunchThread&) = delete;

  /// Queues `work`, which does not throw.
  void post(std::function<void()> work);

 private:
  void work_loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;  // guarded by mutex_, as the next one
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace millrace::cuda
