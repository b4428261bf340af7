#include <catch2/catch.hpp>

#include "base/random.h"
#include "sched/scheduler/cost_model.h"

/// Tests of what a fit keeps of the startup profile and of rare work.
using namespace millrace;
using namespace millrace::sched;

namespace {

constexpr CostCoefficients kTruth = {2000, 10, 0.002, 40, 0.1};

BatchShape prompt(uint32_t prefix, uint32_t tokens) {
  BatchShape shape;
  shape.add_prefill(prefix, tokens);
  return shape;
}

BatchShape decode(uint32_t count, uint32_t context) {
  BatchShape shape;
  for (uint32_t i = 0; i < count; ++i) shape.add_decode(context);
  return shape;
}

/// A stage whose runs vary by up to 5 %; one in thirty takes up to five times as long.
class NoisyStage {
 public:
  explicit NoisyStage(const CostCoefficients& profiled) {
    for (int round = 0; round < 3; ++round) {
      for (const BatchShape& shape :
           {prompt(0, 2048), prompt(0, 1024), prompt(0, 512), prompt(8192, 1024), prompt(16384, 1024), decode(1, 2560),
            decode(16, 17), decode(16, 2560), decode(32, 17)}) {
        fit.calibrate(shape, profiled.predict_us(shape) * (1 + 0.02 * draw()));
      }
    }
    fit.set_prior();
  }

  void run(const BatchShape& shape, const CostCoefficients& truth) {
    const double noise = 0.95 + 0.1 * draw();
    const double held_up = draw() < 1.0 / 30 ? 1 + 4 * draw() : 1;
    fit.observe(shape, truth.predict_us(shape) * noise * held_up);
  }
  void run_prompt(const CostCoefficients& truth = kTruth) {
    const uint32_t prefix = range(0, 30) * 1024;
    run(prompt(prefix, range(64, 2048)), truth);
  }
  void run_decode(const CostCoefficients& truth = kTruth) {
    const uint32_t count = range(1, 30);
    run(decode(count, range(100, 6000)), truth);
  }
  uint32_t range(uint32_t least, uint32_t most) { return least + static_cast<uint32_t>(draw() * (most - least + 1)); }
  /// Returns the predicted over the true time.
  [[nodiscard]] double ratio(const BatchShape& shape, const CostCoefficients& truth = kTruth) const {
    return fit.coefficients().predict_us(shape) / truth.predict_us(shape);
  }

  CostFit fit;

 private:
  double draw() { return uniform_at(7, draws_++); }

  uint64_t draws_ = 0;
};

}  // namespace

TEST_CASE("a wrong coefficient of the profile fades") {
  const auto coefficient =
      GENERATE(&CostCoefficients::fixed_us, &CostCoefficients::per_token_us, &CostCoefficients::per_pair_us,
               &CostCoefficients::per_decode_us, &CostCoefficients::per_context_us);
  const double factor = GENERATE(1.5, 1 / 1.5);
  CostCoefficients wrong = kTruth;
  wrong.*coefficient *= factor;
  NoisyStage stage(wrong);
  for (int i = 0; i < 600; ++i) {
    stage.run_prompt();
    for (int step = 0; step < 15; ++step) stage.run_decode();
  }
  REQUIRE(stage.fit.usable());
  for (const BatchShape& shape : {prompt(0, 1024), prompt(16384, 1024), prompt(100'000, 1024), decode(1, 500),
                                  decode(16, 500), decode(16, 8000)}) {
    CAPTURE(factor, wrong.*coefficient, shape.prefill_pairs, shape.decode_context);
    CHECK(stage.ratio(shape) == Approx(1).epsilon(0.08));
  }
}

TEST_CASE("a coefficient that the profile missed is found later") {
  const auto coefficient = GENERATE(&CostCoefficients::per_pair_us, &CostCoefficients::per_decode_us);
  const int decodes_per_prompt = GENERATE(15, 200);
  CostCoefficients wrong = kTruth;
  wrong.*coefficient *= coefficient == &CostCoefficients::per_pair_us ? 0 : -1;
  NoisyStage stage(wrong);
  REQUIRE(stage.fit.coefficients().*coefficient < 0.05 * kTruth.*coefficient);
  for (int i = 0; i < 600; ++i) {
    stage.run_prompt();
    for (int step = 0; step < decodes_per_prompt; ++step) stage.run_decode();
  }
  REQUIRE(stage.fit.usable());
  for (const BatchShape& shape : {prompt(0, 1024), prompt(16384, 1024), prompt(100'000, 1024), decode(1, 500),
                                  decode(16, 500), decode(16, 8000)}) {
    CAPTURE(decodes_per_prompt, wrong.*coefficient, shape.prefill_pairs, shape.decode_context);
    CHECK(stage.ratio(shape) == Approx(1).epsilon(0.08));
  }
}

TEST_CASE("hours of decode do not unlearn prompts") {
  const double slower = GENERATE(1.0, 1.3);
  CostCoefficients since = kTruth;
  since.per_token_us *= slower;
  since.per_pair_us *= slower;
  NoisyStage stage(kTruth);
  if (slower > 1.0) {
    for (int i = 0; i < 1000; ++i) stage.run_prompt(since);
  }
  for (int i = 0; i < 50'000; ++i) stage.run_decode();
  REQUIRE(stage.fit.usable());
  for (const BatchShape& shape : {prompt(0, 1024), prompt(16384, 1024), prompt(100'000, 1024)}) {
    CHECK(stage.ratio(shape, since) == Approx(1).epsilon(0.05));
  }
}

TEST_CASE("short prompts and contexts do not unlearn long ones") {
  NoisyStage stage(kTruth);
  for (int i = 0; i < 400'000; ++i) {
    BatchShape shape = prompt(0, stage.range(20, 320));
    for (uint32_t n = stage.range(0, 15); n > 0; --n) shape.add_decode(stage.range(20, 620));
    stage.run(shape, kTruth);
    if (i % 50'000 != 0) continue;
    CHECK(stage.ratio(prompt(100'000, 1024)) == Approx(1).epsilon(0.05));
    CHECK(stage.ratio(decode(16, 8000)) == Approx(1).epsilon(0.05));
  }
}
