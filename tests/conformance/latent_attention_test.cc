#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "conformance/latent_checks.h"
#include "support/effort.h"

using namespace millrace;
using namespace millrace::test;
using tensor::DType;
using tensor::LatentShape;

namespace {

/// Returns whether the backends are emulated thread by thread, where long cases would take minutes: such programs run
/// with less effort.
bool is_emulated() {
  return repetitions(100) < 100;
}

/// Calls body(backend, case) for each backend that computes latent attention.
template <class Body>
void for_each_backend(const Body& body) {
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    if (!backend->computes(tensor::Feature::kLatentAttention)) continue;
    INFO(backend_case.name);
    body(*backend);
  }
}

/// Calls body(backend, kAuto) for each of them, as the shared checks want it.
constexpr auto each_plain_backend = [](const auto& body) {
  for_each_backend([&](tensor::Backend& backend) { body(backend, tensor::KvDType::kAuto); });
};

}  // namespace

TEST_CASE("latent attention agrees with the expanded reference") {
  check_latents_near_reference(
      each_plain_backend, [](DType dtype, tensor::KvDType) { return dtype == DType::kBF16 ? 0.03 : 2e-5; }, 72, 50);
}

TEST_CASE("latent attention does not depend on chunks pages or company") {
  check_latents_have_equal_bits(
      each_plain_backend, {shape_of(4, 32, 16, 24, 32), shape_of(20, 16, 8, 16, 72), shape_of(50, 16, 8, 16, 72)}, 51);
}

TEST_CASE("latent attention does not depend on cuts of a long context") {
  if (is_emulated()) return;
  INFO("seed " << test_seed());
  Random random(test_seed() + 52);
  const LatentShape shape = shape_of(5, 16, 8, 16, 32);
  const LatentWeights weights = random_latent_weights(random, shape);
  LatentSequence sequence = random_latents(random, shape, 2250);
  for_each_backend([&](tensor::Backend& backend) {
    sequence.chunks = {2250};
    const Values whole = feed_latents(backend, {shape, 64}, weights, {sequence}, 1)[0];
    sequence.chunks = {2040, 1, 1, 1, 1, 1, 1, 1, 1, 1, 90, 1, 110};
    REQUIRE(std::accumulate(sequence.chunks.begin(), sequence.chunks.end(), 0) == sequence.length);
    REQUIRE(feed_latents(backend, {shape, 64}, weights, {sequence}, test_seed())[0] == whole);
  });
}

TEST_CASE("latent attention computes large batches slice by slice") {
  if (is_emulated()) return;
  INFO("seed " << test_seed());
  Random random(test_seed() + 53);
  const LatentShape shape = shape_of(128, 8, 64, 8, 512);  // 64 MiB of queries and results are 120 to 240 rows
  const LatentWeights weights = random_latent_weights(random, shape);
  LatentSequence first = random_latents(random, shape, 10);
  LatentSequence sequence = random_latents(random, shape, 260);
  const BackendCase fastest = backend_cases().back();
  const auto backend = fastest.make();
  if (!backend->computes(tensor::Feature::kLatentAttention)) return;
  const Values whole = feed_latents(*backend, {shape, 64}, weights, {first, sequence, first}, 1)[1];
  first.chunks = {5, 5};
  sequence.chunks = {100, 100, 59, 1};
  REQUIRE(feed_latents(*backend, {shape, 64}, weights, {first, sequence}, 2)[1] == whole);
}

TEST_CASE("NaN and overflow in a latent spoil only the rows that see it") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 54);
  const LatentShape shape = shape_of(3, 16, 8, 16, 32);
  const auto width = static_cast<size_t>(shape.output_width());
  constexpr size_t kPosition = 21;
  const LatentWeights weights = random_latent_weights(random, shape);
  const LatentSequence healthy = random_latents(random, shape, 50);
  for_each_backend([&](tensor::Backend& backend) {
    // Channel 5 is the latent's, 34 the key's. An infinite key may also have a weight of zero.
    for (const size_t channel : {size_t{5}, size_t{34}}) {
      for (const float value : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
        if (channel == 34 && !std::isnan(value)) continue;
        INFO("channel " << channel << ": " << value);
        LatentSequence spoilt = healthy;
        spoilt.kv[kPosition * static_cast<size_t>(shape.key_dim()) + channel] = value;
        const auto got = feed_latents(backend, {shape, 16}, weights, {healthy, spoilt, healthy}, test_seed());
        REQUIRE(got[0] == got[2]);
        for (size_t i = 0; i < got[0].size(); ++i) {
          REQUIRE(std::isfinite(got[0][i]));
          if (i / width < kPosition) REQUIRE(got[1][i] == got[0][i]);
          if (i / width >= kPosition) REQUIRE(!std::isfinite(got[1][i]));
        }
      }
    }
  });
}

TEST_CASE("a page of latents stores each latent once") {
  for_each_backend([](tensor::Backend& backend) {
    const tensor::KvCacheShape shape{
        .layer_count = 3, .kv_head_count = 1, .head_dim = 576, .page_size = 16, .page_count = 5, .latent_dim = 512};
    REQUIRE(backend.make_kv_cache(shape)->page_bytes() == backend.kv_page_bytes(shape));
    REQUIRE(backend.kv_page_bytes(shape) == size_t{3} * 16 * 576 * tensor::size_of(backend.compute_dtype()));
  });
}
