// Models that are stored in FP8, on the CUDA backend. They keep it in memory, and their logits have the bits of the
// same model in f32.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "cuda/cuda_backend.h"
#include "cuda_backend/tested_gemm.h"
#include "model/plain_model.h"
#include "model/stored_twins.h"
#include "model/tensor_list.h"
#include "model/test_pipeline.h"
#include "model/weight_packer.h"

using namespace millrace;
using namespace millrace::model;
using test::ModelKind;
using test::StoredFormat;
using test::Twins;

namespace {

/// Returns a model whose ranks' parts of experts begin within blocks.
ModelConfig test_config(ModelKind kind) {
  ModelConfig config = test::small_model(kind, 2, 64);
  test::for_experts(config, [](MoeConfig& moe) { moe.intermediate_size = 96; });
  return config;
}

std::vector<float> logits_of(const test::TemporaryFolder& folder, const ModelConfig& config, size_t rank_count) {
  std::vector<std::unique_ptr<tensor::Backend>> ranks;
  for (size_t i = 0; i < rank_count; ++i) {
    const auto exchange = rank_count > 1 ? cuda::RankExchange::kCopies : cuda::RankExchange::kNccl;
    ranks.push_back(cuda::make_backend({.products = test::tested_gemm(), .rank_exchange = exchange}));
  }
  return test::prompt_logits(folder.path(), config, ranks, 2, 12);
}

}  // namespace

TEST_CASE("models stored in FP8 give the bits of their values on a GPU") {
  const ModelKind kind = GENERATE(ModelKind::kDense, ModelKind::kSparse);
  const auto& [block_rows, block_cols] = GENERATE(table<int32_t, int32_t>({{128, 128}, {32, 32}}));
  const ModelConfig config = test_config(kind);
  const StoredFormat format = test::fp8_blocks("FP8", block_rows, block_cols);
  const Twins twins(config, format, 5);
  ModelConfig stored_config = config;
  stored_config.weight_format = format.format;
  CAPTURE(static_cast<int>(kind), block_rows, block_cols);
  const std::vector<float> wanted = logits_of(twins.plain, config, 1);
  REQUIRE(std::ranges::all_of(wanted, [](float logit) { return std::isfinite(logit); }));
  REQUIRE(logits_of(twins.stored, stored_config, 1) == wanted);
  REQUIRE(logits_of(twins.stored, stored_config, 2) == wanted);
}

TEST_CASE("models stored in FP8 keep it in the memory of a GPU") {
  ModelConfig config = test_config(ModelKind::kSparse);
  const StoredFormat format = test::fp8_blocks("FP8", 128, 128);
  const Twins twins(config, format, 5);
  config.weight_format = format.format;
  const auto checkpoint = Checkpoint::open(twins.stored.path()).value();
  const auto backend = cuda::make_backend({.products = test::tested_gemm()});
  const LoadOptions options;
  WeightPacker packer(*checkpoint, *backend, config, options);
  REQUIRE(packer.resolve(stage_tensors(config, {.layers = {0, config.layer_count()}})).has_value());
  for (const std::string& name : twins.quantized) {
    CAPTURE(name);
    REQUIRE(packer.packed_bits({&name, 1}) == PackedBits::kFp8);
  }
}
