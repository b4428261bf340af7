#pragma once

#include <cstdint>

namespace millrace::sched {

/// The rows of the last layer from which the vector of a prompt is made, after the final norm.
enum class Pooling : uint8_t {
  kNone,   ///< no vector: the request generates or scores
  kFirst,  ///< the first token's row
  kLast,   ///< the last token's row
  kMean,   ///< the mean of all rows
};

}  // namespace millrace::sched
