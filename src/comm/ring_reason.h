#pragma once

#include <cstdint>
#include <string>

namespace millrace::comm {

/// Returns how `ring` says why the rings that share experts have ended: rings are named to each other. `origin` is the
/// ring that ended first; below 0, no ring is to blame.
[[nodiscard]] inline std::string ring_reason(int32_t ring, int32_t origin, const std::string& reason) {
  return origin < 0 || ring == origin ? reason : "ring " + std::to_string(origin) + ": " + reason;
}

}  // namespace millrace::comm
