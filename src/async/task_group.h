#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <exception>
#include <functional>
#include <list>
#include <string>

#include "async/wait_list.h"

namespace millrace::async {

/// Owns the coroutines that it spawns on one executor: each has its own cancellation signal, and join() awaits them
/// all. The destructor CHECKs that none is left. All calls come from the executor.
class TaskGroup {
 public:
  /// Receives the exception of a task that ended with another one than its own cancellation.
  using ErrorHandler = std::function<void(const std::string& task, std::exception_ptr error)>;

  /// Creates a group that logs errors if it has no handler.
  explicit TaskGroup(Runtime& runtime, ErrorHandler on_error = {});
  TaskGroup(const TaskGroup&) = delete;
  TaskGroup& operator=(const TaskGroup&) = delete;
  ~TaskGroup();

  /// Starts `task` from the executor's queue, never inline. After close() it drops the task and returns false.
  bool spawn(std::string name, asio::awaitable<void> task);
  /// Refuses every later spawn().
  void close() { closed_ = true; }
  /// Cancels every running task (terminal cancellation: pending operations end with operation_aborted).
  void cancel();
  /// Returns when no task is left.
  [[nodiscard]] asio::awaitable<void> join();
  /// Acts as join(), but returns false when `deadline` comes first.
  [[nodiscard]] asio::awaitable<bool> join_until(TimePoint deadline);
  [[nodiscard]] size_t size() const { return tasks_.size(); }

 private:
  struct Task {
    std::string name;
    asio::cancellation_signal cancellation;
    bool cancelled = false;
  };
  void finish(std::list<Task>::iterator task, std::exception_ptr error);

  Runtime& runtime_;
  ErrorHandler on_error_;
  std::list<Task> tasks_;
  WaitList empty_;
  bool closed_ = false;
};

/// Returns the what() of an exception, for logs.
[[nodiscard]] std::string describe(const std::exception_ptr& error);

}  // namespace millrace::async
