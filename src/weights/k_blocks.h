#pragma once

#include <cstdint>

/// The parts of blocks of Q2_K and Q3_K: 256 weights each, 16 of which share a scale.
namespace millrace::weights {

/// Bytes of a block before these parts. Q2_K: 16 bytes with a scale and a minimum of 4 bits, codes, f16 scale, f16
/// minimum. Q3_K: high bits, two low bits of each code, 16 scales of 6 bits, f16 scale.
struct Q2KBlock {
  static constexpr int kCodes = 16;
  static constexpr int kScale = 80;
  static constexpr int kMinimum = 82;
};
struct Q3KBlock {
  static constexpr int kLowBits = 32;
  static constexpr int kFactors = 96;
  static constexpr int kScale = 108;
};

/// Returns two bits of weight `index`, of codes whose 128 weights share 32 bytes.
[[nodiscard]] constexpr int two_bits(const uint8_t* codes, int index) {
  return codes[index / 128 * 32 + index % 32] >> (index % 128 / 32 * 2) & 3;
}

/// Returns the integer of a weight of Q3_K, from -4 to 3.
[[nodiscard]] constexpr int q3_k_integer(const uint8_t* block, int index) {
  const int high = block[index % 32] >> (index / 32) & 1;
  return (two_bits(block + Q3KBlock::kLowBits, index) | high << 2) - 4;
}

/// Returns factor `index` of 16 of a block of Q3_K, from -32 to 31.
[[nodiscard]] constexpr int q3_k_factor(const uint8_t* block, int index) {
  const uint8_t* const factors = block + Q3KBlock::kFactors;
  const int low = factors[index % 8] >> (index / 8 * 4) & 15;
  const int high = factors[8 + index % 4] >> (index / 4 * 2) & 3;
  return (low | high << 4) - 32;
}

}  // namespace millrace::weights
