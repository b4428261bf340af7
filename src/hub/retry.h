#pragma once

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <optional>
#include <string>

#include "async/runtime.h"
#include "base/result.h"

namespace millrace::hub {

/// Decides how often and after which wait a request is repeated. Waits are 1, 2, 4, … times the settings' delay, until
/// kMaxAttempts attempts in a row have brought nothing. Owned by the download of one file, or of one list.
class Retry {
 public:
  static constexpr int kMaxAttempts = 6;

  Retry(std::chrono::milliseconds delay, std::chrono::seconds patience) : first_delay_(delay), patience_(patience) {}

  /// Records that bytes have come, so that later failures count anew.
  void note_progress() { failures_ = 0; }
  /// Waits before the next attempt, at least as long as the server asked for. Throws `error` when there is none left,
  /// when repeating cannot help, or when the waits that the server asked for add up to more than the patience.
  [[nodiscard]] asio::awaitable<void> wait(async::Runtime& runtime, Error error,
                                           std::optional<std::chrono::seconds> asked = {});

 private:
  const std::chrono::milliseconds first_delay_;
  std::chrono::milliseconds patience_;  // what is left of it
  int failures_ = 0;
};

}  // namespace millrace::hub
