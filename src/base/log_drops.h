#pragma once

#include <cstdint>

namespace millrace::log {

/// Returns the count of lines that were dropped because nobody read stderr. Logging never waits for a reader.
[[nodiscard]] uint64_t dropped_lines();

}  // namespace millrace::log
