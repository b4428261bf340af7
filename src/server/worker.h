#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/thread_pool.hpp>
#include <functional>

#include "async/runtime.h"

namespace millrace::server {

/// A thread for work that would hold up running streams: parsing and tokenising large bodies, writing responses of many
/// logprobs. Owned by Api; `run` is called on the server's executor.
class Worker {
 public:
  /// Bodies above this size are worth the handover: about a millisecond's work.
  static constexpr size_t kLargeBodyBytes = 32u << 10;

  explicit Worker(async::Runtime& runtime) : runtime_(runtime) {}
  ~Worker() { thread_.join(); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Runs `work` on the thread and waits for it; rethrows what it throws. A cancellation meanwhile takes effect at the
  /// caller's next suspension.
  [[nodiscard]] asio::awaitable<void> run(std::function<void()> work);

 private:
  async::Runtime& runtime_;
  asio::thread_pool thread_{1};
};

}  // namespace millrace::server
