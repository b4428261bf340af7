#include "server/worker.h"

#include <boost/asio/post.hpp>

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
  co_await done.wait_uncancelled();  // the thread uses this frame and the caller's
}

}  // namespace millrace::server
