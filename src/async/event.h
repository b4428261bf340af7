#pragma once

#include <exception>
#include <memory>

#include "async/wait_list.h"

namespace millrace::async {

/// A one-shot completion: set once from any thread, awaited on the Runtime's executor. Copies share the state, so the
/// side that sets it may outlive the side that waits.
class Event {
 public:
  explicit Event(Runtime& runtime);

  /// From any thread; a non-null exception is rethrown by wait(). Only the first call counts.
  void set(std::exception_ptr failure = nullptr) const;
  /// Returns when set; cancellable without losing the event.
  [[nodiscard]] asio::awaitable<void> wait() const;
  /// As wait(), but a cancellation meanwhile is only felt at the caller's next suspension: for memory that is in use
  /// until the event.
  [[nodiscard]] asio::awaitable<void> wait_uncancelled() const;
  [[nodiscard]] bool is_set() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace millrace::async
