#include <algorithm>
#include <limits>
#include <map>

#include "base/random.h"
#include "cuda/draws.h"
#include "cuda/emulator/emulator.h"

using namespace millrace;
using namespace millrace::test;
using tensor::LogitFault;
using tensor::SamplingParams;

namespace {

std::vector<TokenId> random_tokens(Random& random, int64_t count, int64_t vocab) {
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<TokenId>(random.integer(-1, vocab)));
  return tokens;
}

Draw random_draw(Random& random, int32_t vocab) {
  Draw draw;
  SamplingParams& params = draw.params = random_sampling(random);
  const auto sometimes = [&] { return random.integer(0, 2) == 0; };
  if (sometimes()) params.logit_bias = {{5, 2.5f}, {7, -100.0f}, {vocab + 3, 1.0f}, {5, -1.25f}};
  if (sometimes()) {
    params.min_tokens = 4;
    params.stop_token_ids = {1, 2, vocab};
  }
  params.seed <<= 20;
  draw.output_count = static_cast<uint32_t>(random.integer(0, 6));
  draw.prompt = random_tokens(random, 30, vocab);
  draw.output = random_tokens(random, draw.output_count, vocab);
  return draw;
}

}  // namespace

TEST_CASE("CUDA samples invert the cumulative distribution") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 140);
  for (const int32_t vocab : {50, 1024, 5003}) {
    std::vector<Values> rows;
    std::vector<Draw> draws;
    for (int i = 0; i < 40; ++i) {
      rows.push_back(random.normal(vocab + 13, 3.0f));
      draws.push_back(random_draw(random, vocab));
      draws.back().position = static_cast<uint64_t>(i) << 33;
    }
    const auto results = draw_rows(rows, vocab, draws);
    for (size_t i = 0; i < rows.size(); ++i) {
      INFO("vocabulary " << vocab << ", row " << i);
      const auto wanted =
          reference::sampling_distribution(std::span(rows[i]).first(static_cast<size_t>(vocab)), draws[i].spec());
      check_draw(results[i].row.token, uniform_at(draws[i].params.seed, draws[i].position), wanted);
    }
  }
}

TEST_CASE("CUDA cuts keep ties as documented") {
  Values logits(3000, 0.0f);
  for (size_t i = 0; i < 10; ++i) logits[100 + 7 * i] = 2.0f;
  const auto drawn = [&](const SamplingParams& params) {
    std::vector<Draw> draws(70);
    for (size_t i = 0; i < draws.size(); ++i) draws[i] = {.params = params, .position = i, .prompt = {}, .output = {}};
    std::map<TokenId, int> seen;
    for (const Drawn& result : draw_rows(std::vector<Values>(draws.size(), logits), 3000, draws)) {
      ++seen[result.row.token];
    }
    return seen;
  };
  // Ties with the third largest survive top_k; top_p takes the lower ids of equals.
  REQUIRE(drawn({.top_k = 3}).size() == 10);
  const auto nucleus = drawn({.top_p = 0.45f, .top_k = 3});
  REQUIRE(nucleus.size() == 5);
  REQUIRE(nucleus.rbegin()->first == 128);
  // All ids equal but ten: the tail is spread over the vocabulary.
  const auto tail = drawn({.top_p = 0.5f});
  REQUIRE(tail.size() > 30);
  REQUIRE(tail.rbegin()->first < 1600);
}

TEST_CASE("CUDA greedy rows take the most probable token and lower id") {
  Values logits(1000, -1.0f);
  logits[700] = logits[413] = logits[999] = 2.0f;
  Draw draw;
  draw.params.temperature = 0.0f;
  Draw banned = draw;
  banned.params.min_tokens = 1;
  banned.params.stop_token_ids = {413};
  const auto results = draw_rows({logits, logits}, 999, {draw, banned});
  REQUIRE(results[0].row.token == 413);
  REQUIRE(results[1].row.token == 700);
}

TEST_CASE("a CUDA sample does not depend on its company") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 141);
  constexpr int32_t kVocab = 2100;
  constexpr size_t kRows = 133;  // more than there is scratch for at a time
  std::vector<Values> rows;
  std::vector<Draw> draws;
  for (size_t i = 0; i < kRows; ++i) {
    rows.push_back(random.normal(kVocab, 3.0f));
    draws.push_back(random_draw(random, kVocab));
    draws.back().params.top_logprobs = 3;
  }
  const auto together = draw_rows(rows, kVocab, draws, 3);
  for (const size_t i : {size_t{0}, size_t{5}, size_t{128}, size_t{132}}) {
    emulator::set_order_seed(test_seed() + i);
    const auto alone = draw_rows({rows[i]}, kVocab, {draws[i]}, 3)[0];
    REQUIRE(alone.row.token == together[i].row.token);
    REQUIRE(alone.row.logprob == together[i].row.logprob);
    REQUIRE(alone.top == together[i].top);
  }
}

TEST_CASE("CUDA logprobs and ranks and alternatives follow raw logits") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 142);
  for (const float deviation : {0.0f, 4.0f}) {
    const auto vocab = static_cast<int32_t>(random.integer(30, 9000));
    const Values logits = random.normal(vocab + 8, deviation);
    const std::span<const float> known = std::span(logits).first(static_cast<size_t>(vocab));
    const std::vector<double> wanted = reference::log_softmax(known);
    std::vector<TokenId> order;
    for (TokenId id = 0; id < vocab; ++id) order.push_back(id);
    std::sort(order.begin(), order.end(), [&](TokenId a, TokenId b) {
      const float x = known[static_cast<size_t>(a)];
      const float y = known[static_cast<size_t>(b)];
      return x != y ? x > y : a < b;
    });
    Draw draw = random_draw(random, vocab);
    draw.params.top_logprobs = 20;
    const auto sampled = draw_rows({logits}, vocab, {draw}, 20)[0];
    const std::vector<int32_t> targets = {sampled.row.token, 0, vocab - 1, 3};
    const std::vector<int32_t> top_counts = {20, 0, 5, 100};
    auto results = score_rows(std::vector<Values>(4, logits), vocab, targets, top_counts, 25);
    results.push_back(sampled);
    for (const Drawn& found : results) {
      INFO("vocabulary " << vocab << ", token " << found.row.token);
      REQUIRE(found.row.fault == 0);
      REQUIRE(found.row.logprob == Approx(wanted[static_cast<size_t>(found.row.token)]).margin(1e-5));
      REQUIRE(found.row.rank == 1 + std::count_if(known.begin(), known.end(), [&](float logit) {
                                  return logit > known[static_cast<size_t>(found.row.token)];
                                }));
      for (size_t i = 0; i < found.top.size(); ++i) {
        REQUIRE(found.top[i].first == order[i]);
        REQUIRE(found.top[i].second == Approx(wanted[static_cast<size_t>(order[i])]).margin(1e-5));
      }
    }
    REQUIRE(results[0].top.size() == 20);
    REQUIRE(results[0].top == sampled.top);
    REQUIRE(results[0].row.logprob == sampled.row.logprob);
    REQUIRE(results[1].top.empty());
    REQUIRE(results[2].top.size() == 5);
    REQUIRE(results[3].top.size() == 25);
  }
}

TEST_CASE("a CUDA row without a distribution says why") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 143);
  constexpr float kPlusInfinity = std::numeric_limits<float>::infinity();
  constexpr int32_t kVocab = 300;
  const Values healthy = random.normal(kVocab, 2.0f);
  const auto spoilt = [&](float poison) {
    Values logits = healthy;
    logits[static_cast<size_t>(random.integer(0, kVocab - 1))] = poison;
    return logits;
  };
  const std::vector<Values> rows = {spoilt(std::nanf("")), spoilt(kPlusInfinity), healthy,
                                    Values(kVocab, -kPlusInfinity), spoilt(-kPlusInfinity)};
  const std::vector<LogitFault> faults = {LogitFault::kNan, LogitFault::kInfinity, LogitFault::kNone,
                                          LogitFault::kAllNegativeInfinity, LogitFault::kNone};
  Draw draw = random_draw(random, kVocab);
  draw.params.logit_bias.clear();
  draw.params.min_tokens = 0;  // else a poisoned stop token may be a banned one, which is no fault of a draw
  for (const float temperature : {0.0f, 1.0f}) {
    draw.params.temperature = temperature;
    const auto wanted = draw_rows({healthy}, kVocab, {draw})[0];
    const auto drawn = draw_rows(rows, kVocab, std::vector<Draw>(rows.size(), draw));
    const auto scored =
        score_rows(rows, kVocab, std::vector<int32_t>(rows.size(), 7), std::vector<int32_t>(rows.size(), 0), 0);
    for (size_t row = 0; row < rows.size(); ++row) {
      INFO("temperature " << temperature << ", row " << row);
      REQUIRE(drawn[row].row.fault == static_cast<int32_t>(faults[row]));
      REQUIRE(scored[row].row.fault == static_cast<int32_t>(faults[row]));
    }
    REQUIRE(drawn[2].row.token == wanted.row.token);
  }
  // A NaN beyond the drawable ids is none; one under a banned token still shows in logprobs.
  Values logits(300, 0.5f);
  logits[217] = std::nanf("");
  draw = {};
  draw.params.temperature = 0.0f;
  REQUIRE(draw_rows({logits}, 217, {draw})[0].row.fault == 0);
  draw.params.min_tokens = 1;
  draw.params.stop_token_ids = {217};
  REQUIRE(draw_rows({logits}, 300, {draw})[0].row.fault == 0);
  draw.params.top_logprobs = 0;
  REQUIRE(draw_rows({logits}, 300, {draw})[0].row.fault == static_cast<int32_t>(LogitFault::kNan));
}

TEST_CASE("sample and score say what they cannot do") {
  REQUIRE_THROWS_WITH(cuda::sample(nullptr, nullptr, 0, 0, 1, {}, {}, nullptr),
                      "sample: found a vocabulary of 0 and top lists of 0, wanted 1 to 2097152 and 0 to 1024");
  REQUIRE_THROWS_AS(
      cuda::score(nullptr, nullptr, 9, 9, 1, nullptr, nullptr, {nullptr, nullptr, nullptr, 1025}, nullptr),
      std::invalid_argument);
}
