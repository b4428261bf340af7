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

#include "cuda/handles.h"

namespace millrace::cuda {

/// Tells when submitted work is complete: one thread asks the events of what is pending, and sleeps while nothing is.
/// A callback gets null only if its event has come to pass without an error, so a fault never looks like success.
/// Owned by a backend; watch() from any thread. The destructor finishes it.
class EventPoller {
 public:
  /// Streams whose work completes in order, each with a queue.
  static constexpr size_t kLanes = 3;
  /// More pending work is a programmer error, since the window of plans is far smaller.
  static constexpr size_t kMaxPending = 4096;
  using Callback = std::function<void(std::exception_ptr)>;
  using Lost = std::function<void(const std::string& reason)>;

  /// `lost` is called on the poller's thread, once at most, behind the callback of a failure after which the device
  /// answers with errors only; may be empty.
  EventPoller(int device, Lost lost);
  ~EventPoller() { finish(); }
  EventPoller(const EventPoller&) = delete;
  EventPoller& operator=(const EventPoller&) = delete;

  /// Calls `done` on the poller's thread when all that `stream` was given so far is complete, after those of the same
  /// lane before it. Never throws: what fails is told to `done`.
  void watch(size_t lane, const Stream& stream, Callback done);
  /// Returns when nothing is pending any more, callbacks included; the poller is of no use then.
  void finish();

 private:
  struct Pending {
    std::optional<Event> event;
    std::exception_ptr record_error;  // why there is no event: then `stream` is waited for
    const Stream* stream = nullptr;
    Callback done;
  };
  void poll_loop();
  /// One look at the oldest of each lane; whether any was complete.
  [[nodiscard]] bool complete_some(std::unique_lock<std::mutex>& lock);

  void report_if_lost();

  const int device_;
  Lost lost_;  // empty once it was called
  EventPool events_{8};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<std::deque<Pending>, kLanes> lanes_;  // guarded by mutex_, as the rest
  size_t pending_count_ = 0;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace millrace::cuda
