#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "comm/ring_experts.h"

/// The messages between the process of the step coordinator and a ring of another process that shares experts with its
/// rings.
namespace millrace::sched {

/// Ring → coordinator: the ring waits for the next common epoch. Ranks on the host of its head have no host.
struct JoinEpoch {
  comm::RingExperts experts;
};
/// Coordinator → ring: all rings have joined.
struct EpochBegun {
  uint64_t epoch = 0;
  std::vector<comm::RingExperts> rings;  ///< ranks on the host of the coordinator have no host
};
/// Ring → coordinator: the ring is about to begin a step past the target. Coordinator → ring: the new target.
struct StepReached {
  uint64_t epoch = 0;
  uint64_t step = 0;
};
/// Both: the epoch is over, because of `ring`. The coordinator names no ring (-1), since its reason has the name.
struct EpochEnded {
  uint64_t epoch = 0;
  int32_t ring = -1;
  std::string reason;
};
/// Ring → coordinator: the ring has no work left in the epoch.
struct EpochLeft {
  uint64_t epoch = 0;
};

using StepMessage = std::variant<JoinEpoch, EpochBegun, StepReached, EpochEnded, EpochLeft>;
/// Sends a message to the other process, in order. Never waits.
using SendStepMessage = std::function<void(const StepMessage& message)>;

[[nodiscard]] std::vector<std::byte> encode(const StepMessage& message);
/// Returns kData for anything but one whole message.
[[nodiscard]] Result<StepMessage> decode_step_message(std::span<const std::byte> bytes);

}  // namespace millrace::sched
