#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sched/head/engine.h"

namespace millrace::sched {

/// Requests that were routed to one ring for one reason, since the start.
struct RouteCount {
  std::string_view reason;  ///< for metrics
  uint64_t requests = 0;
};

/// One ring of several, as the front shows it.
struct RingReport {
  EngineStatus status;
  std::string fault;  ///< why it takes no requests; empty: it takes them
  bool is_draining = false;
  std::vector<RouteCount> routed;
  uint64_t moved = 0;  ///< requests that left its queue for another ring
};

/// The rings of an engine that routes between several. Thread-safe. Rings are numbered from 0.
class RingSet {
 public:
  virtual ~RingSet() = default;
  [[nodiscard]] virtual size_t size() const = 0;
  /// Returns the engine that is ring `ring` alone. Requests go through the whole engine instead, which routes them.
  [[nodiscard]] virtual Engine& ring(size_t ring) = 0;
  [[nodiscard]] virtual RingReport report(size_t ring) const = 0;
  /// Ends all requests of one ring as kAbort. Returns how many.
  virtual size_t abort_all(size_t ring) = 0;
  /// Acts as Engine::flush_cache() on one ring.
  [[nodiscard]] virtual asio::awaitable<Result<void>> flush(size_t ring, async::Runtime& runtime,
                                                            async::Duration timeout) = 0;
  /// Routes no more requests to a ring. Those that wait there and have never run move to the others; the running ones
  /// go on. kConflict: no other ring serves.
  [[nodiscard]] virtual Result<void> drain(size_t ring) = 0;
  /// Ends a drain.
  virtual void undrain(size_t ring) = 0;
  /// Breaks a ring, which is built again, and routes requests to it once it is ready. Its running requests end with an
  /// error. Returns false where that is impossible, as Engine::rebuild() does.
  virtual bool restart(size_t ring) = 0;
};

}  // namespace millrace::sched
