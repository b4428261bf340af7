#pragma once

#include <cstdint>

#include "app/devices.h"
#include "app/engine_options.h"
#include "base/result.h"
#include "model/config.h"

namespace millrace::app {

/// Checks the flags of an engine against its model and resolves what depends on it: `--tp-size auto`, and the flags of
/// encoders. With an automatic number of ranks the device is chosen, too. Errors name the flag.
[[nodiscard]] Result<EngineOptions> resolve_options(const EngineOptions& options, const model::ModelConfig& config);

/// Checks that the ranks of a stage can exchange, of which this node has `ranks_here`. Errors: --nccl.
[[nodiscard]] Result<void> check_exchange(const EngineOptions& options, DeviceKind device, int32_t ranks_here,
                                          int32_t node_count);

}  // namespace millrace::app
