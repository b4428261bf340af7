#include "async/event.h"

#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/system/system_error.hpp>

namespace millrace::async {

struct Event::State {
  explicit State(Runtime& runtime) : executor(runtime.executor()), done_signal(runtime) {}
  asio::any_io_executor executor;
  bool done = false;
  std::exception_ptr failure;
  WaitList done_signal;
};

Event::Event(Runtime& runtime) : state_(std::make_shared<State>(runtime)) {}

void Event::set(std::exception_ptr failure) const {
  asio::post(state_->executor, [state = state_, failure = std::move(failure)] {
    if (state->done) return;
    state->done = true;
    state->failure = failure;
    state->done_signal.resume_all();
  });
}

asio::awaitable<void> Event::wait() const {
  const auto state = state_;
  while (!state->done) co_await state->done_signal.wait();
  if (state->failure) std::rethrow_exception(state->failure);
}

asio::awaitable<void> Event::wait_uncancelled() const {
  const auto state = state_;
  const bool throws = co_await asio::this_coro::throw_if_cancelled();
  co_await asio::this_coro::throw_if_cancelled(false);
  while (!state->done) {
    try {
      co_await state->done_signal.wait();
    } catch (const boost::system::system_error&) {
      // A cancellation ends this wait, not what is waited for.
    }
  }
  co_await asio::this_coro::throw_if_cancelled(throws);
  if (state->failure) std::rethrow_exception(state->failure);
}

bool Event::is_set() const {
  return state_->done;
}

}  // namespace millrace::async
