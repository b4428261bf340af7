#pragma once

#include <string>

#include "sched/head/ring_set.h"
#include "sched/head/ring_stats.h"
namespace millrace::sched {
struct EngineStatus;
struct RingSnapshot;
}  // namespace millrace::sched

namespace millrace::server {

/// Appends the ring's metrics, in Prometheus' text form.
void append_ring_metrics(std::string& out, const sched::RingSnapshot& ring, const sched::EngineStatus& status,
                         std::string_view model_name);
/// Appends the metrics of the routing between several rings, with the label ring="i".
void append_router_metrics(std::string& out, const sched::RingSet& rings);

}  // namespace millrace::server
