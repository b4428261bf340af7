#pragma once

#include <boost/asio/post.hpp>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "async/wait_list.h"

namespace millrace::async {

/// A bounded queue from any thread to the coroutines of one Runtime: the only way across threads besides `post`.
/// Copies share one queue. The receiver's Runtime must outlive its last receive and the mailbox's being closed, and no
/// more: a receiver that leaves before the senders closes it.
template <class T>
class Mailbox {
 public:
  Mailbox(Runtime& runtime, size_t capacity) : state_(std::make_shared<State>(runtime, capacity)) {}

  /// From any thread. False when the mailbox is full or closed.
  [[nodiscard]] bool try_push(T value) const {
    const std::lock_guard lock(state_->mutex);
    if (state_->closed || state_->queue.size() >= state_->capacity) return false;
    state_->queue.push_back(std::move(value));
    wake();
    return true;
  }

  /// From any thread: nothing is accepted any more, the receiver drains and then gets nothing. When it returns, nobody
  /// touches the receiver's Runtime any more. Idempotent.
  void close() const {
    const std::lock_guard lock(state_->mutex);
    if (std::exchange(state_->closed, true)) return;
    wake();
  }

  /// From any thread.
  [[nodiscard]] bool closed() const {
    const std::lock_guard lock(state_->mutex);
    return state_->closed;
  }

  /// On the receiver's executor: the next value; nothing once closed and drained.
  [[nodiscard]] asio::awaitable<std::optional<T>> receive() const {
    const auto state = state_;
    for (;;) {
      {
        const std::lock_guard lock(state->mutex);
        if (!state->queue.empty() || state->closed) break;
      }
      co_await state->not_empty.wait();
    }
    co_return try_receive();
  }

  [[nodiscard]] std::optional<T> try_receive() const {
    const std::lock_guard lock(state_->mutex);
    if (state_->queue.empty()) return std::nullopt;
    std::optional<T> value(std::move(state_->queue.front()));
    state_->queue.pop_front();
    return value;
  }

 private:
  struct State {
    State(Runtime& runtime, size_t bound) : executor(runtime.executor()), capacity(bound), not_empty(runtime) {}
    asio::any_io_executor executor;
    const size_t capacity;
    std::mutex mutex;
    std::deque<T> queue;
    bool closed = false;
    bool wake_posted = false;
    WaitList not_empty;  // touched on the receiver's executor only
  };

  /// With the mutex locked, so that close() waits for a post under way.
  void wake() const {
    if (std::exchange(state_->wake_posted, true)) return;
    asio::post(state_->executor, [state = state_] {
      {
        const std::lock_guard guard(state->mutex);
        state->wake_posted = false;
      }
      state->not_empty.resume_all();
    });
  }

  std::shared_ptr<State> state_;
};

}  // namespace millrace::async
