#pragma once

#include <boost/asio/signal_set.hpp>
#include <chrono>
#include <functional>
#include <future>

#include "async/real_runtime.h"

namespace millrace::app {

/// Receives SIGTERM and SIGINT on a thread of its own and makes the process ignore SIGPIPE. A process makes one, before
/// its other threads. After the first signal the next one ends the process at once.
class Signals {
 public:
  Signals();
  ~Signals();

  /// Sets what the thread of the signals calls when the first one comes, or at once if it has come.
  void on_first(std::function<void()> action);
  /// Returns the first signal, once it has come.
  [[nodiscard]] int wait() { return first_.get(); }
  /// Waits for up to `limit` and returns whether the first signal has come.
  [[nodiscard]] bool wait_for(std::chrono::milliseconds limit) {
    return first_.wait_for(limit) == std::future_status::ready;
  }

 private:
  async::IoThread thread_{"signals"};
  boost::asio::signal_set signals_{thread_.context(), SIGTERM, SIGINT};
  std::promise<int> received_;
  std::future<int> first_ = received_.get_future();
  bool has_fired_ = false;  // on the thread, as the next
  std::function<void()> action_;
};

/// "SIGINT" or "SIGTERM".
[[nodiscard]] const char* signal_name(int signal);

}  // namespace millrace::app
