#pragma once

#include <cstdint>

namespace millrace::sched {

/// What a pause does with running requests.
enum class PauseMode : uint8_t {
  kInPlace,  ///< keeps their slots and pages
  kRetract,  ///< sends them back to the queue and frees their pages
  kAbort,    ///< ends them and all waiting requests
};

}  // namespace millrace::sched
