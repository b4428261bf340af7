#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "cuda/error.h"
#include "cuda/handles.h"

namespace millrace::cuda {

/// Reports the completion of submitted work. One thread polls the events of pending work and sleeps when none is
/// pending. A callback receives null only if its event completed without an error, so a fault never looks like success.
/// Owned by a backend; watch() may be called from any thread. The destructor finishes.
class EventPoller {
 public:
  /// Streams whose work completes in order, each with a queue of its own.
  static constexpr size_t kLanes = 3;
  /// Maximum of pending work. More is a programmer error, since the window of plans is far smaller.
  static constexpr size_t kMaxPending = 4096;
  using Callback = std::function<void(std::exception_ptr)>;
  using Lost = std::function<void(const std::string& reason)>;

  /// Starts the thread. `lost`, unless empty, is called on it at most once, when a piece of work or any checked call
  /// has failed and the device does not recover. Callbacks of work that failed before come first.
  EventPoller(int device, Lost lost);
  ~EventPoller() { finish(); }
  EventPoller(const EventPoller&) = delete;
  EventPoller& operator=(const EventPoller&) = delete;

  /// Calls `done` on the poller's thread when all earlier work of `stream` is complete, in order within the lane. Never
  /// throws: `done` receives failures.
  void watch(size_t lane, const Stream& stream, Callback done);
  /// Waits until nothing is pending, callbacks included. The poller accepts no work afterwards.
  void finish();

 private:
  struct Pending {
    std::optional<Event> event;
    std::exception_ptr record_error;  // why there is no event: then `stream` is waited for
    const Stream* stream = nullptr;
    Callback done;
  };
  void poll_loop();
  /// Polls the oldest entry of each lane. Returns whether any was complete.
  [[nodiscard]] bool complete_some(std::unique_lock<std::mutex>& lock);

  void report_if_lost();
  void on_failed_call();

  const int device_;
  Lost lost_;  // empty once it was called
  EventPool events_{8};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<std::deque<Pending>, kLanes> lanes_;  // guarded by mutex_, as the rest
  size_t pending_count_ = 0;
  bool closing_ = false;
  bool a_call_failed_ = false;  // since the thread looked whether the device is lost
  std::thread thread_;
  FailureListener failed_calls_;
};

}  // namespace millrace::cuda
