#include "server/ring_address.h"

#include <fmt/format.h>

namespace millrace::server {

size_t ring_count(sched::Engine& engine) {
  const sched::RingSet* rings = engine.rings();
  return rings == nullptr ? 1 : rings->size();
}

std::optional<openai::ApiError> check_ring(sched::Engine& engine, std::optional<uint32_t> ring,
                                           std::string_view param) {
  const size_t count = ring_count(engine);
  if (!ring || *ring < count) return std::nullopt;
  return openai::ApiError{400, fmt::format("{}: found {}, wanted 0 to {}", param, *ring, count - 1),
                          std::string(param)};
}

sched::Engine& engine_of(sched::Engine& engine, std::optional<uint32_t> ring) {
  sched::RingSet* rings = engine.rings();
  return rings == nullptr || !ring ? engine : rings->ring(*ring);
}

}  // namespace millrace::server
