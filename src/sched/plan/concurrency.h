#pragma once

#include <cstdint>
#include <span>

#include "base/enum_names.h"

namespace millrace::sched {

/// What keeps more requests from running at once.
enum class ConcurrencyLimit : uint8_t {
  kMaxRunning,  ///< SchedulerOptions::max_running
  kTokens,      ///< pages of the first cache group
  kWindow,      ///< pages of layers that see a window
  kStates,      ///< pages of recurrent layers
};

inline constexpr EnumName<ConcurrencyLimit> kConcurrencyLimitNames[] = {
    {ConcurrencyLimit::kMaxRunning, "max_running_requests"},
    {ConcurrencyLimit::kTokens, "tokens"},
    {ConcurrencyLimit::kWindow, "windows"},
    {ConcurrencyLimit::kStates, "states"},
};
constexpr std::span<const EnumName<ConcurrencyLimit>> enum_names(ConcurrencyLimit) {
  return kConcurrencyLimitNames;
}

/// How many requests of one length the KV cache has room for at once, if they share no prefix.
struct Concurrency {
  uint32_t tokens = 0;  ///< prompt and output of each
  uint32_t requests = 0;
  ConcurrencyLimit limit = ConcurrencyLimit::kMaxRunning;
  friend bool operator==(const Concurrency&, const Concurrency&) = default;
};

}  // namespace millrace::sched
