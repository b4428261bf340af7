#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>

namespace millrace::test {

/// Returns a fresh seed per run, or MILLRACE_TEST_SEED. Tests print it with INFO.
[[nodiscard]] inline uint64_t test_seed() {
  static const uint64_t seed = [] {
    if (const char* given = std::getenv("MILLRACE_TEST_SEED")) return std::strtoull(given, nullptr, 10);
    return static_cast<unsigned long long>(std::chrono::system_clock::now().time_since_epoch().count() / 1000 %
                                           1000000007);
  }();
  return seed;
}

}  // namespace millrace::test
