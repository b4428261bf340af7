#pragma once

#include <boost/asio/awaitable.hpp>

#include "sched/steps/step_epochs.h"

namespace millrace::sched {

/// A ring's part in the exchange of experts, around each common epoch. Used on the head's Runtime by a
/// SteppingRingBuilder, which it outlives.
class EpochExchange {
 public:
  virtual ~EpochExchange() = default;
  /// Prepares for the next epoch. Returns where other processes reach the ring's experts. Throws ErrorException.
  [[nodiscard]] virtual comm::TcpEndpoint open(async::Runtime& /*runtime*/) { return {}; }
  /// Waits until the ring's ranks reach those of the other rings in this epoch. Throws ErrorException on failure, and
  /// when the epoch ends before.
  [[nodiscard]] virtual asio::awaitable<void> begin(async::Runtime& runtime, const StepEpochs::Membership& epoch) = 0;
  /// Frees what open() and begin() have made, once no stage runs in the epoch.
  [[nodiscard]] virtual asio::awaitable<void> close() { co_return; }
  /// Makes a begin() under way throw, and later ones.
  virtual void interrupt() {}
};

}  // namespace millrace::sched
