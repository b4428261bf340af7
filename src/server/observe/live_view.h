#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace millrace::sched {
class Engine;
class RingSet;
class RingView;
}  // namespace millrace::sched

namespace millrace::server {

struct LiveViewOptions {
  const sched::Engine& engine;            ///< of the ring that is shown
  const sched::RingSet* rings = nullptr;  ///< of the server, if it has several
  std::string_view model_name;
  uint64_t after = 0;      ///< only micro-batches above this number, of which the newest few hundred are written
  int64_t started_ns = 0;  ///< when this process began, by which the page detects a restart
  int64_t now_ns = 0;      ///< on the clock of this process
};

/// Appends the JSON object that the live page polls: the engine's state, sums of the last ten seconds, micro-batches.
/// All times are microseconds on the clock of the ring's head.
void append_live_view(std::string& out, const sched::RingView& ring, const LiveViewOptions& options);

}  // namespace millrace::server
