#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace millrace::test {

/// Returns how often a test repeats what it draws at random: `count` times MILLRACE_TEST_EFFORT percent, at least once.
/// `./test --sanitize thread` sets a low effort, since it slows every instruction.
inline uint64_t repetitions(uint64_t count) {
  const char* given = std::getenv("MILLRACE_TEST_EFFORT");
  const uint64_t percent = given == nullptr ? 100 : std::strtoull(given, nullptr, 10);
  return std::max<uint64_t>(1, count * percent / 100);
}

}  // namespace millrace::test
