#pragma once

#include <deque>
#include <optional>
#include <utility>

#include "async/wait_list.h"
#include "base/check.h"

namespace millrace::async {

/// A bounded queue between coroutines of one executor, owned by one of them. It loses nothing that it accepted: after
/// close() the receiver drains what is buffered, and a cancelled receive takes nothing.
template <class T>
class Channel {
 public:
  Channel(Runtime& runtime, size_t capacity) : capacity_(capacity), not_empty_(runtime), not_full_(runtime) {
    CHECK(capacity > 0);
  }

  /// Waits for room. Returns false, and drops the value, when the channel is or becomes closed.
  [[nodiscard]] asio::awaitable<bool> send(T value) {
    while (!closed_ && queue_.size() >= capacity_) co_await not_full_.wait();
    co_return try_send(std::move(value));
  }

  /// Returns false when the channel is closed or full.
  [[nodiscard]] bool try_send(T value) {
    if (closed_ || queue_.size() >= capacity_) return false;
    queue_.push_back(std::move(value));
    not_empty_.notify_one();
    return true;
  }

  /// Acts as try_send(), but resumes a waiting receiver within the call (WaitList::resume_one), which the channel must
  /// outlive.
  [[nodiscard]] bool hand_over(T value) {
    if (closed_ || queue_.size() >= capacity_) return false;
    queue_.push_back(std::move(value));
    not_empty_.resume_one();
    return true;
  }

  /// Waits for the next value; returns nothing once the channel is closed and drained.
  [[nodiscard]] asio::awaitable<std::optional<T>> receive() {
    while (queue_.empty() && !closed_) co_await not_empty_.wait();
    co_return try_receive();
  }

  [[nodiscard]] std::optional<T> try_receive() {
    if (queue_.empty()) return std::nullopt;
    std::optional<T> value(std::move(queue_.front()));
    queue_.pop_front();
    not_full_.notify_one();
    if (!queue_.empty()) not_empty_.notify_one();
    return value;
  }

  void close() {
    closed_ = true;
    not_empty_.notify_all();
    not_full_.notify_all();
  }

  [[nodiscard]] size_t size() const { return queue_.size(); }
  [[nodiscard]] bool closed() const { return closed_; }

 private:
  const size_t capacity_;
  bool closed_ = false;
  std::deque<T> queue_;
  WaitList not_empty_;
  WaitList not_full_;
};

}  // namespace millrace::async
