#include <algorithm>
#include <catch2/catch.hpp>

#include "cpu/cpu_backend.h"
#include "golden_test/agreement.h"
#include "golden_test/golden_file.h"
#include "model/families/read_config.h"
#include "model/test_pipeline.h"

using namespace millrace;
using test::GoldenFamily;
using test::TestPipeline;

namespace {

struct Loaded {
  std::unique_ptr<model::Checkpoint> checkpoint;
  model::ModelConfig config;
  std::unique_ptr<tensor::Backend> backend;
};

Loaded load(const GoldenFamily& family, tensor::DType dtype, tensor::KvDType kv_dtype = tensor::KvDType::kAuto) {
  auto checkpoint = model::Checkpoint::open(family.folder).value();
  model::ModelConfig config = test::adapted_config(*checkpoint);
  return {std::move(checkpoint), std::move(config),
          cpu::make_backend({.threads = 2, .compute_dtype = dtype, .kv_dtype = kv_dtype})};
}

/// Samples as many tokens as each golden continuation has, through Backend::sample. Sequence s joins the batch in turn
/// 3·s and leaves when it is complete.
std::vector<std::vector<TokenId>> decode_greedily(TestPipeline& pipeline, const GoldenFamily& family) {
  const size_t count = family.prompts.size();
  std::vector<int32_t> room;
  for (const auto& prompt : family.prompts)
    room.push_back(static_cast<int32_t>(prompt.ids.size() + prompt.greedy.size()));
  pipeline.start(room, 7);
  const int32_t vocab = pipeline.stage(0).config().vocab_size;
  const tensor::SamplingParams greedy{.temperature = 0.0f};
  std::vector<std::vector<TokenId>> drawn(count);
  for (size_t turn = 0;; ++turn) {
    std::vector<test::Piece> pieces;
    for (size_t s = 0; s < count && 3 * s <= turn; ++s) {
      const auto& prompt = family.prompts[s];
      if (drawn[s].size() == prompt.greedy.size()) continue;
      const bool prefill = drawn[s].empty();
      pieces.push_back({.tokens = prefill ? prompt.ids : std::vector<TokenId>{drawn[s].back()},
                        .prefix = prefill ? 0 : static_cast<int32_t>(prompt.ids.size() + drawn[s].size() - 1),
                        .sequence = s});
    }
    if (pieces.empty()) return drawn;
    size_t row_count = 0;
    for (const test::Piece& piece : pieces) row_count += piece.tokens.size();
    std::vector<tensor::SampleResult> results(row_count);
    pipeline.run(pieces, [&](size_t first, tensor::Matrix logits) {
      const std::vector<tensor::SampleSpec> specs(static_cast<size_t>(logits.rows), {.params = &greedy});
      pipeline.backend().sample(logits, vocab, specs, std::span(results).subspan(first, specs.size()));
    });
    size_t row = 0;
    for (const test::Piece& piece : pieces) {
      row += piece.tokens.size();
      drawn[piece.sequence].push_back(results[row - 1].token);
    }
  }
}

}  // namespace

TEST_CASE("the small model that ships is among the golden models") {
  REQUIRE(test::golden_family_names().back() == test::kSmallModelName);
}

TEST_CASE("f32 logits and logprobs and tokens equal the reference") {
  const GoldenFamily family = test::read_golden_family(GENERATE(from_range(test::drawn_family_names())));
  const Loaded loaded = load(family, tensor::DType::kF32);
  const int32_t stages = GENERATE(1, 2, 4);
  TestPipeline pipeline(*loaded.checkpoint, loaded.config, *loaded.backend, {.stage_count = stages});
  const test::Agreement agreement = test::measure_agreement(pipeline, family, 1e-3);
  CAPTURE(family.name, stages, agreement.logits.rms(), agreement.logits.kl());
  REQUIRE(agreement.logits.max() <= family.tolerance.f32_max);
  REQUIRE(agreement.logprob_max <= family.tolerance.f32_max);
  REQUIRE(agreement.greedy_checked >= 32);
  REQUIRE(agreement.greedy_wrong == 0);
}

TEST_CASE("bf16 logits and logprobs are near the reference") {
  const GoldenFamily family = test::read_golden_family(GENERATE(from_range(test::drawn_family_names())));
  const Loaded loaded = load(family, tensor::DType::kBF16);
  const int32_t stages = GENERATE(1, 2, 4);
  TestPipeline pipeline(*loaded.checkpoint, loaded.config, *loaded.backend, {.stage_count = stages});
  // Two logits may each be off by the tolerance.
  const test::Agreement agreement = test::measure_agreement(pipeline, family, 2.0 * family.tolerance.bf16_max);
  CAPTURE(family.name, stages, agreement.logprob_max, agreement.greedy_checked);
  REQUIRE(agreement.logits.max() <= family.tolerance.bf16_max);
  REQUIRE(agreement.logits.rms() <= family.tolerance.bf16_rms);
  REQUIRE(agreement.logits.kl() <= family.tolerance.bf16_kl);
  REQUIRE(agreement.logprob_max <= family.tolerance.bf16_max);
  REQUIRE(agreement.greedy_wrong == 0);
}

TEST_CASE("8-bit weights give logits about as near as bf16") {
  const GoldenFamily family = test::read_golden_family(GENERATE(from_range(test::drawn_family_names())));
  Loaded loaded = load(family, GENERATE(tensor::DType::kF32, tensor::DType::kBF16));
  loaded.config.quantization = GENERATE(model::Quantization::kW8, model::Quantization::kW8A8,
                                        model::Quantization::kMxInt8, model::Quantization::kW8A8Int8);
  // Inputs of 8 bits too, or coarser scales, may bring half as much again, one scale per channel and per token twice as
  // much, and the square of it to the divergence.
  const auto quantization = loaded.config.quantization;
  const double factor = family.tolerance.w8_factor * (quantization == model::Quantization::kW8         ? 1.0
                                                      : quantization == model::Quantization::kW8A8Int8 ? 2.0
                                                                                                       : 1.5);
  TestPipeline pipeline(*loaded.checkpoint, loaded.config, *loaded.backend, {.stage_count = 2});
  const test::Agreement agreement = test::measure_agreement(pipeline, family, factor * 4.0 * family.tolerance.bf16_max);
  CAPTURE(family.name, factor, agreement.logits.max(), agreement.logits.rms(), agreement.logits.kl());
  REQUIRE(agreement.logits.rms() <= factor * family.tolerance.bf16_rms);
  REQUIRE(agreement.logits.rms() > family.tolerance.f32_max);
  REQUIRE(agreement.logits.max() <= factor * 2.0 * family.tolerance.bf16_max);
  REQUIRE(agreement.logits.kl() <= factor * factor * 2.0 * family.tolerance.bf16_kl);
  REQUIRE(agreement.greedy_wrong == 0);
}

TEST_CASE("8-bit keys and values give logits near bf16") {
  const GoldenFamily family = test::read_golden_family(GENERATE(from_range(test::drawn_family_names())));
  const auto kv_dtype = GENERATE(tensor::KvDType::kInt8, tensor::KvDType::kFp8E4M3);
  const auto dtype = GENERATE(tensor::DType::kF32, tensor::DType::kBF16);
  const Loaded loaded = load(family, dtype, kv_dtype);
  // Int8 errs up to twice as much as bf16 does, and E4M3, with 4 bits of precision in place of 8, up to eight times.
  const double factor = kv_dtype == tensor::KvDType::kInt8 ? 1.5 : 4.0;
  TestPipeline pipeline(*loaded.checkpoint, loaded.config, *loaded.backend, {.stage_count = 2});
  const test::Agreement agreement = test::measure_agreement(pipeline, family, factor * 4.0 * family.tolerance.bf16_max);
  CAPTURE(family.name, enum_name(kv_dtype), agreement.logits.max(), agreement.logits.rms(), agreement.logits.kl());
  REQUIRE(agreement.logits.rms() <= factor * family.tolerance.bf16_rms);
  REQUIRE(agreement.logits.rms() > family.tolerance.f32_max);
  REQUIRE(agreement.logits.max() <= factor * 2.0 * family.tolerance.bf16_max);
  REQUIRE(agreement.logits.kl() <= factor * factor * 2.0 * family.tolerance.bf16_kl);
  REQUIRE(agreement.greedy_wrong == 0);
}

TEST_CASE("a compressed-tensors checkpoint gives its own logits") {
  const GoldenFamily family = test::read_golden_family("qwen2-compressed");
  const auto dtype = GENERATE(tensor::DType::kF32, tensor::DType::kBF16);
  const Loaded loaded = load(family, dtype);
  REQUIRE(loaded.config.quantization == model::Quantization::kW8A8Int8);
  REQUIRE(loaded.config.keeps_unquantized_projections);
  const int32_t stages = GENERATE(1, 4);
  TestPipeline pipeline(*loaded.checkpoint, loaded.config, *loaded.backend, {.stage_count = stages});
  const bool is_f32 = dtype == tensor::DType::kF32;
  const test::GoldenTolerance& tolerance = family.tolerance;
  // The sums of shards are rounded, unlike the reference's whole numbers. Some input of the next product may then be
  // rounded to the other int8.
  constexpr double kOtherInputs = 10.0;
  const double most = is_f32 ? kOtherInputs * tolerance.f32_max : tolerance.bf16_max;
  const test::Agreement agreement =
      test::measure_agreement(pipeline, family, 2.0 * (is_f32 ? tolerance.f32_max : tolerance.bf16_max));
  CAPTURE(is_f32, stages, agreement.logits.rms(), agreement.logits.kl(), agreement.greedy_checked);
  REQUIRE(agreement.logits.max() <= most);
  REQUIRE(agreement.logits.rms() <= (is_f32 ? tolerance.f32_max : tolerance.bf16_rms));
  REQUIRE(agreement.logprob_max <= most);
  if (is_f32) REQUIRE(agreement.greedy_checked >= 64);
  REQUIRE(agreement.greedy_wrong == 0);
}

TEST_CASE("GGUF files give the logits of their decoded weights") {
  const GoldenFamily family = test::read_golden_family(GENERATE(from_range(test::golden_gguf_names())));
  const auto dtype = GENERATE(tensor::DType::kF32, tensor::DType::kBF16);
  const Loaded loaded = load(family, dtype);
  const int32_t stages = GENERATE(1, 2);
  const int32_t rank_count = GENERATE(1, 2);
  std::vector<std::unique_ptr<tensor::Backend>> others;
  std::vector<tensor::Backend*> ranks = {loaded.backend.get()};
  for (int32_t rank = 1; rank < rank_count; ++rank)
    ranks.push_back(others.emplace_back(cpu::make_backend({.threads = 1, .compute_dtype = dtype})).get());
  TestPipeline pipeline(*loaded.checkpoint, loaded.config, ranks, {.stage_count = stages});
  const bool is_f32 = dtype == tensor::DType::kF32;
  const test::GoldenTolerance& tolerance = family.tolerance;
  const double max = is_f32 ? tolerance.f32_max : tolerance.bf16_max;
  const test::Agreement agreement = test::measure_agreement(pipeline, family, is_f32 ? 1e-3 : 2.0 * max);
  CAPTURE(family.name, is_f32, stages, rank_count, agreement.logits.rms(), agreement.logits.kl());
  REQUIRE(agreement.logits.max() <= max);
  REQUIRE(agreement.logprob_max <= max);
  if (!is_f32) REQUIRE(agreement.logits.rms() <= tolerance.bf16_rms);
  // Products with codes round their inputs to int8 after bf16.
  constexpr double kRoundedInputs = 2.0;
  if (!is_f32) REQUIRE(agreement.logits.kl() <= kRoundedInputs * tolerance.bf16_kl);
  if (is_f32) REQUIRE(agreement.greedy_checked >= 32);
  REQUIRE(agreement.greedy_wrong == 0);
}

TEST_CASE("GGUF weights can be rounded to 8 bits when they are loaded") {
  const GoldenFamily family = test::read_golden_family(GENERATE(from_range(test::golden_gguf_names())));
  Loaded loaded = load(family, tensor::DType::kF32);
  loaded.config.quantization = model::Quantization::kW8;
  TestPipeline pipeline(*loaded.checkpoint, loaded.config, *loaded.backend, {.stage_count = 2});
  const test::Agreement agreement = test::measure_agreement(pipeline, family, 4.0 * family.tolerance.bf16_max);
  CAPTURE(family.name, agreement.logits.max(), agreement.logits.rms(), agreement.logits.kl());
  REQUIRE(agreement.logits.rms() <= family.tolerance.bf16_rms);
  REQUIRE(agreement.logits.rms() > family.tolerance.f32_max);
  REQUIRE(agreement.greedy_wrong == 0);
}

TEST_CASE("greedy decoding in a changing batch matches the reference") {
  const GoldenFamily family = test::read_golden_family(GENERATE(from_range(test::drawn_family_names())));
  const Loaded loaded = load(family, tensor::DType::kF32);
  TestPipeline pipeline(*loaded.checkpoint, loaded.config, *loaded.backend, {.stage_count = 2});
  std::vector<std::vector<TokenId>> drawn = decode_greedily(pipeline, family);
  size_t checked = 0;
  for (size_t s = 0; s < drawn.size(); ++s) {
    const test::GoldenPrompt& prompt = family.prompts[s];
    // Compares up to the first choice that rounding could turn.
    size_t clear = 0;
    while (clear < prompt.margins.size() && prompt.margins[clear] > 1e-3) ++clear;
    std::vector<TokenId> wanted = prompt.greedy;
    wanted.resize(clear);
    drawn[s].resize(clear);
    CAPTURE(family.name, s);
    REQUIRE(drawn[s] == wanted);
    checked += clear;
  }
  REQUIRE(checked >= 64);
}
