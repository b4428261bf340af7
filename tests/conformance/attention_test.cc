#include <algorithm>
#include <cmath>
#include <limits>

#include "conformance/sequences.h"

using namespace millrace;
using namespace millrace::test;
using tensor::DType;

namespace {

std::vector<AttentionCase> attention_cases() {
  return {
      {},
      {.head_count = 14, .kv_head_count = 2, .page_size = 64},
      {.head_count = 4, .kv_head_count = 4, .head_dim = 32, .rotary_dim = 16, .page_size = 1},
      {.head_count = 6, .kv_head_count = 1, .head_dim = 24, .rotary_dim = 24, .sliding_window = 5, .page_size = 7},
      {.head_count = 2, .kv_head_count = 1, .head_dim = 80, .rotary_dim = 40, .attention_factor = 1.3f},
      {.head_count = 2, .kv_head_count = 2, .head_dim = 128, .rotary_dim = 128, .page_size = 32, .norms = true},
      {.head_count = 1, .kv_head_count = 1, .head_dim = 256, .rotary_dim = 64, .sliding_window = 70, .norms = true},
      {.head_count = 70, .kv_head_count = 1, .head_dim = 32, .rotary_dim = 32, .page_size = 8},
      {.head_count = 4, .kv_head_count = 2, .soft_cap = 2.0f},
      {.head_count = 6, .kv_head_count = 1, .head_dim = 24, .rotary_dim = 24, .sliding_window = 9, .soft_cap = 0.5f},
      {.head_count = 14, .kv_head_count = 2, .sliding_window = 20, .sinks = true},
      {.head_count = 4, .kv_head_count = 2, .head_dim = 80, .rotary_dim = 40, .page_size = 7, .sinks = true},
      {.head_count = 4, .kv_head_count = 2, .head_dim = 32, .rotary_dim = 32, .norms = true, .norms_all_heads = true},
      kLayerNormOfHeads,
      kNormAfterRotation,
      {.head_count = 4, .kv_head_count = 2, .page_size = 7, .value_norm = true},
      {.head_count = 14,
       .kv_head_count = 2,
       .query_beta = 0.3f,
       .query_period = 16,
       .query_offset = 1,
       .chunk_size = 64},
      {.head_count = 4, .kv_head_count = 4, .page_size = 7, .chunk_size = 64},
      {.head_count = 6, .kv_head_count = 2, .head_dim = 48, .rotary_dim = 48, .norms = true, .values_are_keys = true},
      {.head_count = 4,
       .kv_head_count = 1,
       .head_dim = 512,
       .rotary_dim = 512,
       .norms = true,
       .value_norm = true,
       .values_are_keys = true},
      {.head_count = 4, .kv_head_count = 2, .rotary_dim = 64, .query_beta = 0.3f, .query_period = 16},
  };
}

double attention_error(DType dtype) {
  return dtype == DType::kBF16 ? 0.02 : 2e-5;
}

}  // namespace

TEST_CASE("rotary_store_kv and attention agree with the reference") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 6);
  for (const AttentionCase& sizes : attention_cases()) {
    const Weights weights = random_weights(random, sizes);
    std::vector<TestSequence> sequences;
    for (const bool one_by_one : {false, true, false}) {
      sequences.push_back(random_sequence(random, sizes, static_cast<int32_t>(random.integer(1, 180)), one_by_one));
    }
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      std::vector<Values> wanted;
      for (const TestSequence& sequence : sequences)
        wanted.push_back(expected_outputs(sizes, weights, sequence, dtype));
      for (const BackendCase& backend_case : backend_cases()) {
        const auto backend = backend_case.make();
        if (backend->compute_dtype() != dtype || !sizes.is_computed_by(*backend)) continue;
        INFO(backend_case.name << ": " << sizes.to_string());
        const auto got = feed(*backend, sizes, weights, sequences, {.page_seed = test_seed(), .noise = true});
        for (size_t s = 0; s < sequences.size(); ++s) {
          INFO("sequence " << s << " of " << sequences[s].length);
          check_close(got[s], wanted[s], unit(dtype), attention_error(dtype));
        }
      }
    }
  }
}

TEST_CASE("attention over several KV splits agrees with the reference") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 7);
  const AttentionCase plain{.head_count = 2, .kv_head_count = 1, .head_dim = 32, .rotary_dim = 32};
  AttentionCase other = plain;
  other.soft_cap = 3.0f;
  other.sinks = true;
  const AttentionCase sizes = GENERATE_COPY(plain, other);
  const Weights weights = random_weights(random, sizes);
  TestSequence sequence = random_sequence(random, sizes, 2200, false);
  sequence.chunks = {2000, 100, 99, 1};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Values wanted = expected_outputs(sizes, weights, sequence, dtype);
    for (const BackendCase& backend_case : backend_cases()) {
      const auto backend = backend_case.make();
      if (backend->compute_dtype() != dtype || !sizes.is_computed_by(*backend)) continue;
      INFO(backend_case.name);
      check_close(feed(*backend, sizes, weights, {sequence}, {.noise = true})[0], wanted, unit(dtype),
                  attention_error(dtype));
    }
  }
}

TEST_CASE("attention in both directions agrees with the reference") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 9);
  for (const AttentionCase& sizes :
       {AttentionCase{.head_count = 3, .kv_head_count = 3, .head_dim = 32, .rotary_dim = 32, .causal = false},
        AttentionCase{.head_count = 4, .kv_head_count = 2, .page_size = 7, .causal = false}}) {
    const Weights weights = random_weights(random, sizes);
    std::vector<TestSequence> sequences;
    for (const int32_t length : {1, 16, 90, sizes.head_dim == 32 ? 600 : 2100}) {
      sequences.push_back(random_sequence(random, sizes, length, false));
      sequences.back().chunks = {length};
    }
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      std::vector<Values> wanted;
      for (const TestSequence& sequence : sequences)
        wanted.push_back(expected_outputs(sizes, weights, sequence, dtype));
      for (const BackendCase& backend_case : backend_cases()) {
        const auto backend = backend_case.make();
        if (backend->compute_dtype() != dtype || !backend->computes(tensor::Feature::kEncoders)) continue;
        INFO(backend_case.name << ": " << sizes.to_string());
        const auto got = feed(*backend, sizes, weights, sequences, {.page_seed = test_seed(), .noise = true});
        for (size_t s = 0; s < sequences.size(); ++s) {
          INFO("sequence " << s << " of " << sequences[s].length);
          check_close(got[s], wanted[s], unit(dtype), attention_error(dtype));
          REQUIRE(feed(*backend, sizes, weights, {sequences[s]}, {})[0] == got[s]);
        }
      }
    }
  }
}

TEST_CASE("a backend gives the size of pages before it has a cache") {
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    for (const int32_t head_dim : {8, 20, 64, 80, 100, 256}) {
      for (const int32_t page_size : {1, 7, 16}) {
        INFO(backend_case.name << ": heads of " << head_dim << ", pages of " << page_size);
        const tensor::KvCacheShape shape{3, 2, head_dim, page_size, 5};
        const auto cache = backend->make_kv_cache(shape);
        REQUIRE(backend->kv_page_bytes(shape) == cache->page_bytes());
        REQUIRE(backend->kv_page_bytes({3, 2, head_dim, page_size}) == cache->page_bytes());
      }
    }
  }
}

TEST_CASE("NaN and overflow in a page spoil only the rows that see it") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 8);
  constexpr size_t kPosition = 21;
  constexpr size_t kChannel = 5;
  constexpr size_t kWidth = 4 * 64;
  constexpr float kAboveBf16 = 3.4e38f;  // the largest f32 are infinities there
  for (const int32_t page_size : {16, 7}) {
    const AttentionCase sizes{
        .head_count = 2, .kv_head_count = 1, .head_dim = 64, .rotary_dim = 64, .page_size = page_size};
    const Weights weights = random_weights(random, sizes);
    TestSequence healthy = random_sequence(random, sizes, 50, false);
    healthy.chunks = {50};
    for (const BackendCase& backend_case : backend_cases()) {
      const auto backend = backend_case.make();
      const bool stores_bf16 = backend->compute_dtype() == DType::kBF16;
      for (const float value : {std::numeric_limits<float>::infinity(), std::nanf(""), kAboveBf16, -kAboveBf16}) {
        INFO(backend_case.name << ": " << value << " in pages of " << page_size);
        TestSequence spoilt = healthy;
        spoilt.qkv[kPosition * kWidth + 3 * 64 + kChannel] = value;
        const auto got = feed(*backend, sizes, weights, {healthy, spoilt, healthy}, {.page_seed = test_seed()});
        REQUIRE(got[0] == got[2]);
        const bool is_fault = stores_bf16 || !std::isfinite(value);
        for (size_t i = 0; i < got[0].size(); ++i) {
          INFO("element " << i);
          REQUIRE(std::isfinite(got[0][i]));
          if (i / 128 < kPosition) REQUIRE(got[1][i] == got[0][i]);
          if (i / 128 >= kPosition && i % 64 == kChannel && is_fault) REQUIRE(!std::isfinite(got[1][i]));
        }
      }
    }
  }
}

TEST_CASE("scores whose rounding exceeds 1 give means of values") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 9);
  const AttentionCase sizes{.head_count = 4, .kv_head_count = 1, .head_dim = 64, .rotary_dim = 64};
  const size_t width = 6 * 64;
  const size_t first_value = 5 * 64;
  const Weights weights = random_weights(random, sizes);
  TestSequence sequence = random_sequence(random, sizes, 150, false);
  for (size_t i = 0; i < sequence.qkv.size(); ++i)
    if (i % width < first_value) sequence.qkv[i] = std::ldexp(sequence.qkv[i], 25);
  const auto value = [&](size_t position, size_t channel) {
    return std::fabs(sequence.qkv[position * width + first_value + channel]);
  };
  for (const BackendCase& backend_case : backend_cases()) {
    INFO(backend_case.name);
    const auto backend = backend_case.make();
    const Values got = feed(*backend, sizes, weights, {sequence}, {.page_seed = test_seed()})[0];
    for (size_t channel = 0; channel < 64; ++channel) {
      float largest = 0.0f;
      for (size_t row = 0; row < 150; ++row) {
        largest = std::max(largest, value(row, channel));
        for (size_t head = 0; head < 4; ++head) {
          const float found = got[(row * 4 + head) * 64 + channel];
          INFO("row " << row << ", head " << head << ", channel " << channel << ": " << found);
          REQUIRE(std::fabs(found) <= 1.01f * largest);  // false of NaN
        }
      }
    }
  }
}
