#pragma once

#include <string>
#include <vector>

#include "cache/cache_counts.h"
#include "sched/stage/graph_stats.h"

namespace millrace::server {

/// Appends the metrics of the stages' page stores, in Prometheus' text form; nothing when there is none.
void append_store_metrics(std::string& out, const std::vector<cache::StageStoreStats>& stores);
/// Appends how many decode steps the stages replayed as graphs; nothing when no stage can record graphs.
void append_decode_metrics(std::string& out, const std::vector<sched::StageGraphStats>& stages);

}  // namespace millrace::server
