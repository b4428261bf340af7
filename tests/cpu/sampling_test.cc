#include "cpu/sampling.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>

#include "base/random.h"
#include "cpu/reference.h"

using namespace millrace;
using tensor::SampleSpec;
using tensor::SamplingParams;

namespace {

std::vector<float> random_logits(size_t vocab, float deviation, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> logits(vocab);
  for (float& logit : logits) logit = normal(engine);
  return logits;
}

/// Compares with the reference. Rounding may move tokens over a threshold of min_p or top_p. A token on one side only
/// passes when it is improbable enough to be the last of many.
void check_distribution(const std::vector<float>& logits, const SampleSpec& spec) {
  const auto got = cpu::sampling_distribution(logits, static_cast<int32_t>(logits.size()), spec);
  const auto wanted = reference::sampling_distribution(logits, spec);
  std::vector<double> difference(logits.size(), 0.0);
  for (const auto& [token, p] : got) difference[static_cast<size_t>(token)] += double{p};
  for (const auto& [token, p] : wanted) difference[static_cast<size_t>(token)] -= p;
  double distance = 0.0;
  for (const double d : difference) distance += std::abs(d);
  REQUIRE(distance < 1e-4);
  REQUIRE(std::abs(static_cast<double>(got.size()) - static_cast<double>(wanted.size())) <=
          1.0 + 1e-3 * static_cast<double>(wanted.size()));
}

}  // namespace

TEST_CASE("the distribution matches the reference on large vocabularies") {
  for (const float deviation : {0.3f, 2.0f, 6.0f}) {
    const auto logits = random_logits(20011, deviation, 11);
    for (const int32_t top_k : {0, 1, 20, 300, 5000, 20011}) {
      for (const float top_p : {1.0f, 0.95f, 0.3f}) {
        for (const float min_p : {0.0f, 0.05f}) {
          INFO("deviation " << deviation << ", top_k " << top_k << ", top_p " << top_p << ", min_p " << min_p);
          const SamplingParams params{.temperature = 0.8f, .top_p = top_p, .min_p = min_p, .top_k = top_k};
          check_distribution(logits, {.params = &params});
        }
      }
    }
  }
}

TEST_CASE("a top_p that rounding puts beyond the sum of all keeps all") {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const auto logits = random_logits(300 + 97 * seed, 1.0f, seed);
    const SamplingParams params{.top_p = std::nextafter(1.0f, 0.0f)};
    const SampleSpec spec{.params = &params};
    const auto got = cpu::sampling_distribution(logits, static_cast<int32_t>(logits.size()), spec);
    REQUIRE(got.size() + 3 >= logits.size());
  }
}

TEST_CASE("penalties and bias and bans follow the documented order") {
  const std::vector<float> logits = {1.0f, -1.0f, 2.0f, 0.5f, 0.0f, 3.0f};
  SamplingParams params;
  params.repetition_penalty = 2.0f;
  params.frequency_penalty = 0.5f;
  params.presence_penalty = 0.25f;
  params.logit_bias = {{0, 1.0f}, {-1, 5.0f}, {6, 5.0f}};
  params.min_tokens = 2;
  params.stop_token_ids = {5, 77};
  const std::vector<TokenId> prompt = {1, 0, 99, -4};
  const std::vector<TokenId> output = {2, 2};
  const auto got = cpu::sampling_distribution(
      logits, 6, {.params = &params, .position = 0, .output_count = 1, .prompt = prompt, .output = output});
  // 0: (1 + 1) / 2; 1: -1 · 2; 2: 2 / 2 - 0.5 · 2 - 0.25; 3, 4: untouched; 5: banned.
  const std::vector<double> processed = {1.0, -2.0, -0.25, 0.5, 0.0};
  double sum = 0.0;
  for (const double value : processed) sum += std::exp(value);
  REQUIRE(got.size() == 5);
  for (size_t i = 0; i < 5; ++i) {
    REQUIRE(got[i].first == static_cast<TokenId>(i));
    REQUIRE(got[i].second == Approx(std::exp(processed[i]) / sum).epsilon(1e-5));
  }
  const auto later = cpu::sampling_distribution(
      logits, 6, {.params = &params, .position = 0, .output_count = 2, .prompt = prompt, .output = output});
  REQUIRE(later.size() == 6);
}

TEST_CASE("ties survive top_k and lower ids survive top_p") {
  const std::vector<float> logits = {0.0f, 1.0f, 1.0f, 1.0f, -3.0f};
  SamplingParams params{.top_k = 2};
  REQUIRE(cpu::sampling_distribution(logits, 5, {.params = &params}).size() == 3);
  params = {.top_p = 0.5f, .top_k = 3};
  const auto kept = cpu::sampling_distribution(logits, 5, {.params = &params});
  REQUIRE(kept.size() == 2);
  REQUIRE(kept[0].first == 1);
  REQUIRE(kept[1].first == 2);
  params = {.top_p = 1e-6f};
  REQUIRE(cpu::sampling_distribution(logits, 5, {.params = &params}).size() == 1);
}

TEST_CASE("banned tokens are never sampled at the ends of the range") {
  constexpr float kBanned = -std::numeric_limits<float>::infinity();
  std::vector<float> logits(4000, kBanned);
  logits[1500] = 0.0f;
  logits[2600] = 0.0f;
  const SamplingParams params;
  cpu::SamplerScratch scratch;
  for (const cpu::Isa isa : cpu::available_isas()) {
    const auto candidates = cpu::find_candidates(*cpu::kernels_for(isa), logits, {.params = &params}, scratch);
    REQUIRE(cpu::draw(candidates, 0.0) == 1500);
    REQUIRE(cpu::draw(candidates, 0.4999) == 1500);
    REQUIRE(cpu::draw(candidates, 0.5) == 2600);
    REQUIRE(cpu::draw(candidates, 1.0) == 2600);
  }
}

TEST_CASE("draws over a large vocabulary follow the weights") {
  constexpr size_t kVocab = 30000;
  const auto logits = random_logits(kVocab, 1.0f, 3);
  const SamplingParams params{.seed = 99};
  cpu::SamplerScratch scratch;
  const auto candidates =
      cpu::find_candidates(*cpu::kernels_for(cpu::available_isas().back()), logits, {.params = &params}, scratch);
  // Thirty equal ranges of ids, 30,000 draws.
  std::vector<double> expected(30, 0.0);
  for (size_t i = 0; i < kVocab; ++i) expected[i / 1000] += double{candidates.weights[i]} / candidates.total * 30000;
  std::vector<int> seen(30, 0);
  for (uint64_t position = 0; position < 30000; ++position) {
    ++seen[static_cast<size_t>(cpu::draw(candidates, uniform_at(params.seed, position))) / 1000];
  }
  double chi_square = 0.0;
  for (size_t i = 0; i < 30; ++i) chi_square += (seen[i] - expected[i]) * (seen[i] - expected[i]) / expected[i];
  REQUIRE(chi_square < 75.0);
}

TEST_CASE("the largest logits are found exactly with ties") {
  const cpu::Kernels& kernels = *cpu::kernels_for(cpu::available_isas().back());
  cpu::SamplerScratch scratch;
  std::vector<float> logits = random_logits(3001, 1.0f, 4);
  for (float& logit : logits) logit = std::round(logit * 20.0f) / 20.0f;
  for (const int64_t count : {1, 2, 17, 46, 47, 500, 3000, 3001}) {
    cpu::collect_largest(kernels, logits, count, scratch);
    std::vector<float> sorted = logits;
    std::sort(sorted.rbegin(), sorted.rend());
    const float smallest = sorted[static_cast<size_t>(count - 1)];
    std::vector<TokenId> wanted;
    for (size_t i = 0; i < logits.size(); ++i) {
      if (logits[i] >= smallest) wanted.push_back(static_cast<TokenId>(i));
    }
    REQUIRE(scratch.candidates == wanted);
  }
}
