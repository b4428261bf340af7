#include "hub/retry.h"

#include <algorithm>

#include "base/log.h"

namespace millrace::hub {

asio::awaitable<void> Retry::wait(async::Runtime& runtime, Error error, std::optional<std::chrono::seconds> asked) {
  const bool may_help = error.code == ErrorCode::kUnavailable || error.code == ErrorCode::kTimeout;
  if (!may_help || ++failures_ >= kMaxAttempts) throw ErrorException(std::move(error));
  std::chrono::milliseconds delay = first_delay_ * (1 << (failures_ - 1));
  if (asked) {
    delay = std::max<std::chrono::milliseconds>(delay, *asked);
    if (delay > patience_) throw ErrorException(std::move(error));
    patience_ -= delay;
  }
  log::warn("{}; trying again in {} ms", error.message, delay.count());
  co_await async::sleep_for(runtime, delay);
}

}  // namespace millrace::hub
