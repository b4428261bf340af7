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

  /// Completes the event, from any thread. wait() rethrows a non-null exception. Only the first call counts.
  void set(std::exception_ptr failure = nullptr) const;
  /// Returns when the event is set. A cancelled wait does not lose the event.
  [[nodiscard]] asio::awaitable<void> wait() const;
  /// Returns when the event is set, even if cancelled meanwhile: the cancellation takes effect at the caller's next
  /// suspension. Callers own memory that is in use until the event.
  [[nodiscard]] asio::awaitable<void> wait_uncancelled() const;
  [[nodiscard]] bool is_set() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace millrace::async
