#pragma once

#include <boost/asio/awaitable.hpp>

#include "sched/steps/step_epochs.h"

namespace millrace::sched {

/// A ring's part in the exchange of experts, around each common epoch. Used on the head's Runtime by a
/// SteppingRingBuilder, which it outlives.
class EpochExchange {
 public:
  virtual ~EpochExchange() = default;
  /// Waits until the ring can take part in the next epoch. Returns what the other rings get to know of it. Throws
  /// ErrorException.
  [[nodiscard]] virtual asio::awaitable<comm::RingExperts> open(async::Runtime& /*runtime*/) {
    co_return comm::RingExperts{};
  }
  /// Prepares the ring's builder for this epoch, so that its ranks reach those of the other rings. Throws
  /// ErrorException on failure, and when the epoch ends before.
  [[nodiscard]] virtual asio::awaitable<void> begin(async::Runtime& runtime, const StepEpochs::Membership& epoch) = 0;
  /// Frees what open() and begin() have made, once no stage runs in the epoch.
  [[nodiscard]] virtual asio::awaitable<void> close() { co_return; }
  /// Makes a begin() under way throw, and later ones.
  virtual void interrupt() {}
};

}  // namespace millrace::sched
