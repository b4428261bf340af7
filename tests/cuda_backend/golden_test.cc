// Whole models on the CUDA backend, its kernels replaced by plain loops.

#include <catch2/catch.hpp>

#include "cuda_backend/families.h"

using namespace millrace;

TEST_CASE("CUDA logits and logprobs are near those of the reference") {
  const test::GoldenFamily family = test::read_golden_family(GENERATE(from_range(test::drawn_family_names())));
  test::require_agreement(family);
}

TEST_CASE("CUDA logits and logprobs of GGUF files are near") {
  test::require_agreement(test::read_golden_family(GENERATE(from_range(test::golden_gguf_names()))));
}

TEST_CASE("CUDA logits with 8-bit weights are about as near as in bf16") {
  const test::GoldenFamily family = test::read_golden_family(GENERATE(as<std::string>{}, "llama-untied", "qwen3moe"));
  const auto checkpoint = model::Checkpoint::open(family.folder).value();
  model::ModelConfig config = test::adapted_config(*checkpoint);
  config.quantization = GENERATE(model::Quantization::kW8, model::Quantization::kMxInt8);
  const double factor = config.quantization == model::Quantization::kW8 ? 1.0 : 1.5;
  const auto backend = cuda::make_backend({.products = test::tested_gemm()});
  test::TestPipeline pipeline(*checkpoint, config, *backend, {.stage_count = 2});
  const test::Agreement agreement = test::measure_agreement(pipeline, family, factor * 4.0 * family.tolerance.bf16_max);
  CAPTURE(family.name, factor, agreement.logits.max(), agreement.logits.rms(), agreement.logits.kl());
  REQUIRE(agreement.logits.rms() <= factor * family.tolerance.bf16_rms);
  REQUIRE(agreement.logits.rms() > family.tolerance.f32_max);
  REQUIRE(agreement.logits.max() <= factor * 2.0 * family.tolerance.bf16_max);
  REQUIRE(agreement.logits.kl() <= factor * factor * 2.0 * family.tolerance.bf16_kl);
  REQUIRE(agreement.greedy_wrong == 0);
}

TEST_CASE("CUDA logits over 8-bit keys and values are near") {
  const test::GoldenFamily family =
      test::read_golden_family(GENERATE(as<std::string>{}, "llama-untied", "qwen2", "qwen3moe", "mixtral"));
  test::require_coded_agreement(family, GENERATE(tensor::KvDType::kInt8, tensor::KvDType::kFp8E4M3));
}

TEST_CASE("CUDA logits over latents in 8 bits are near") {
  const test::GoldenFamily family = test::read_golden_family(
      GENERATE(as<std::string>{}, "deepseek-v3", "deepseek-v2-lite", "deepseek-v32-sparse", "glm-moe-dsa-sparse"));
  test::require_coded_agreement(family, GENERATE(tensor::KvDType::kInt8, tensor::KvDType::kFp8E4M3));
}

TEST_CASE("formats that round inputs are refused on a GPU by their name") {
  model::ModelConfig config = model::read_config(test::read_golden_family("qwen2").folder).value();
  config.quantization = GENERATE(model::Quantization::kW8A8, model::Quantization::kW8A8Int8);
  const auto backend = cuda::make_backend({});
  const auto checked = model::check_backend(config, *backend);
  REQUIRE(checked.has_error());
  REQUIRE(checked.error().code == ErrorCode::kInvalidArgument);
  REQUIRE_THAT(checked.error().message,
               test::Mentions(backend->description(), std::string(to_string(config.quantization))));
}
