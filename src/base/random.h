#pragma once

#include <array>
#include <cstdint>

namespace millrace {

/// Philox4x32-10: a counter-based generator. The output is a pure function of (key, counter).
/// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
[[nodiscard]] constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 2> key,
                                                           std::array<uint32_t, 4> counter) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53u;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57u;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

/// Returns a uniform double in [0, 1) with 53 random bits, a function of (seed, position) alone.
[[nodiscard]] constexpr double uniform_at(uint64_t seed, uint64_t position) {
  const auto words = philox4x32({static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
                                {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0});
  const uint64_t bits = (static_cast<uint64_t>(words[0]) << 21) ^ (words[1] >> 11);
  return static_cast<double>(bits & ((uint64_t{1} << 53) - 1)) * 0x1.0p-53;
}

}  // namespace millrace
