#pragma once

#include <algorithm>
#include <catch2/catch.hpp>

#include "cuda/cuda_backend.h"
#include "cuda_backend/tested_gemm.h"
#include "golden_test/agreement.h"
#include "model/families/read_config.h"
#include "model/needed_features.h"
#include "model/weights.h"
#include "support/mentions.h"

namespace millrace::test {

/// Fails unless outputs in bf16 are within the tolerance.
inline void require_near(const Agreement& agreement, const GoldenTolerance& tolerance) {
  REQUIRE(agreement.logits.max() <= tolerance.bf16_max);
  REQUIRE(agreement.logits.rms() <= tolerance.bf16_rms);
  REQUIRE(agreement.logits.kl() <= tolerance.bf16_kl);
  REQUIRE(agreement.logprob_max <= tolerance.bf16_max);
  REQUIRE(agreement.greedy_wrong == 0);
}

/// Checks logits, logprobs and greedy choices of a family on the CUDA backend with one, two and four stages, in bf16. A
/// family that needs what the backend lacks is refused by its name.
inline void require_agreement(const GoldenFamily& family) {
  const auto checkpoint = model::Checkpoint::open(family.folder).value();
  size_t longest = 0;
  for (const GoldenPrompt& prompt : family.prompts) longest = std::max(longest, prompt.sequence().size());
  const model::ModelConfig config = model::for_context(adapted_config(*checkpoint), static_cast<int32_t>(longest));
  const int32_t stages = GENERATE(1, 2, 4);
  if (stages > config.layer_count()) return;
  const auto backend = cuda::make_backend({.products = tested_gemm()});
  if (const auto checked = model::check_backend(config, *backend); checked.has_error()) {
    CAPTURE(checked.error().message);
    REQUIRE(checked.error().code == ErrorCode::kInvalidArgument);
    REQUIRE_THAT(checked.error().message, Mentions(backend->description(), config.architecture));
    const auto is_missing = [&](const auto& feature) {
      return model::needs(config, feature.value) && !backend->computes(feature.value);
    };
    REQUIRE(std::ranges::any_of(tensor::kFeatureNames, is_missing));
    return;
  }
  TestPipeline pipeline(*checkpoint, config, *backend, {.stage_count = stages});
  const Agreement agreement = measure_agreement(pipeline, family, 2.0 * family.tolerance.bf16_max);
  CAPTURE(family.name, stages, agreement.logprob_max, agreement.greedy_checked);
  require_near(agreement, family.tolerance);
}

/// Checks the same of a family over a KV cache of 8-bit codes. Int8 errs up to twice as much as bf16 does, and E4M3,
/// with 4 bits of precision in place of 8, up to eight times.
inline void require_coded_agreement(const GoldenFamily& family, tensor::KvDType kv_dtype) {
  const auto checkpoint = model::Checkpoint::open(family.folder).value();
  const model::ModelConfig config = model::read_config(family.folder).value();
  const auto backend = cuda::make_backend({.products = tested_gemm(), .kv_dtype = kv_dtype});
  const double factor = kv_dtype == tensor::KvDType::kInt8 ? 1.5 : 4.0;
  TestPipeline pipeline(*checkpoint, config, *backend, {.stage_count = 2});
  const Agreement agreement = measure_agreement(pipeline, family, factor * 4.0 * family.tolerance.bf16_max);
  CAPTURE(family.name, enum_name(kv_dtype), agreement.logits.max(), agreement.logits.rms(), agreement.logits.kl());
  REQUIRE(agreement.logits.rms() <= factor * family.tolerance.bf16_rms);
  REQUIRE(agreement.logits.rms() > family.tolerance.f32_max);
  REQUIRE(agreement.logits.max() <= factor * 2.0 * family.tolerance.bf16_max);
  REQUIRE(agreement.logits.kl() <= factor * factor * 2.0 * family.tolerance.bf16_kl);
  REQUIRE(agreement.greedy_wrong == 0);
}

}  // namespace millrace::test
