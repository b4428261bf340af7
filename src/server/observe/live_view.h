#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace millrace::sched {
class Engine;
class RingStats;
}  // namespace millrace::sched

namespace millrace::server {

/// Appends the JSON object that the live page polls: the engine's state, sums of the last ten seconds, micro-batches.
/// The query `since=N` asks for micro-batches above number N, of which the newest few hundred are written. All times
/// are microseconds on the head's clock; the page detects a restart by "started_us".
void append_live_view(std::string& out, const sched::RingStats& ring, const sched::Engine& engine,
                      std::string_view model_name, std::string_view query, int64_t started_ns, int64_t now_ns);

}  // namespace millrace::server
