#include "cache/store/store_log.h"

#include <utility>

namespace millrace::cache {

int64_t StoreLog::admit(const std::string& cause) {
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  const auto [place, is_new] = causes_.try_emplace(cause, Cause{now});
  if (is_new) return 0;
  if (now - place->second.last < kInterval) {
    ++place->second.suppressed;
    return -1;
  }
  place->second.last = now;
  return std::exchange(place->second.suppressed, 0);
}

}  // namespace millrace::cache
