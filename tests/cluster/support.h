#pragma once

#include <memory>
#include <string>

#include "cluster/control_connection.h"
#include "cluster/messages.h"
#include "model/config.h"
#include "sched/stage/local_stages.h"

namespace millrace::test {

/// Pages that a node has room for.
inline constexpr uint32_t kPages = 10;

/// Returns the assignment of one stage in a ring of small stages with `layers` layers each.
[[nodiscard]] cluster::Assignment one_stage(uint32_t stage, uint32_t stage_count, int32_t layers);

/// The stage of such an assignment, simulated.
[[nodiscard]] std::unique_ptr<sched::LocalStages> simulated_stage(async::Runtime& runtime,
                                                                  const cluster::Assignment& assignment,
                                                                  const model::ModelConfig& config,
                                                                  cache::PoolSizes pages);

/// A peer's end of a connection goes.
[[nodiscard]] asio::awaitable<void> end(std::shared_ptr<cluster::ControlConnection> connection);
/// Why the other end ends it; what that says before is dropped.
[[nodiscard]] asio::awaitable<std::string> end_of(std::shared_ptr<cluster::ControlConnection> connection);

}  // namespace millrace::test
