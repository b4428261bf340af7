#pragma once

#include <string>
#include <vector>

#include "cache/cache_counts.h"
#include "sched/stage/graph_stats.h"

namespace millrace::server {

/// Appends what /metrics says of the stages' page stores, in Prometheus' text form; nothing when there is none.
void append_store_metrics(std::string& out, const std::vector<cache::StageStoreStats>& stores);
/// Of how decode steps came to the stages' devices; nothing when none of these may record them.
void append_decode_metrics(std::string& out, const std::vector<sched::StageGraphStats>& stages);

}  // namespace millrace::server
