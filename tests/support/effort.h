#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <random>
#include <vector>

#include "support/test_seed.h"

namespace millrace::test {

/// Returns how often a test repeats what it draws at random: `count` times MILLRACE_TEST_EFFORT percent, at least once.
/// `./test --sanitize thread` sets a low effort, since it slows every instruction.
inline uint64_t repetitions(uint64_t count) {
  const char* given = std::getenv("MILLRACE_TEST_EFFORT");
  const uint64_t percent = given == nullptr ? 100 : std::strtoull(given, nullptr, 10);
  return std::max<uint64_t>(1, count * percent / 100);
}

/// Returns as many of the values as repetitions() says, drawn at random, in their order.
template <class T>
std::vector<T> drawn_from(const std::vector<T>& all) {
  std::vector<T> drawn;
  std::mt19937_64 random(test_seed());
  std::ranges::sample(all, std::back_inserter(drawn), static_cast<std::ptrdiff_t>(repetitions(all.size())), random);
  return drawn;
}

}  // namespace millrace::test
