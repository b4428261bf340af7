#include "sched/scheduler/cost_model.h"

#include <catch2/catch.hpp>

#include "base/random.h"

using namespace millrace;
using namespace millrace::sched;

namespace {

constexpr CostCoefficients kTruth = {2000, 10, 0.002, 40, 0.1};

BatchShape random_shape(uint64_t seed) {
  BatchShape shape;
  const auto dice = [&](uint64_t draw, double most) { return static_cast<uint32_t>(uniform_at(seed, draw) * most); };
  shape.add_prefill(dice(0, 20000), 1 + dice(1, 2000));
  for (uint32_t i = dice(2, 30); i > 0; --i) shape.add_decode(dice(100 + i, 8000));
  return shape;
}

/// Returns a fit of `count` timings that are off by up to `noise` in either direction.
CostFit fitted(uint64_t count, double noise) {
  CostFit fit;
  for (uint64_t i = 0; i < count; ++i) {
    const BatchShape shape = random_shape(i);
    fit.observe(shape, kTruth.predict_us(shape) * (1 + noise * (2 * uniform_at(i, 999) - 1)));
  }
  return fit;
}

}  // namespace

TEST_CASE("a fit finds the coefficients behind the timings") {
  const CostFit exact = fitted(20, 0);
  REQUIRE(exact.usable());
  REQUIRE(exact.coefficients().per_token_us == Approx(kTruth.per_token_us).epsilon(1e-3));
  REQUIRE(exact.coefficients().per_context_us == Approx(kTruth.per_context_us).epsilon(1e-3));
  const CostFit noisy = fitted(1000, 0.1);
  for (uint64_t seed = 5000; seed < 5100; ++seed) {
    const BatchShape shape = random_shape(seed);
    REQUIRE(noisy.coefficients().predict_us(shape) == Approx(kTruth.predict_us(shape)).epsilon(0.05));
  }
  REQUIRE(noisy.relative_error() < 0.1);
}

TEST_CASE("no coefficient is negative") {
  CostFit fit;
  for (uint64_t i = 0; i < 50; ++i) {
    const BatchShape shape = random_shape(i);
    fit.observe(shape, 1e6 / (1 + shape.prefill_tokens));
    const CostCoefficients& found = fit.coefficients();
    REQUIRE(found.fixed_us >= 0);
    REQUIRE(found.per_token_us >= 0);
    REQUIRE(found.per_pair_us >= 0);
    REQUIRE(found.per_decode_us >= 0);
    REQUIRE(found.per_context_us >= 0);
  }
}

TEST_CASE("an outlier is dropped and a slower stage is followed") {
  CostFit fit = fitted(100, 0);
  const BatchShape shape = random_shape(1);
  const double before = fit.coefficients().predict_us(shape);
  fit.observe(shape, 100 * before);
  REQUIRE(fit.coefficients().predict_us(shape) == before);
  for (uint64_t i = 0; i < 2000; ++i) {
    const BatchShape other = random_shape(i);
    fit.observe(other, 5 * kTruth.predict_us(other));
  }
  REQUIRE(fit.coefficients().predict_us(shape) == Approx(5 * before).epsilon(0.05));
}

TEST_CASE("the recent speed is known before the coefficients follow") {
  CostFit fit = fitted(1000, 0.1);
  const BatchShape shape = random_shape(1);
  REQUIRE(fit.recent_coefficients().predict_us(shape) == Approx(kTruth.predict_us(shape)).epsilon(0.07));
  for (uint64_t i = 0; i < 60; ++i) {
    const BatchShape other = random_shape(3000 + i);
    fit.observe(other, 1.3 * kTruth.predict_us(other));
  }
  REQUIRE(fit.coefficients().predict_us(shape) < 1.1 * kTruth.predict_us(shape));
  REQUIRE(fit.recent_coefficients().predict_us(shape) == Approx(1.3 * kTruth.predict_us(shape)).epsilon(0.07));
}

TEST_CASE("each kind of work has a speed of its own") {
  CostFit fit = fitted(1000, 0);
  fit.set_prior();
  BatchShape prompt;
  prompt.add_prefill(0, 2000);
  BatchShape decode;
  for (int n = 0; n < 20; ++n) decode.add_decode(4000);
  for (int i = 0; i < 30; ++i) fit.observe(prompt, 1.3 * kTruth.predict_us(prompt));
  for (int i = 0; i < 60; ++i) fit.observe(decode, 0.8 * kTruth.predict_us(decode));
  const CostCoefficients lately = fit.recent_coefficients();
  REQUIRE(lately.predict_us(prompt) == Approx(1.3 * kTruth.predict_us(prompt)).epsilon(0.05));
  REQUIRE(lately.predict_us(decode) == Approx(0.8 * kTruth.predict_us(decode)).epsilon(0.05));
}

TEST_CASE("a stage that is slower at one kind of work is followed") {
  CostFit fit = fitted(100, 0);
  fit.set_prior();
  CostCoefficients slow_decode = kTruth;
  slow_decode.per_context_us *= 20;
  BatchShape decode;
  for (int n = 0; n < 20; ++n) decode.add_decode(8000);
  BatchShape prefill;
  prefill.add_prefill(0, 2000);
  REQUIRE(slow_decode.predict_us(decode) > 10 * kTruth.predict_us(decode));
  for (uint64_t i = 0; i < 200; ++i) {
    const BatchShape& shape = i % 2 == 0 ? prefill : decode;
    fit.observe(shape, slow_decode.predict_us(shape));
  }
  REQUIRE(fit.coefficients().predict_us(prefill) == Approx(slow_decode.predict_us(prefill)).epsilon(0.05));
  REQUIRE(fit.coefficients().predict_us(decode) == Approx(slow_decode.predict_us(decode)).epsilon(0.05));
}

TEST_CASE("a profile that starts with single steps learns many") {
  // A stage whose prompts cost less per token than their fixed cost would suggest: before the steps of many sequences
  // come, the fixed cost of decode may as well be one per sequence.
  const CostCoefficients truth = {18000, 400, 0.07, 250, 1};
  CostFit fit;
  const auto run = [&](const BatchShape& shape, double factor) {
    fit.calibrate(shape, factor * truth.predict_us(shape));
  };
  const auto prefill = [&](uint32_t prefix, uint32_t tokens, double factor) {
    BatchShape shape;
    shape.add_prefill(prefix, tokens);
    run(shape, factor);
  };
  const auto decode = [&](int count, uint32_t context) {
    BatchShape shape;
    for (int i = 0; i < count; ++i) shape.add_decode(context);
    run(shape, 1);
  };
  prefill(0, 256, 0.8);
  prefill(0, 512, 0.9);
  prefill(0, 1024, 1);
  for (uint32_t chunk = 0; chunk < 3; ++chunk) prefill(1024 + 512 * chunk, 512, 1);
  for (int step = 0; step < 3; ++step) decode(1, 2560);
  for (const int count : {32, 32, 16, 16}) decode(count, 17);
  BatchShape sixteen;
  for (int i = 0; i < 16; ++i) sixteen.add_decode(100);
  REQUIRE(fit.coefficients().predict_us(sixteen) == Approx(truth.predict_us(sixteen)).epsilon(0.25));
}

TEST_CASE("hours of decode do not unlearn the startup profile") {
  CostFit fit = fitted(30, 0);
  fit.set_prior();
  for (uint64_t i = 0; i < 20000; ++i) {
    BatchShape decode;
    for (uint64_t n = i % 20 + 1; n > 0; --n) decode.add_decode(static_cast<uint32_t>(100 * n + i % 700));
    fit.observe(decode, kTruth.predict_us(decode));
  }
  REQUIRE(fit.usable());
  BatchShape prefill;
  prefill.add_prefill(4096, 1024);
  REQUIRE(fit.coefficients().predict_us(prefill) == Approx(kTruth.predict_us(prefill)).epsilon(0.02));
}

TEST_CASE("a chunk is as long as the slowest stage allows") {
  BatchShape decodes;
  decodes.add_decode(1000);
  const double chunk = kTruth.chunk_for(decodes, 5000, 30000);
  BatchShape whole = decodes;
  whole.prefill_tokens += chunk;
  whole.prefill_pairs += 2 * 5000 * chunk + chunk * chunk;
  REQUIRE(kTruth.predict_us(whole) == Approx(30000));
  REQUIRE(kTruth.chunk_for(decodes, 5000, 100) == 0);

  CostModel model;
  for (uint64_t i = 0; i < 20; ++i) {
    const BatchShape shape = random_shape(i);
    model.observe(StageId(0), shape, kTruth.predict_us(shape));
    model.observe(StageId(1), shape, 2 * kTruth.predict_us(shape));
  }
  REQUIRE(model.usable());
  REQUIRE(model.slowest_us(whole) == Approx(60000).epsilon(0.01));
  REQUIRE(model.chunk_for(decodes, 5000, 60000) == Approx(chunk).epsilon(0.01));
}

TEST_CASE("decode groups follow fixed cost and stages and transit") {
  const auto model_of = [](std::initializer_list<double> fixed_us, double per_decode_us) {
    CostModel model;
    for (uint64_t i = 0; i < 40; ++i) {
      const BatchShape shape = random_shape(i);
      uint32_t stage = 0;
      for (const double fixed : fixed_us) {
        model.observe(StageId(stage++), shape, CostCoefficients{fixed, 10, 0.002, per_decode_us, 0}.predict_us(shape));
      }
    }
    return model;
  };
  BatchShape decodes;
  for (int i = 0; i < 16; ++i) decodes.add_decode(100);
  const CostModel even = model_of({1000, 1000, 1000, 1000}, 10);
  REQUIRE(even.decode_groups(decodes, 8, 0) == 4);
  REQUIRE(even.decode_groups(decodes, 3, 0) == 3);
  REQUIRE(even.decode_groups(decodes, 8, 2000) == 6);
  REQUIRE(even.decode_groups(decodes, 8, 1e9) == 8);
  // Two processors for four stages: two groups use all their time, and four would take twice as long.
  const SharedMachine two{2, 1, {}};
  REQUIRE(even.decode_groups(decodes, 8, 0, two) == 2);
  REQUIRE(even.round_us(decodes, 4, 0, two) == Approx(4 * 4 * 1040 / 2).epsilon(0.01));
  // Processors enough, but two at once take as long as one after the other: more groups only read weights more often.
  const SharedMachine slow_memory{4, 1, {.other_by_other = 1}};
  REQUIRE(even.decode_groups(decodes, 8, 0, slow_memory) == 1);
  // One stage as long as all others: turns of several groups on it take longer than the way of one.
  const CostModel uneven = model_of({4000, 100}, 10);
  REQUIRE(uneven.decode_groups(decodes, 8, 0) == 1);
  // Without fixed costs, twice as many groups are half as long each.
  const CostModel rows = model_of({1, 1}, 500);
  REQUIRE(rows.decode_groups(decodes, 8, 0) >= 2);
  REQUIRE(even.round_us(decodes, 4, 0) == Approx(4 * 1040).epsilon(0.01));
  REQUIRE(even.round_us(decodes, 1, 500) == Approx(500 + 4 * 1160).epsilon(0.01));
}

TEST_CASE("an unusable fit falls back to the profile") {
  REQUIRE_FALSE(CostFit().fallback().has_value());
  CostFit fit = fitted(30, 0);
  fit.set_prior();
  BatchShape prompt;
  prompt.add_prefill(0, 2000);
  BatchShape decode;
  for (int n = 0; n < 20; ++n) decode.add_decode(4000);
  REQUIRE(fit.fallback()->predict_us(prompt) == Approx(kTruth.predict_us(prompt)).epsilon(0.01));
  // Ten times as slow at decode, and nothing else is seen for hours: the fit starts over and knows no prompt any more.
  for (int i = 0; i < 500; ++i) fit.observe(decode, 10 * kTruth.predict_us(decode));
  REQUIRE_FALSE(fit.usable());
  REQUIRE(fit.fallback()->predict_us(prompt) > 0.8 * kTruth.predict_us(prompt));
  // A timing counts for at most three times its prediction.
  const double decode_us = fit.fallback()->predict_us(decode);
  REQUIRE(decode_us > 2.5 * kTruth.predict_us(decode));
  REQUIRE(decode_us < 3.1 * kTruth.predict_us(decode));
}
