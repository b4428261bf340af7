#include "cpu/latent_codes.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "conformance/latent_sequences.h"
#include "cpu/device.h"

using namespace millrace;
using tensor::DType;
using tensor::KvDType;
using test::Values;

namespace {

constexpr int32_t kPaddedDim = 288;

/// Returns `count` latents of all sizes, each with a key.
Values random_tokens(test::Random& random, int32_t latent_dim, int32_t rope_dim, int count) {
  Values values = random.normal(int64_t{count} * (latent_dim + rope_dim));
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::ldexp(values[i], static_cast<int>(i * 7 % 23) - 11);
  return values;
}

/// Returns what attention reads of tokens that were stored as codes: [count, kPaddedDim].
Values stored_and_widened(const cpu::Kernels& kernels, const cpu::LatentCodeLayout& layout, const Values& values,
                          int count, DType dtype) {
  const size_t width = values.size() / static_cast<size_t>(count);
  std::vector<std::byte> pages(layout.token_bytes() * static_cast<size_t>(count) + 2);
  std::vector<const std::byte*> tokens;
  for (int i = count - 1; i >= 0; --i) {
    std::byte* const token = pages.data() + 2 + layout.token_bytes() * static_cast<size_t>(i);
    layout.encode({values.data() + static_cast<size_t>(i) * width, width}, token);
    tokens.insert(tokens.begin(), token);
  }
  std::vector<std::byte> wide(static_cast<size_t>(count * kPaddedDim) * tensor::size_of(dtype), std::byte{0x7F});
  kernels.widen_latents(layout.describe(tokens, kPaddedDim), wide.data());
  Values result(static_cast<size_t>(count * kPaddedDim));
  if (dtype == DType::kF32) {
    std::memcpy(result.data(), wide.data(), wide.size());
    return result;
  }
  for (size_t i = 0; i < result.size(); ++i) {
    tensor::BFloat16 narrow;
    std::memcpy(&narrow, wide.data() + i * sizeof(narrow), sizeof(narrow));
    result[i] = narrow.to_float();
  }
  return result;
}

}  // namespace

TEST_CASE("all sets widen latents to exactly what their codes say") {
  INFO("seed " << test::test_seed());
  test::Random random(test::test_seed() + 80);
  constexpr int kCount = 16;
  for (const auto& [latent_dim, rope_dim] : {std::pair{256, 32}, std::pair{200, 24}, std::pair{40, 6}}) {
    const auto width = static_cast<size_t>(latent_dim + rope_dim);
    const Values values = random_tokens(random, latent_dim, rope_dim, kCount);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const KvDType stored : {KvDType::kInt8, KvDType::kFp8E4M3}) {
        Values wanted;
        for (size_t i = 0; i < kCount; ++i) {
          const auto from = values.begin() + static_cast<std::ptrdiff_t>(i * width);
          Values token = test::stored_latent(Values(from, from + latent_dim), dtype, stored);
          const Values key = reference::rounded(Values(from + latent_dim, from + latent_dim + rope_dim), dtype);
          token.insert(token.end(), key.begin(), key.end());
          token.resize(kPaddedDim, 0.0f);
          wanted.insert(wanted.end(), token.begin(), token.end());
        }
        const cpu::LatentCodeLayout layout(stored, dtype, latent_dim, rope_dim);
        for (const cpu::Isa isa : cpu::available_isas()) {
          INFO(cpu::to_string(isa) << ", " << enum_name(stored) << " to " << tensor::to_string(dtype) << ", latents of "
                                   << latent_dim);
          REQUIRE(stored_and_widened(*cpu::kernels_for(isa), layout, values, kCount, dtype) == wanted);
        }
      }
    }
  }
}
