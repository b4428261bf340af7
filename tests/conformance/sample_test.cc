#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "conformance/harness.h"
#include "support/random_draw.h"

using namespace millrace;
using namespace millrace::test;
using tensor::LogitFault;
using tensor::SampleResult;
using tensor::SampleSpec;
using tensor::SamplingParams;
using tensor::ScoreResult;

namespace {

DeviceMatrix upload_rows(tensor::Backend& backend, const std::vector<Values>& rows) {
  Values logits;
  for (const Values& row : rows) logits.insert(logits.end(), row.begin(), row.end());
  DeviceMatrix matrix = make_matrix(backend, tensor::DType::kF32, static_cast<int64_t>(rows.size()),
                                    static_cast<int64_t>(rows[0].size()));
  upload(backend, logits, matrix);
  return matrix;
}

/// Samples once per row; `rows` holds the logits of one row each.
std::vector<SampleResult> draw_rows(tensor::Backend& backend, const std::vector<Values>& rows, int32_t vocab,
                                    const std::vector<Draw>& draws) {
  std::vector<SampleSpec> specs;
  for (const Draw& draw : draws) specs.push_back(draw.spec());
  std::vector<SampleResult> results(rows.size());
  backend.run_and_wait([&] {
    const DeviceMatrix matrix = upload_rows(backend, rows);
    backend.sample(matrix.matrix, vocab, specs, results);
  });
  return results;
}

/// Scores one target per row.
std::vector<ScoreResult> score_rows(tensor::Backend& backend, const std::vector<Values>& rows, int32_t vocab,
                                    const std::vector<TokenId>& targets, const std::vector<int32_t>& top_counts) {
  std::vector<ScoreResult> results(rows.size());
  backend.run_and_wait([&] {
    const DeviceMatrix matrix = upload_rows(backend, rows);
    backend.score(matrix.matrix, vocab, targets, top_counts, results);
  });
  return results;
}

std::vector<TokenId> random_tokens(Random& random, int64_t count, int64_t vocab) {
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<TokenId>(random.integer(0, vocab)));
  return tokens;
}

Draw random_draw(Random& random, int64_t vocab) {
  Draw draw;
  SamplingParams& params = draw.params = random_sampling(random);
  const auto sometimes = [&] { return random.integer(0, 2) == 0; };
  if (sometimes()) params.logit_bias = {{5, 2.5f}, {7, -100.0f}, {static_cast<TokenId>(vocab) + 3, 1.0f}};
  if (sometimes()) {
    params.min_tokens = 4;
    params.stop_token_ids = {1, 2};
  }
  draw.output_count = static_cast<uint32_t>(random.integer(0, 6));
  draw.prompt = random_tokens(random, 30, vocab);
  draw.output = random_tokens(random, draw.output_count, vocab);
  if (sometimes()) {
    draw.allowed.resize(static_cast<size_t>(vocab + 31) / 32);
    for (uint32_t& word : draw.allowed) word = static_cast<uint32_t>(random.integer(0, int64_t{1} << 32));
    draw.allowed[0] |= 1u << 11;
  }
  return draw;
}

}  // namespace

TEST_CASE("draws follow the reference distribution") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 30);
  constexpr int32_t kVocab = 50;
  constexpr int kDraws = 3000;
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    for (int trial = 0; trial < 6; ++trial) {
      const Values logits = random.normal(kVocab + 14, 2.0f);
      Draw draw = random_draw(random, kVocab);
      std::vector<Draw> draws(kDraws, draw);
      for (int i = 0; i < kDraws; ++i) draws[static_cast<size_t>(i)].position = static_cast<uint64_t>(i);
      const auto results = draw_rows(*backend, std::vector<Values>(kDraws, logits), kVocab, draws);
      std::map<TokenId, int> seen;
      for (const SampleResult& result : results) ++seen[result.token];
      const auto wanted = reference::sampling_distribution(std::span(logits).first(kVocab), draw.spec());
      double chi_square = 0.0;
      int drawn = 0;
      for (const auto& [token, probability] : wanted) {
        const double expected = probability * kDraws;
        chi_square += (seen[token] - expected) * (seen[token] - expected) / std::max(expected, 1.0);
        drawn += seen[token];
      }
      INFO(backend_case.name << ", trial " << trial << ", " << wanted.size() << " candidates");
      REQUIRE(drawn == kDraws);
      // Far in the tail: mean n - 1, deviation about sqrt(2n).
      REQUIRE(chi_square <
              static_cast<double>(wanted.size()) + 8.0 * std::sqrt(2.0 * static_cast<double>(wanted.size())) + 10.0);
    }
  }
}

TEST_CASE("greedy rows take the most probable token and the lower id") {
  for (const BackendCase& backend_case : backend_cases()) {
    INFO(backend_case.name);
    const auto backend = backend_case.make();
    Values logits(1000, -1.0f);
    logits[700] = logits[413] = logits[999] = 2.0f;
    Draw draw;
    draw.params.temperature = 0.0f;
    Draw banned = draw;
    banned.params.min_tokens = 1;
    banned.params.stop_token_ids = {413};
    const auto results = draw_rows(*backend, {logits, logits}, 999, {draw, banned});
    REQUIRE(results[0].token == 413);
    REQUIRE(results[1].token == 700);
  }
}

TEST_CASE("a draw does not depend on its company") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 31);
  for (const BackendCase& backend_case : backend_cases()) {
    INFO(backend_case.name);
    const auto backend = backend_case.make();
    constexpr int32_t kVocab = 5000;
    std::vector<Values> rows;
    std::vector<Draw> draws;
    for (int i = 0; i < 9; ++i) {
      rows.push_back(random.normal(kVocab, 3.0f));
      draws.push_back(random_draw(random, kVocab));
      draws.back().params.top_logprobs = 3;
    }
    const auto together = draw_rows(*backend, rows, kVocab, draws);
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto alone = draw_rows(*backend, {rows[i]}, kVocab, {draws[i]})[0];
      REQUIRE(alone.token == together[i].token);
      REQUIRE(alone.logprobs.logprob == together[i].logprobs.logprob);
      REQUIRE(alone.logprobs.top == together[i].logprobs.top);
    }
  }
}

TEST_CASE("logprobs and ranks and alternatives follow the raw logits") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 32);
  for (const BackendCase& backend_case : backend_cases()) {
    INFO(backend_case.name);
    const auto backend = backend_case.make();
    const auto vocab = static_cast<int32_t>(random.integer(30, 9000));
    const Values logits = random.normal(vocab + 8, 4.0f);
    const std::vector<double> wanted = reference::log_softmax(std::span(logits).first(static_cast<size_t>(vocab)));
    Draw draw = random_draw(random, vocab);
    draw.params.top_logprobs = 20;
    const auto sampled = draw_rows(*backend, {logits}, vocab, {draw})[0];
    const std::vector<TokenId> targets = {sampled.token, 0, vocab - 1};
    const std::vector<int32_t> top_counts = {20, 0, 5};
    const auto results = score_rows(*backend, std::vector<Values>(3, logits), vocab, targets, top_counts);
    std::vector<tensor::TokenLogprobs> scored;
    for (const tensor::ScoreResult& result : results) scored.push_back(result.logprobs);
    scored.push_back(sampled.logprobs);
    for (const tensor::TokenLogprobs& found : scored) {
      const double own = wanted[static_cast<size_t>(found.token)];
      REQUIRE(found.logprob == Approx(own).margin(1e-4));
      REQUIRE(found.rank == 1 + std::count_if(logits.begin(), logits.begin() + vocab, [&](float logit) {
                              return logit > logits[static_cast<size_t>(found.token)];
                            }));
      double last = 0.0;
      for (const auto& [token, logprob] : found.top) {
        REQUIRE(logprob == Approx(wanted[static_cast<size_t>(token)]).margin(1e-4));
        REQUIRE(logprob <= last);
        last = logprob;
      }
    }
    REQUIRE(scored[0].top.size() == 20);
    REQUIRE(scored[0].logprob == sampled.logprobs.logprob);
    REQUIRE(scored[0].top == sampled.logprobs.top);
    REQUIRE(scored[1].top.empty());
    REQUIRE(scored[2].top.size() == 5);
    REQUIRE(scored[2].top.front().second == Approx(*std::max_element(wanted.begin(), wanted.end())).margin(1e-4));
  }
}

TEST_CASE("a row without a distribution says why and others are sampled") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 33);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    constexpr int32_t kVocab = 300;
    const Values healthy = random.normal(kVocab, 2.0f);
    const auto spoilt = [&](float poison) {
      Values logits = healthy;
      logits[static_cast<size_t>(random.integer(0, kVocab - 1))] = poison;
      return logits;
    };
    const std::vector<Values> rows = {spoilt(std::nanf("")), healthy, spoilt(kInfinity), healthy,
                                      Values(kVocab, -kInfinity)};
    const std::vector<LogitFault> faults = {LogitFault::kNan, LogitFault::kNone, LogitFault::kInfinity,
                                            LogitFault::kNone, LogitFault::kAllNegativeInfinity};
    for (const float temperature : {0.0f, 1.0f}) {
      Draw draw = random_draw(random, kVocab);
      draw.params.temperature = temperature;
      draw.params.logit_bias.clear();
      draw.params.top_logprobs = 2;
      const std::vector<Draw> draws(rows.size(), draw);
      const auto wanted = draw_rows(*backend, {healthy}, kVocab, {draw})[0];
      const auto drawn = draw_rows(*backend, rows, kVocab, draws);
      const std::vector<TokenId> targets(rows.size(), 7);
      const auto scored = score_rows(*backend, rows, kVocab, targets, std::vector<int32_t>(rows.size(), 0));
      for (size_t row = 0; row < rows.size(); ++row) {
        INFO(backend_case.name << ", temperature " << temperature << ", row " << row);
        REQUIRE(drawn[row].fault == faults[row]);
        REQUIRE(scored[row].fault == faults[row]);
        if (faults[row] != LogitFault::kNone) continue;
        REQUIRE(drawn[row].token == wanted.token);
        REQUIRE(drawn[row].logprobs.logprob == wanted.logprobs.logprob);
        REQUIRE(scored[row].logprobs.token == 7);
        REQUIRE(scored[row].logprobs.logprob < 0.0f);
      }
    }
  }
}

TEST_CASE("a fault outside the samplable ids counts only in logprobs") {
  for (const BackendCase& backend_case : backend_cases()) {
    INFO(backend_case.name);
    const auto backend = backend_case.make();
    Values logits(300, 0.5f);
    logits[217] = std::nanf("");
    Draw draw;
    draw.params.temperature = 0.0f;
    REQUIRE(draw_rows(*backend, {logits}, 217, {draw})[0].fault == LogitFault::kNone);
    draw.params.min_tokens = 1;
    draw.params.stop_token_ids = {217};
    REQUIRE(draw_rows(*backend, {logits}, 300, {draw})[0].fault == LogitFault::kNone);
    draw.params.top_logprobs = 0;
    REQUIRE(draw_rows(*backend, {logits}, 300, {draw})[0].fault == LogitFault::kNan);
  }
}
