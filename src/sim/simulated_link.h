#pragma once

#include <functional>
#include <optional>
#include <string>

#include "comm/in_process_link.h"

namespace millrace::sim {

struct SimulatedLinkOptions {
  double bytes_per_second = 0;  ///< of each kind of message, which have a lane each; 0: no limit
  async::Duration latency{};
  bool keeps_bytes = true;  ///< false: activations arrive with the right size and whatever content
  /// Asked at each message: why the link breaks instead of delivering it.
  std::function<std::optional<std::string>()> fault;
  /// Asked at each message: how much later it leaves, and what comes behind it.
  std::function<async::Duration()> delay;
};

/// An in-process link on which messages take time: they leave one after another at the bandwidth and arrive after the
/// latency. A borrowed buffer is released once it has left. Activations that keep their bytes go to posted memory; the
/// network holds what comes before its post.
[[nodiscard]] comm::Link make_simulated_link(const SimulatedLinkOptions& options, async::Runtime& sender,
                                             async::Runtime& receiver, size_t capacity);

}  // namespace millrace::sim
