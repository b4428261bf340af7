#pragma once

#include <functional>
#include <optional>
#include <string>

#include "comm/in_process_link.h"

namespace millrace::sim {

struct SimulatedLinkOptions {
  double bytes_per_second = 0;  ///< per kind of message, each of which has its own lane; 0: no limit
  async::Duration latency{};
  bool keeps_bytes = true;  ///< false: activations arrive with the right size and any content
  /// A function of each message that returns a reason to break the link instead of delivering it.
  std::function<std::optional<std::string>()> fault;
  /// A function of each message that returns how much later it and the messages after it leave.
  std::function<async::Duration()> delay;
};

/// Creates an in-process link on which messages take time: they leave one after another at the bandwidth and arrive
/// after the latency. A borrowed buffer is released once it has left. Activations that keep their bytes go to posted
/// memory; the network holds those that come before their post.
[[nodiscard]] comm::Link make_simulated_link(const SimulatedLinkOptions& options, async::Runtime& sender,
                                             async::Runtime& receiver, size_t capacity);

}  // namespace millrace::sim
