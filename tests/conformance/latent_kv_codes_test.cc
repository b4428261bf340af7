// Latent attention over a cache of 8-bit codes, on every backend.

#include <algorithm>
#include <cmath>
#include <limits>

#include "conformance/latent_checks.h"

using namespace millrace;
using namespace millrace::test;
using tensor::DType;
using tensor::KvDType;
using tensor::LatentShape;

namespace {

/// Returns the tolerance of outputs. A value at a border may get the neighbouring code.
double coded_error(KvDType stored) {
  return stored == KvDType::kInt8 ? 0.03 : 0.06;
}

/// Calls body(backend) for each backend with a cache of codes.
template <class Body>
void for_each_coded(const Body& body) {
  for (const CodedBackend& each : coded_backends()) {
    INFO(each.name);
    body(each);
  }
}

/// Calls body(backend, dtype of codes) for each of them, as the shared checks want it.
constexpr auto each_coded_backend = [](const auto& body) {
  for_each_coded([&](const CodedBackend& each) { body(*each.backend, each.stored); });
};

}  // namespace

TEST_CASE("latents of 8 bits agree with the reference") {
  check_latents_near_reference(each_coded_backend, [](DType, KvDType stored) { return coded_error(stored); }, 197, 70);
}

TEST_CASE("latents of 8 bits give equal bits however they are cut") {
  check_latents_have_equal_bits(
      each_coded_backend, {shape_of(4, 32, 16, 24, 32), shape_of(20, 16, 8, 16, 120), shape_of(3, 16, 8, 16, 43)}, 71);
}

TEST_CASE("faults in latents of 8 bits spoil only rows that see them") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 72);
  const LatentShape shape = shape_of(3, 16, 8, 16, 40);
  const auto width = static_cast<size_t>(shape.output_width());
  const auto key_dim = static_cast<size_t>(shape.key_dim());
  constexpr size_t kPosition = 21;
  constexpr size_t kChannel = 5;  // of the latent
  LatentWeights weights = random_latent_weights(random, shape);
  weights.norm[kChannel] = 3e38f;
  LatentSequence healthy = random_latents(random, shape, 50);
  for (size_t row = 0; row < 50; ++row) healthy.kv[row * key_dim + kChannel] = 0.0f;
  for_each_coded([&](const CodedBackend& each) {
    // 0.7 times the weight is finite in bf16, and no code. Channel 42 is the key's.
    for (const auto& [channel, value] :
         {std::pair{kChannel, 0.7f}, std::pair{kChannel, std::nanf("")},
          std::pair{size_t{4}, std::numeric_limits<float>::infinity()}, std::pair{size_t{42}, std::nanf("")}}) {
      INFO("channel " << channel << ": " << value);
      LatentSequence spoilt = healthy;
      spoilt.kv[kPosition * key_dim + channel] = value;
      const auto got = feed_latents(*each.backend, {shape, 16}, weights, {healthy, spoilt, healthy}, test_seed());
      REQUIRE(got[0] == got[2]);
      for (size_t i = 0; i < got[0].size(); ++i) {
        REQUIRE(std::isfinite(got[0][i]));
        if (i / width < kPosition) REQUIRE(got[1][i] == got[0][i]);
        if (i / width >= kPosition) REQUIRE(!std::isfinite(got[1][i]));
      }
    }
  });
}

TEST_CASE("latents of all sizes keep their precision as codes") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 73);
  const LatentShape shape = shape_of(2, 16, 16, 32, 160);
  LatentWeights weights = random_latent_weights(random, shape);
  const Values norm = weights.norm;
  for_each_coded([&](const CodedBackend& each) {
    const LatentSequence sequence = random_latents(random, shape, 1);
    for (const int exponent : {-130, -90, -20, 30}) {
      INFO("latents of 2^" << exponent);
      for (size_t i = 0; i < norm.size(); ++i) weights.norm[i] = std::ldexp(norm[i], exponent);
      const Values got = feed_latents(*each.backend, {shape, 16}, weights, {sequence}, 1)[0];
      const DType dtype = each.backend->compute_dtype();
      Values wanted = expected_latent_outputs({shape, 16}, weights, sequence, dtype);
      if (exponent < -100) wanted.assign(got.size(), 0.0f);  // too small for a scale
      check_close(got, wanted, 0.0, std::ldexp(each.stored == KvDType::kInt8 ? 0.15 : 0.4, exponent));
    }
  });
}

TEST_CASE("pages of latents in 8 bits have their bytes") {
  for_each_coded([](const CodedBackend& each) {
    const size_t element = tensor::size_of(each.backend->compute_dtype());
    for (const int32_t page_size : {1, 7, 16}) {
      tensor::KvCacheShape shape{.layer_count = 3,
                                 .kv_head_count = 1,
                                 .head_dim = 576,
                                 .page_size = page_size,
                                 .page_count = 5,
                                 .latent_dim = 512};
      const auto tokens = static_cast<size_t>(3 * page_size);
      // Tokens on a GPU are whole words of 16 bytes.
      const size_t scale_bytes = each.stored == KvDType::kInt8 ? 32 : each.backend->is_host() ? 8 : 16;
      const size_t token_bytes = 512 + 64 * element + scale_bytes;
      REQUIRE(each.backend->kv_page_bytes(shape) == tokens * token_bytes);
      REQUIRE(each.backend->make_kv_cache(shape)->page_bytes() == tokens * token_bytes);
      shape.index_dim = 128;
      REQUIRE(each.backend->kv_page_bytes(shape) == tokens * (token_bytes + 128 * element));
      REQUIRE(each.backend->make_kv_cache(shape)->page_bytes() == tokens * (token_bytes + 128 * element));
    }
  });
}
