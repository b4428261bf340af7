#pragma once

#include <cstdint>

namespace millrace::sched {

/// Why a request ended well.
enum class FinishReason : uint8_t {
  kStop,    ///< a stop token was sampled, which is the last one delivered; the grammar is at its end; a vector is there
  kLength,  ///< max_tokens were generated, or the context is full
  kAbort,   ///< the client or an administrator ended it
};

}  // namespace millrace::sched
