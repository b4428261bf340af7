// Models that are stored in FP8, on the CUDA backend: they keep it in memory, and their logits have the bits of the
// same model in f32.

#include <catch2/catch.hpp>
#include <random>

#include "cuda/cuda_backend.h"
#include "cuda_backend/tested_gemm.h"
#include "model/checkpoint_files.h"
#include "model/plain_model.h"
#include "model/random_model.h"
#include "model/tensor_list.h"
#include "model/test_pipeline.h"
#include "model/weight_packer.h"
#include "weights/stored_weight.h"

using namespace millrace;
using namespace millrace::model;
using test::RawTensorToWrite;

namespace {

ModelConfig test_config(bool sparse) {
  ModelConfig config = test::plain_model({.architecture = sparse ? "Qwen3MoeForCausalLM" : "LlamaForCausalLM",
                                          .vocab_size = 64,
                                          .hidden_size = 128,
                                          .intermediate_size = 512,
                                          .layer_count = 2,
                                          .head_count = 8,
                                          .kv_head_count = 4,
                                          .head_dim = 32,
                                          .max_position = 64});
  if (sparse) {
    test::set_experts(config, {.expert_count = 8, .experts_per_token = 2, .intermediate_size = 96}, {false, true});
  }
  return config;
}

/// A model in FP8 with a scale per block, and the same values in f32.
struct Twins {
  test::TemporaryFolder stored;
  test::TemporaryFolder plain;
  ModelConfig stored_config;
  std::vector<std::string> projections;

  Twins(const ModelConfig& config, int32_t block_rows, int32_t block_cols) : stored_config(config) {
    stored_config.weight_format = {
        .method = weights::QuantMethod::kFp8, .block_rows = block_rows, .block_cols = block_cols};
    std::minstd_rand engine(5);
    std::vector<RawTensorToWrite> in_format;
    std::vector<RawTensorToWrite> in_f32;
    const auto specs = stage_tensors(config, {.layers = {0, config.layer_count()}});
    for (const test::TensorToWrite& tensor : test::RandomModel(config, 7).tensors()) {
      in_f32.push_back({tensor.name, "F32", tensor.shape, test::bytes_of(tensor.values)});
      const auto spec = std::ranges::find(specs, tensor.name, &TensorSpec::name);
      if (!spec->projection || tensor.name == kHeadName) {
        in_format.push_back(in_f32.back());
        continue;
      }
      projections.push_back(tensor.name);
      add_fp8(engine, tensor, block_rows, block_cols, in_format);
    }
    stored.write("model.safetensors", test::raw_safetensors_text(in_format));
    const auto checkpoint = Checkpoint::open(stored.path()).value();
    for (RawTensorToWrite& raw : in_f32) {
      if (std::ranges::find(projections, raw.name) == projections.end()) continue;
      const auto weight =
          checkpoint->find_weight(raw.name, {raw.shape[0], raw.shape[1]}, stored_config.weight_format).value().value();
      std::vector<float> values(static_cast<size_t>(raw.shape[0] * raw.shape[1]));
      weights::decode_rows(weight, 0, raw.shape[0], values.data());
      raw.bytes = test::bytes_of(values);
    }
    plain.write("model.safetensors", test::raw_safetensors_text(in_f32));
  }

  /// Adds random codes of small numbers, and scales that are no power of two.
  static void add_fp8(std::minstd_rand& engine, const test::TensorToWrite& tensor, int32_t block_rows,
                      int32_t block_cols, std::vector<RawTensorToWrite>& file) {
    const int64_t rows = (tensor.shape[0] + block_rows - 1) / block_rows;
    const int64_t cols = (tensor.shape[1] + block_cols - 1) / block_cols;
    std::vector<uint8_t> codes(tensor.values.size());
    for (uint8_t& code : codes) code = static_cast<uint8_t>((engine() >> 3) % 0x48 | (engine() >> 5) % 2 << 7);
    std::vector<float> scales(static_cast<size_t>(rows * cols));
    for (float& scale : scales) scale = 0.02f + 1e-6f * static_cast<float>(engine() % 10007);
    file.push_back({tensor.name, "F8_E4M3", tensor.shape, test::bytes_of(codes)});
    file.push_back({tensor.name + "_scale_inv", "F32", {rows, cols}, test::bytes_of(scales)});
  }
};

std::vector<float> logits_of(const test::TemporaryFolder& folder, const ModelConfig& config, size_t rank_count) {
  const auto checkpoint = Checkpoint::open(folder.path()).value();
  std::vector<std::unique_ptr<tensor::Backend>> backends;
  std::vector<tensor::Backend*> ranks;
  for (size_t i = 0; i < rank_count; ++i) {
    const auto exchange = rank_count > 1 ? cuda::RankExchange::kCopies : cuda::RankExchange::kNccl;
    backends.push_back(cuda::make_backend({.products = test::tested_gemm(), .rank_exchange = exchange}));
    ranks.push_back(backends.back().get());
  }
  test::TestPipeline pipeline(*checkpoint, config, ranks, {.stage_count = 2});
  pipeline.start({12}, 1);
  test::Piece piece;
  for (TokenId token = 0; token < 12; ++token) piece.tokens.push_back(token * 3 % config.vocab_size);
  return pipeline.run({piece});
}

}  // namespace

TEST_CASE("models stored in FP8 give the bits of their values on a GPU") {
  const bool sparse = GENERATE(false, true);
  const auto& [block_rows, block_cols] = GENERATE(table<int32_t, int32_t>({{128, 128}, {32, 32}}));
  const ModelConfig config = test_config(sparse);
  const Twins twins(config, block_rows, block_cols);
  CAPTURE(sparse, block_rows, block_cols);
  const std::vector<float> wanted = logits_of(twins.plain, config, 1);
  REQUIRE(std::ranges::all_of(wanted, [](float logit) { return std::isfinite(logit); }));
  REQUIRE(logits_of(twins.stored, twins.stored_config, 1) == wanted);
  REQUIRE(logits_of(twins.stored, twins.stored_config, 2) == wanted);
}

TEST_CASE("models stored in FP8 keep it in the memory of a GPU") {
  const ModelConfig config = test_config(true);
  const Twins twins(config, 128, 128);
  const auto checkpoint = Checkpoint::open(twins.stored.path()).value();
  const auto backend = cuda::make_backend({.products = test::tested_gemm()});
  const LoadOptions options;
  WeightPacker packer(*checkpoint, *backend, twins.stored_config, options);
  REQUIRE(packer.resolve(stage_tensors(config, {.layers = {0, config.layer_count()}})).has_value());
  for (const std::string& name : twins.projections) {
    CAPTURE(name);
    REQUIRE(packer.packed_bits({&name, 1}) == PackedBits::kFp8);
  }
}
