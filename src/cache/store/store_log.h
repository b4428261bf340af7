#pragma once

#include <fmt/core.h>

#include <chrono>
#include <map>
#include <mutex>
#include <string>

#include "base/log.h"

namespace millrace::cache {

/// Warnings of a store, at most one line per cause and interval: a full disk or a dead server would otherwise write a
/// line per page. What was held back is counted on the cause's next line. Used from any thread.
class StoreLog {
 public:
  static constexpr std::chrono::seconds kInterval{30};

  /// Writes a warning. `cause` identifies the cause and is not shown.
  template <class... Args>
  void warn(const std::string& cause, fmt::format_string<Args...> format, Args&&... args) {
    const int64_t suppressed = admit(cause);
    if (suppressed < 0) return;
    const std::string message = fmt::format(format, std::forward<Args>(args)...);
    if (suppressed == 0) {
      log::warn("{}", message);
    } else {
      log::warn("{} ({} more like it since the last line)", message, suppressed);
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Cause {
    Clock::time_point last;
    int64_t suppressed = 0;
  };
  /// Returns how many were held back since the last line; negative when this one is too.
  [[nodiscard]] int64_t admit(const std::string& cause);

  std::mutex mutex_;
  std::map<std::string, Cause> causes_;
};

}  // namespace millrace::cache
