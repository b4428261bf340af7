#pragma once

#include <cstddef>
#include <limits>

namespace millrace::comm {

inline constexpr size_t kUnboundedBudget = std::numeric_limits<size_t>::max();

/// Bytes that may be handed to a connected TCP socket now. Once what is under way waits in queues along the path, which
/// shows in the round trips, it is bounded to about a quarter of a second's worth, whatever the congestion control
/// would put there: heartbeats that share a slow link with activations are late by no more. 0: wait a moment. A socket
/// that cannot be asked is not bounded.
[[nodiscard]] size_t send_budget(int socket);

}  // namespace millrace::comm
