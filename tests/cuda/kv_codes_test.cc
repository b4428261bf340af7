// Kernels dequantize 8-bit keys and values pair by pair, with the bits of products in f32 that are rounded once.

#include "cuda/kv_codes.cuh"

#include <cmath>
#include <vector>

#include "cuda/device_array.h"
#include "tensor/fp8.h"

using namespace millrace;
using namespace millrace::test;
using cuda::KvElement;

namespace {

/// Returns scales in bf16, of all sizes that caches have: from 2^-107 to 2^119.
std::vector<uint16_t> random_scales(Random& random) {
  std::vector<uint16_t> scales = {0, 0x0A00, 0x7B00, 0x7B02, 0x3F80, 0x3FFF};
  for (int i = 0; i < 200; ++i) scales.push_back(static_cast<uint16_t>(random.integer(0x0A00, 0x7B02)));
  return scales;
}

template <KvElement kElement>
float number_of(uint32_t code) {
  if (kElement == KvElement::kInt8) return static_cast<float>(static_cast<int8_t>(code));
  return tensor::kE4M3[code];
}
template <KvElement kElement>
uint16_t product_of(uint32_t code, uint16_t scale) {
  return cuda::float_to_bf16(number_of<kElement>(code) * cuda::bf16_to_float(scale));
}
bool has_subnormal_product(uint16_t bits) {
  return (bits & 0x7F80u) == 0 && (bits & 0x7Fu) != 0;
}

template <KvElement kElement>
void check_words() {
  INFO("seed " << test_seed());
  Random random(test_seed() + 137);
  const std::vector<uint16_t> scales = random_scales(random);
  for (size_t s = 0; s + 1 < scales.size(); ++s) {
    const uint32_t pair = scales[s] | static_cast<uint32_t>(scales[s + 1]) << 16;
    for (uint32_t code = 0; code < 256; ++code) {
      uint32_t codes[4];
      uint32_t word = 0;
      for (uint32_t i = 0; i < 4; ++i) {
        codes[i] = (code + i * 85) & 0xFFu;
        if (std::isnan(number_of<kElement>(codes[i]))) codes[i] = 0;
        word |= codes[i] << (8 * i);
      }
      const cuda::CodePairs got = cuda::dequantize_word<kElement>(word, pair);
      const uint32_t halves[4] = {got.even & 0xFFFFu, got.odd & 0xFFFFu, got.even >> 16, got.odd >> 16};
      for (size_t i = 0; i < 4; ++i) {
        const uint16_t wanted = product_of<kElement>(codes[i], scales[s + i / 2]);
        INFO("code " << codes[i] << " times bf16 " << scales[s + i / 2]);
        // Encoding gives a scale of zero codes of zero only.
        if (scales[s + i / 2] == 0 || has_subnormal_product(wanted)) continue;
        if (halves[i] != wanted) REQUIRE(halves[i] == wanted);
      }
    }
  }
}

template <KvElement kElement>
void check_order() {
  constexpr uint16_t kScale = 0x3F20;
  const uint4 got = cuda::dequantize_codes<kElement>(uint2{0x40302010u, 0xC8B8A898u}, kScale);
  const uint32_t words[4] = {got.x, got.y, got.z, got.w};
  const uint32_t codes[8] = {0x10, 0x20, 0x30, 0x40, 0x98, 0xA8, 0xB8, 0xC8};
  for (size_t i = 0; i < 8; ++i) {
    REQUIRE((words[i / 2] >> (16 * (i % 2)) & 0xFFFFu) == product_of<kElement>(codes[i], kScale));
  }
}

}  // namespace

TEST_CASE("CUDA codes times a scale have the bits of products in f32") {
  check_words<KvElement::kInt8>();
  check_words<KvElement::kE4M3>();
  check_order<KvElement::kInt8>();
  check_order<KvElement::kE4M3>();
}

TEST_CASE("CUDA codes times a NaN are NaNs") {
  constexpr uint32_t kNaNs = 0x7FC07FC0u;
  for (const uint32_t word : {0u, 0x80FF7F01u}) {
    const cuda::CodePairs got = cuda::dequantize_word<KvElement::kInt8>(word, kNaNs);
    for (const uint32_t pair : {got.even, got.odd}) {
      REQUIRE(std::isnan(cuda::bf16_to_float(static_cast<uint16_t>(pair))));
      REQUIRE(std::isnan(cuda::bf16_to_float(static_cast<uint16_t>(pair >> 16))));
    }
  }
}
