#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/post.hpp>
#include <exception>
#include <functional>
#include <utility>

#include "async/event.h"
#include "async/real_runtime.h"
#include "base/result.h"

namespace millrace::cluster {

/// A thread for calls that block, on behalf of coroutines of one Runtime. Owned by the Member, Coordinator or
/// NamingRingBuilder that waits for them.
class LoaderThread {
 public:
  /// Results are awaited on `runtime`, which outlives it.
  explicit LoaderThread(async::Runtime& runtime) : runtime_(runtime) {}

  /// Runs `work` here to its end, even if the caller is cancelled; an exception becomes an error.
  template <class T>
  [[nodiscard]] asio::awaitable<Result<T>> run(std::function<Result<T>()> work) {
    Result<T> result = Error{};
    const async::Event done(runtime_);
    asio::post(thread_.context(), [&] {
      try {
        result = work();
      } catch (const std::exception& failure) {
        result = Error{ErrorCode::kInternal, failure.what()};
      }
      done.set();
    });
    co_await done.wait_uncancelled();
    co_return std::move(result);
  }

 private:
  async::Runtime& runtime_;
  async::IoThread thread_{"loader"};
};

}  // namespace millrace::cluster
