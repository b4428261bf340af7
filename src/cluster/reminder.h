#pragma once

#include <string>
#include <utility>

#include "async/runtime.h"

namespace millrace::cluster {

/// Decides when a message that may repeat is logged: when it differs from the last one, and again after an interval.
class Reminder {
 public:
  Reminder(const async::Runtime& runtime, async::Duration interval) : runtime_(runtime), interval_(interval) {}
  /// Returns whether to log `message` now, and remembers it if so.
  [[nodiscard]] bool wants(std::string message) {
    const async::TimePoint now = runtime_.now();
    if (!last_.empty() && message == last_ && now < next_) return false;
    last_ = std::move(message);
    next_ = now + interval_;
    return true;
  }
  /// Returns whether no message has been logged since the last clear().
  [[nodiscard]] bool is_clear() const { return last_.empty(); }
  void clear() { last_.clear(); }

 private:
  const async::Runtime& runtime_;
  const async::Duration interval_;
  std::string last_;
  async::TimePoint next_;
};

}  // namespace millrace::cluster
