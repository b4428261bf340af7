// Attention over a KV cache of 8-bit codes, on every backend.

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "conformance/sequences.h"

using namespace millrace;
using namespace millrace::test;
using tensor::DType;
using tensor::KvDType;

namespace {

/// Returns the tolerance of outputs. A key at a border may get the neighbouring code, which moves its score a little.
double coded_error(KvDType stored) {
  return stored == KvDType::kInt8 ? 0.03 : 0.06;
}

std::vector<AttentionCase> coded_cases() {
  return {
      {.head_count = 14, .kv_head_count = 2, .page_size = 64},
      {.head_count = 4, .kv_head_count = 4, .head_dim = 32, .rotary_dim = 16, .page_size = 1},
      {.head_count = 6, .kv_head_count = 1, .head_dim = 24, .rotary_dim = 24, .sliding_window = 5, .page_size = 7},
      {.head_count = 2, .kv_head_count = 1, .head_dim = 80, .rotary_dim = 40, .attention_factor = 1.3f},
      {.head_count = 2, .kv_head_count = 2, .head_dim = 128, .rotary_dim = 128, .page_size = 32, .norms = true},
      {.head_count = 1, .kv_head_count = 1, .head_dim = 256, .rotary_dim = 64, .sliding_window = 70, .norms = true},
      {.head_count = 70, .kv_head_count = 1, .head_dim = 32, .rotary_dim = 32, .page_size = 8},
      {.head_count = 14, .kv_head_count = 2, .sliding_window = 20, .soft_cap = 2.0f, .sinks = true},
      {.head_count = 4, .kv_head_count = 2, .value_norm = true, .chunk_size = 64},
      {.head_count = 2, .kv_head_count = 1, .head_dim = 512, .rotary_dim = 512, .norms = true, .values_are_keys = true},
      {.head_count = 4, .kv_head_count = 2, .causal = false},
  };
}

}  // namespace

TEST_CASE("attention over 8-bit codes agrees with the reference") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 60);
  const auto backends = coded_backends();
  for (const AttentionCase& sizes : coded_cases()) {
    const Weights weights = random_weights(random, sizes);
    std::vector<TestSequence> sequences;
    for (const bool one_by_one : {false, true, false}) {
      sequences.push_back(random_sequence(random, sizes, static_cast<int32_t>(random.integer(1, 140)), one_by_one));
      if (!sizes.causal) sequences.back().chunks = {sequences.back().length};
    }
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const KvDType stored : {KvDType::kInt8, KvDType::kFp8E4M3}) {
        std::vector<Values> wanted;
        for (const TestSequence& sequence : sequences) {
          wanted.push_back(expected_outputs(sizes, weights, sequence, dtype, stored));
        }
        for (const CodedBackend& each : backends) {
          if (each.stored != stored || each.backend->compute_dtype() != dtype) continue;
          if (!sizes.is_computed_by(*each.backend)) continue;
          INFO(each.name << ": " << sizes.to_string());
          const auto got = feed(*each.backend, sizes, weights, sequences, {.page_seed = test_seed(), .noise = true});
          for (size_t s = 0; s < sequences.size(); ++s) {
            INFO("sequence " << s << " of " << sequences[s].length);
            check_close(got[s], wanted[s], unit(dtype), coded_error(stored));
          }
        }
      }
    }
  }
}

TEST_CASE("attention over 8-bit codes has equal bits however it is cut") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 61);
  const AttentionCase cases[] = {
      {.head_count = 14, .kv_head_count = 2},
      {.head_count = 3, .kv_head_count = 1, .head_dim = 80, .rotary_dim = 40, .sliding_window = 33},
      {.head_count = 2, .kv_head_count = 2, .head_dim = 24, .rotary_dim = 24, .norms = true},
      {.head_count = 8, .kv_head_count = 2, .sliding_window = 40, .soft_cap = 2.0f, .sinks = true},
  };
  for (const CodedBackend& each : coded_backends()) {
    for (AttentionCase sizes : cases) {
      if (!sizes.is_computed_by(*each.backend)) continue;
      const Weights weights = random_weights(random, sizes);
      TestSequence sequence = random_sequence(random, sizes, static_cast<int32_t>(random.integer(60, 200)), false);
      sequence.chunks = {sequence.length};
      const Values whole = feed(*each.backend, sizes, weights, {sequence}, {.page_seed = 1})[0];
      for (const int32_t page_size : {1, 16, 64, 7}) {
        sizes.page_size = page_size;
        TestSequence same = random_sequence(random, sizes, sequence.length, page_size == 1);
        same.qkv = sequence.qkv;
        const TestSequence other = random_sequence(random, sizes, 50, false);
        INFO(each.name << ": " << sizes.to_string() << ", " << same.chunks.size() << " chunks");
        const auto got =
            feed(*each.backend, sizes, weights, {other, same, other}, {.page_seed = test_seed(), .noise = true});
        REQUIRE(got[1] == whole);
        REQUIRE(got[0] == got[2]);
      }
    }
  }
}

TEST_CASE("long contexts of 8-bit codes agree with the reference") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 62);
  const AttentionCase sizes{.head_count = 2, .kv_head_count = 1, .head_dim = 32, .rotary_dim = 32, .page_size = 64};
  const Weights weights = random_weights(random, sizes);
  TestSequence sequence = random_sequence(random, sizes, 2200, false);
  sequence.chunks = {2000, 100, 99, 1};
  TestSequence whole = sequence;
  whole.chunks = {2200};
  std::map<std::pair<DType, KvDType>, Values> references;  // each takes seconds
  for (const CodedBackend& each : coded_backends()) {
    INFO(each.name);
    const DType dtype = each.backend->compute_dtype();
    const Values got = feed(*each.backend, sizes, weights, {sequence}, {.noise = true})[0];
    Values& wanted = references[{dtype, each.stored}];
    if (wanted.empty()) wanted = expected_outputs(sizes, weights, sequence, dtype, each.stored);
    check_close(got, wanted, unit(dtype), coded_error(each.stored));
    REQUIRE(feed(*each.backend, sizes, weights, {whole}, {.page_seed = test_seed()})[0] == got);
  }
}

TEST_CASE("keys and values of all sizes keep their precision as codes") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 63);
  const AttentionCase sizes{.head_count = 2, .kv_head_count = 1, .head_dim = 64, .rotary_dim = 64};
  const Weights weights = random_weights(random, sizes);
  constexpr size_t kWidth = 4 * 64;
  for (const CodedBackend& each : coded_backends()) {
    for (const int exponent : {-130, -90, -20, 60, 120}) {
      INFO(each.name << ", values of 2^" << exponent);
      TestSequence sequence = random_sequence(random, sizes, 1, false);
      for (size_t i = kWidth - 64; i < kWidth; ++i) sequence.qkv[i] = std::ldexp(sequence.qkv[i], exponent);
      const Values got = feed(*each.backend, sizes, weights, {sequence}, {})[0];
      const double largest = std::ldexp(5.0, exponent);
      const double step = each.stored == KvDType::kInt8 ? largest / 127 : largest / 16;
      Values wanted;
      for (size_t i = 0; i < got.size(); ++i) wanted.push_back(sequence.qkv[kWidth - 64 + i % 64]);
      if (exponent < -100) wanted.assign(got.size(), 0.0f);  // too small for a scale
      check_close(got, wanted, 0.0, step);
    }
  }
}

TEST_CASE("NaN and overflow among codes spoil only the rows that see it") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 64);
  constexpr size_t kPosition = 21;
  constexpr size_t kWidth = 4 * 64;
  for (const int32_t page_size : {16, 7}) {
    const AttentionCase sizes{
        .head_count = 2, .kv_head_count = 1, .head_dim = 64, .rotary_dim = 64, .page_size = page_size};
    const Weights weights = random_weights(random, sizes);
    TestSequence healthy = random_sequence(random, sizes, 50, false);
    healthy.chunks = {50};
    for (const CodedBackend& each : coded_backends()) {
      for (const float value : {std::numeric_limits<float>::infinity(), std::nanf(""), 3e38f, -2e38f}) {
        for (const size_t channel : {size_t{2 * 64 + 5}, size_t{3 * 64 + 5}}) {  // of the key, of the value
          INFO(each.name << ": " << value << " at " << channel << " in pages of " << page_size);
          TestSequence spoilt = healthy;
          spoilt.qkv[kPosition * kWidth + channel] = value;
          const auto got = feed(*each.backend, sizes, weights, {healthy, spoilt, healthy}, {.page_seed = test_seed()});
          REQUIRE(got[0] == got[2]);
          const auto first_seeing = static_cast<int64_t>(kPosition * 128);
          const auto is_finite = [](float x) { return std::isfinite(x); };
          REQUIRE(std::ranges::all_of(got[0], is_finite));
          REQUIRE(std::equal(got[1].begin(), got[1].begin() + first_seeing, got[0].begin()));
          REQUIRE(std::none_of(got[1].begin() + first_seeing, got[1].end(), is_finite));
        }
      }
    }
  }
}

TEST_CASE("pages of codes have about half the bytes of bf16") {
  for (const CodedBackend& each : coded_backends()) {
    INFO(each.name);
    for (const int32_t page_size : {1, 7, 16}) {
      const tensor::KvCacheShape shape{3, 2, 64, page_size, 5};
      const size_t token_bytes = 2 * (64 + (each.stored == KvDType::kInt8 ? 4 : 2));
      const size_t layer_bytes = 2 * static_cast<size_t>(page_size) * token_bytes;
      const size_t aligned = each.backend->is_host() ? layer_bytes : (layer_bytes + 15) / 16 * 16;
      REQUIRE(each.backend->kv_page_bytes(shape) == 3 * aligned);
      REQUIRE(each.backend->make_kv_cache(shape)->page_bytes() == each.backend->kv_page_bytes(shape));
    }
    REQUIRE(each.backend->kv_format().find(enum_name(each.stored)) != std::string::npos);
  }
}
