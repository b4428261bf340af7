#pragma once

#include <memory>

#include "app/devices.h"
#include "app/node_options.h"
#include "app/rank_processors.h"
#include "base/result.h"
#include "sched/stage/stage_config.h"
#include "tensor/backend.h"

namespace millrace::app {

/// Makes the backend of one of the ranks that share this node's threads or GPUs. On a CPU all threads of the backend
/// run on the processors near the rank. Errors: --dtype, --cpu-isa, --pin-threads, --nccl.
[[nodiscard]] Result<std::unique_ptr<tensor::Backend>> make_rank_backend(DeviceKind device,
                                                                         const sched::StageConfig& stage,
                                                                         const NodeOptions& node, const NodeRank& rank);

}  // namespace millrace::app
