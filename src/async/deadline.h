#pragma once

#include <functional>
#include <utility>

#include "async/runtime.h"

namespace millrace::async {

/// Calls `action` at `when`, unless it is destroyed before. Its owner is a coroutine that waits for something that the
/// action closes. Used on the Runtime's executor.
class Deadline {
 public:
  Deadline(Runtime& runtime, TimePoint when, std::function<void()> action)
      : runtime_(runtime), timer_(runtime.arm(when, [this, action = std::move(action)] {
          passed_ = true;
          action();
        })) {}
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;
  ~Deadline() { runtime_.disarm(timer_); }
  [[nodiscard]] bool passed() const { return passed_; }

 private:
  Runtime& runtime_;
  bool passed_ = false;
  TimerId timer_;
};

}  // namespace millrace::async
