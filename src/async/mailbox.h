#pragma once

#include <boost/asio/post.hpp>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "async/wait_list.h"

namespace millrace::async {

/// A bounded queue from any thread to the coroutines of one Runtime: the only way across threads except `post`. Copies
/// share one queue. The receiver's Runtime must outlive the last receive and the close. A receiver that leaves before
/// the senders closes the mailbox.
template <class T>
class Mailbox {
 public:
  Mailbox(Runtime& runtime, size_t capacity) : state_(std::make_shared<State>(runtime, capacity)) {}

  /// Appends a value, from any thread. Returns false when the mailbox is full or closed.
  [[nodiscard]] bool try_push(T value) const {
    const std::lock_guard lock(state_->mutex);
    if (state_->closed || state_->queue.size() >= state_->capacity) return false;
    state_->queue.push_back(std::move(value));
    wake();
    return true;
  }

  /// Accepts no more values, from any thread; the receiver drains the rest and then gets nothing. After the return
  /// nobody touches the receiver's Runtime. Idempotent.
  void close() const {
    const std::lock_guard lock(state_->mutex);
    if (std::exchange(state_->closed, true)) return;
    wake();
  }

  /// Returns whether close() has been called, from any thread.
  [[nodiscard]] bool closed() const {
    const std::lock_guard lock(state_->mutex);
    return state_->closed;
  }

  /// Waits for the next value, on the receiver's executor. Returns nothing once closed and drained. The wait may
  /// outlive the mailbox.
  [[nodiscard]] asio::awaitable<std::optional<T>> receive() const {
    const auto state = state_;
    for (;;) {
      {
        const std::lock_guard lock(state->mutex);
        if (!state->queue.empty() || state->closed) break;
      }
      co_await state->not_empty.wait();
    }
    co_return take(*state);
  }

  [[nodiscard]] std::optional<T> try_receive() const { return take(*state_); }

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

  static std::optional<T> take(State& state) {
    const std::lock_guard lock(state.mutex);
    if (state.queue.empty()) return std::nullopt;
    std::optional<T> value(std::move(state.queue.front()));
    state.queue.pop_front();
    return value;
  }

  /// Wakes the receiver. The caller holds the mutex, so that close() waits for a post under way.
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
