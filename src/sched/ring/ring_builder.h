#pragma once

#include <boost/asio/awaitable.hpp>
#include <memory>
#include <string>

#include "base/ids.h"
#include "cache/page_pool.h"
#include "comm/link.h"
#include "sched/steps/step_participant.h"

namespace millrace::sched {

/// The head's ends of a ring that has been built.
struct RingEnds {
  std::unique_ptr<comm::LinkSender> to_first_stage;
  std::unique_ptr<comm::LinkReceiver> from_last_stage;
  std::optional<cache::PoolSizes> pages;   ///< of every stage in this epoch; none: those of the epoch before
  std::unique_ptr<StepParticipant> steps;  ///< where the ring shares experts with others; else null
};

/// Links the stages of one epoch into a ring, and dissolves the ring; epochs follow one another. Outlives the Ring that
/// uses it, on the head's Runtime.
class RingBuilder {
 public:
  virtual ~RingBuilder() = default;
  /// Waits until every stage is there and runs in `epoch`. Throws ErrorException on failure; tear_down() follows then
  /// too.
  [[nodiscard]] virtual asio::awaitable<RingEnds> build(RingEpoch epoch) = 0;
  /// Returns when no stage runs in `epoch` any more.
  [[nodiscard]] virtual asio::awaitable<void> tear_down(RingEpoch epoch, std::string reason) = 0;
  /// Makes a build() under way throw, and later ones.
  virtual void interrupt() = 0;
};

}  // namespace millrace::sched
