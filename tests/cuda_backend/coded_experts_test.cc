// Models whose experts are stored in several formats, on the CUDA backend, which has one for all experts of a layer.
// Their logits have the bits of the same model in f32, on any number of ranks and stages.

#include <catch2/catch.hpp>
#include <cmath>

#include "cuda/cuda_backend.h"
#include "cuda_backend/tested_gemm.h"
#include "model/mixed_experts.h"
#include "model/test_pipeline.h"
#include "model/weight_packer.h"

using namespace millrace;
using namespace millrace::model;
using test::MixedExperts;
using test::StoredAs;

namespace {

/// Two ways in which experts are stored: most of them, and some. Without a quantization all have `bits`.
struct MixedFormats {
  StoredAs most;
  StoredAs some;
  PackedBits bits;
};

/// Returns the mixtures. Types of scales do not count, while other differences do.
std::vector<MixedFormats> mixtures() {
  using enum StoredAs;
  return {{kInt4, kInt4F16, PackedBits::k4},         {kInt4F32, kInt4Narrow, PackedBits::k4},
          {kInt4, kInt4Zeros, PackedBits::kCompute}, {kNvfp4, kF32, PackedBits::kCompute},
          {kFp8, kF32, PackedBits::kCompute},        {kFp8, kInt4, PackedBits::kCompute}};
}

std::unique_ptr<tensor::Backend> make_backend(size_t ranks) {
  const auto exchange = ranks > 1 ? cuda::RankExchange::kCopies : cuda::RankExchange::kNccl;
  return cuda::make_backend({.products = test::tested_gemm(), .rank_exchange = exchange});
}

std::vector<float> logits_of(const test::TemporaryFolder& folder, const ModelConfig& config, size_t ranks,
                             int32_t stages) {
  std::vector<std::unique_ptr<tensor::Backend>> backends;
  for (size_t i = 0; i < ranks; ++i) backends.push_back(make_backend(ranks));
  return test::prompt_logits(folder.path(), config, backends, stages, 5);
}

/// Returns how a rank of two packs the experts of the last layer, [experts, parts].
ExpertPacking packing_of(const MixedExperts& model, const ModelConfig& config, int32_t rank) {
  const auto checkpoint = Checkpoint::open(model.stored.path()).value();
  const auto backend = make_backend(1);
  const LoadOptions options{.position = {.rank = rank, .size = 2}};
  WeightPacker packer(*checkpoint, *backend, config, options);
  REQUIRE(packer.resolve(stage_tensors(config, {.layers = {0, MixedExperts::kLayers}})).has_value());
  constexpr int32_t kOwn = MixedExperts::kExperts / 2;
  return packer.expert_packing(1, model.names(1, rank * kOwn, (rank + 1) * kOwn));
}

}  // namespace

TEST_CASE("experts in several formats on a GPU equal their values") {
  for (const auto& [most, some, bits] : mixtures()) {
    CAPTURE(static_cast<int>(most), static_cast<int>(some));
    // The last rank alone has the experts that differ.
    const MixedExperts model([&](int32_t expert, ExpertPart) { return expert >= 6 ? some : most; });
    for (const int32_t rank : {0, 1}) REQUIRE(packing_of(model, model.stored_config(), rank).formats.bits() == bits);
    const std::vector<float> wanted = logits_of(model.plain, model.plain_config(), 1, 1);
    REQUIRE(std::ranges::all_of(wanted, [](float logit) { return std::isfinite(logit); }));
    REQUIRE(logits_of(model.stored, model.stored_config(), 2, 1) == wanted);
  }
}

TEST_CASE("w4 of experts in several formats has equal bits on a GPU") {
  for (const auto& [most, some, unused] : mixtures()) {
    if (most == StoredAs::kFp8 || most == StoredAs::kInt4F32) continue;  // like others here
    CAPTURE(static_cast<int>(most), static_cast<int>(some));
    const MixedExperts model([&](int32_t expert, ExpertPart) { return expert >= 6 ? some : most; });
    const ModelConfig config = model.stored_config(Quantization::kW4);
    const std::vector<float> wanted = logits_of(model.stored, config, 1, 1);
    REQUIRE(std::ranges::all_of(wanted, [](float logit) { return std::isfinite(logit); }));
    REQUIRE(logits_of(model.stored, config, 2, 2) == wanted);
    REQUIRE(logits_of(model.stored, config, 4, 1) == wanted);
    // All experts are quantized where not all can keep their codes.
    if (some == StoredAs::kInt4Zeros)
      REQUIRE(logits_of(model.plain, model.plain_config(Quantization::kW4), 1, 1) == wanted);
  }
}

TEST_CASE("experts take 16 bits for scales in f32 that bf16 holds") {
  const auto storage = [](int32_t expert, ExpertPart part) {
    const bool needs_f32 = expert == 0 && part != ExpertPart::kDown;
    return needs_f32 ? StoredAs::kInt4F32 : StoredAs::kInt4Narrow;
  };
  const MixedExperts model(storage);
  const ExpertPacking first = packing_of(model, model.stored_config(), 0);
  REQUIRE(first.input_scales == tensor::DType::kF32);
  REQUIRE(first.down_scales == tensor::DType::kBF16);
  const ExpertPacking second = packing_of(model, model.stored_config(), 1);
  REQUIRE(second.input_scales == tensor::DType::kBF16);
  REQUIRE(second.down_scales == tensor::DType::kBF16);
}
