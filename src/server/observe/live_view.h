#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "sched/head/engine.h"
#include "sched/head/ring_stats.h"

namespace millrace::server {

/// Appends the JSON object that the live page polls: the state of the engine, sums of the last ten seconds, and the
/// micro-batches whose number is above `since=N` of the query (the newest few hundred at most). Times of micro-batches
/// are microseconds on the head's clock, as are "now_us" and "started_us", by which the page sees a restart.
void append_live_view(std::string& out, const sched::RingStats& ring, const sched::Engine& engine,
                      std::string_view model_name, std::string_view query, int64_t started_ns, int64_t now_ns);

}  // namespace millrace::server
