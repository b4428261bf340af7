#pragma once

#include <cstddef>
#include <limits>

namespace millrace::comm {

inline constexpr size_t kUnboundedBudget = std::numeric_limits<size_t>::max();

/// Returns how many bytes may be written to a connected TCP socket now; 0 means to wait a moment. Round trips show when
/// bytes in flight wait in queues along the path. Then they are bounded to about a quarter of a second's worth,
/// whatever the congestion control allows. So heartbeats that share a slow link with activations are late by no more. A
/// socket without statistics is not bounded.
[[nodiscard]] size_t send_budget(int socket);

}  // namespace millrace::comm
