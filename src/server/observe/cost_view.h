#pragma once

#include <string>

#include "sched/head/ring_stats.h"

namespace millrace::server {

/// The ring as a cluster that `millrace simulate --cluster` reads (docs/simulation.md): what each stage's micro-batches
/// cost as learnt so far and take from each other, the mean latency of the links and of the head, the pool of pages.
/// `costs` knows its stages.
void append_cost_view(std::string& out, const sched::RingCosts& costs, const sched::RingSnapshot& ring,
                      const std::string& model_name);

}  // namespace millrace::server
