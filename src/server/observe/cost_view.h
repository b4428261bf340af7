#pragma once

#include <string>

#include "sched/head/ring_stats.h"

namespace millrace::server {

/// Appends the ring as a cluster that `millrace simulate --cluster` reads (docs/simulation.md). It has the stages'
/// fitted costs and contention, the mean latency of links and head, and the page pool. `costs` must know its stages.
void append_cost_view(std::string& out, const sched::RingCosts& costs, const sched::RingSnapshot& ring,
                      const std::string& model_name);

}  // namespace millrace::server
