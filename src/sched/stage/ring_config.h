#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "async/runtime.h"
#include "base/ids.h"
#include "comm/in_process_link.h"
#include "sched/stage/stage_bounds.h"
#include "tensor/collective.h"
#include "tensor/expert_exchange.h"

namespace millrace::sched {

/// The configuration that all stages of a ring share.
struct RingConfig {
  uint32_t stage_count = 1;
  uint32_t rank_count = 1;  ///< of each stage
  size_t window = 1;        ///< plans in flight at most
  StageBounds bounds;
  async::Duration watchdog{};  ///< StageLoopOptions::watchdog
  /// Links neighbours in one process, given the sender's Runtime, the receiver's, and how many messages of a kind may
  /// wait.
  std::function<comm::Link(async::Runtime&, async::Runtime&, size_t)> make_link = comm::make_in_process_link;
  /// Makes the ends of the exchanges between the ranks of a stage, for one epoch, given their devices
  /// (StageRunner::channel_backend). Called if there are several ranks.
  std::function<std::vector<std::unique_ptr<tensor::Collective>>(StageId, const std::vector<tensor::Backend*>&)>
      make_collectives;
  size_t exchange_bytes = 0;  ///< of the largest result of such an exchange
  /// Makes a rank's end of the exchange of experts with other rings, for one epoch, given its number in its stage and
  /// its device. Empty: the ring has all experts of its model.
  std::function<std::unique_ptr<tensor::ExpertExchange>(StageId, uint32_t, tensor::Backend*)> make_expert_exchange;
};

}  // namespace millrace::sched
