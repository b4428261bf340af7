#include "server/worker.h"

#include <boost/asio/cancellation_state.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>

#include "async/event.h"

namespace millrace::server {

asio::awaitable<void> Worker::run(std::function<void()> work) {
  const async::Event done(runtime_);
  asio::post(thread_, [&work, done] {
    std::exception_ptr failure;
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
    done.set(failure);
  });
  // The thread uses this frame and the caller's, so the wait outlives a cancellation.
  co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
  co_await done.wait();
  co_await asio::this_coro::reset_cancellation_state(asio::enable_terminal_cancellation());
}

}  // namespace millrace::server
