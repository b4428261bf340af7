#pragma once

#include <memory>

#include "app/devices.h"
#include "app/node_options.h"
#include "base/result.h"
#include "sched/stage/stage_config.h"
#include "tensor/backend.h"

namespace millrace::app {

/// Returns the threads that one of `stage_count` stages of this node computes with. `threads`: over all of them; 0: one
/// per CPU.
[[nodiscard]] int32_t threads_per_stage(int32_t threads, int32_t stage_count);

/// Makes the backend of the `index`th of `stage_count` stages of a ring on this node. All stages of `node.ring_count`
/// rings share the node's threads or GPUs. Errors:
/// --dtype, --cpu-isa, --pin-threads.
[[nodiscard]] Result<std::unique_ptr<tensor::Backend>> make_stage_backend(DeviceKind device,
                                                                          const sched::StageConfig& stage,
                                                                          const NodeOptions& node, int32_t stage_count,
                                                                          int32_t index);

}  // namespace millrace::app
