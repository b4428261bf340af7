// The expansion of latents of a stored model: which formats stay as stored in memory, and that all have their values.

#include <catch2/catch.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "cpu/cpu_backend.h"
#include "model/kept_bytes.h"
#include "model/plain_model.h"
#include "model/stored_twins.h"
#include "model/tensor_list.h"
#include "model/test_pipeline.h"

using namespace millrace;
using namespace millrace::model;
using test::kept_bytes;
using test::StoredFormat;
using test::Twins;

namespace {

/// Returns a model whose heads have 64 rows for the key and 64 for the value.
ModelConfig latent_model() {
  ModelConfig config = test::plain_model({.architecture = "LlamaForCausalLM",
                                          .vocab_size = 64,
                                          .hidden_size = 128,
                                          .intermediate_size = 128,
                                          .layer_count = 2,
                                          .head_count = 4,
                                          .kv_head_count = 1,
                                          .head_dim = 64,
                                          .max_position = 128});
  config.ropes[0].rotary_dim = 32;
  config.ropes[0].interleaved = true;
  test::for_layers(config, [](LayerConfig& layer) {
    layer.attention.latent = {.query_rank = 64, .latent_dim = 256, .nope_dim = 64, .rope_dim = 32};
  });
  return config;
}

/// Returns the weights of the expansions of all layers.
double expansion_weights(const ModelConfig& config) {
  double weights = 0;
  for (const TensorSpec& spec : stage_tensors(config, {.layers = {0, config.layer_count()}})) {
    if (spec.name.find(config.names.latent_expansion) != std::string::npos)
      weights += static_cast<double>(spec.shape.elements());
  }
  return weights;
}

std::vector<float> logits_of(const std::filesystem::path& folder, const ModelConfig& config, tensor::DType dtype,
                             size_t rank_count, int32_t stage_count) {
  std::vector<std::unique_ptr<tensor::Backend>> ranks;
  for (size_t i = 0; i < rank_count; ++i) ranks.push_back(cpu::make_backend({.threads = 1, .compute_dtype = dtype}));
  return test::prompt_logits(folder, config, ranks, stage_count, 20);
}

}  // namespace

TEST_CASE("An expansion of latents in FP8 stays as stored") {
  const ModelConfig config = latent_model();
  // Blocks of 48 rows divide no head. Other weights take the same memory in all three, but for the panels' scales.
  const double decoded = kept_bytes(config, test::fp8_blocks("uneven", 48, 128));
  const double weights = expansion_weights(config);
  REQUIRE(weights == 2.0 * 4 * 128 * 256);
  for (const int32_t block_rows : {128, 64, 32}) {
    CAPTURE(block_rows);
    const double saved_bits = 8 * (decoded - kept_bytes(config, test::fp8_blocks("even", block_rows, 128))) / weights;
    CHECK(saved_bits > 7);
    CHECK(saved_bits < 8);
  }
}

TEST_CASE("FP8 latents give the bits of one rank and stage on any") {
  const ModelConfig plain = latent_model();
  const std::vector<StoredFormat> formats = {test::fp8_blocks("128 x 128", 128, 128),
                                             test::fp8_blocks("32 x 64", 32, 64), test::fp8_blocks("rows", 1, 256),
                                             test::fp8_blocks("uneven", 48, 128)};
  for (const StoredFormat& format : formats) {
    CAPTURE(format.name);
    ModelConfig stored = plain;
    stored.weight_format = format.format;
    const Twins twins(plain, format, 19);
    const auto exact = logits_of(twins.plain.path(), plain, tensor::DType::kF32, 1, 1);
    CHECK(logits_of(twins.stored.path(), stored, tensor::DType::kF32, 1, 1) == exact);
    const auto whole = logits_of(twins.stored.path(), stored, tensor::DType::kBF16, 1, 1);
    double largest = 0;
    for (const float value : exact) largest = std::max(largest, std::abs(static_cast<double>(value)));
    for (size_t i = 0; i < whole.size(); ++i) CHECK(whole[i] == Approx(exact[i]).margin(0.1 * largest));
    CHECK(logits_of(twins.stored.path(), stored, tensor::DType::kBF16, 1, 2) == whole);
    CHECK(logits_of(twins.stored.path(), stored, tensor::DType::kBF16, 2, 1) == whole);
    CHECK(logits_of(twins.stored.path(), stored, tensor::DType::kBF16, 4, 2) == whole);
  }
}
