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
  const double weights = expansion_weights(config);
  REQUIRE(weights == 2.0 * 4 * 128 * 256);
  for (const int32_t block_rows : {128, 64, 32, 48}) {
    CAPTURE(block_rows);
    const StoredFormat format = test::fp8_blocks("blocks", block_rows, 128);
    const double decoded = kept_bytes(config, test::ignoring(format, std::string(config.names.latent_expansion)));
    const double saved_bits = 8 * (decoded - kept_bytes(config, format)) / weights;
    const bool is_half = block_rows == 48;  // which divide no head
    CHECK(saved_bits > (is_half ? 3.5 : 7));
    CHECK(saved_bits < (is_half ? 4 : 8));
  }
}

namespace {

/// Checks that a model has the values of its twin, and the same bits on every division.
void check_divisions(const Twins& twins, const ModelConfig& stored) {
  const auto exact = logits_of(twins.plain.path(), latent_model(), tensor::DType::kF32, 1, 1);
  const auto whole = logits_of(twins.stored.path(), stored, tensor::DType::kBF16, 1, 1);
  double largest = 0;
  for (const float value : exact) largest = std::max(largest, std::abs(static_cast<double>(value)));
  for (size_t i = 0; i < whole.size(); ++i) CHECK(whole[i] == Approx(exact[i]).margin(0.1 * largest));
  CHECK(logits_of(twins.stored.path(), stored, tensor::DType::kBF16, 1, 2) == whole);
  CHECK(logits_of(twins.stored.path(), stored, tensor::DType::kBF16, 2, 1) == whole);
  CHECK(logits_of(twins.stored.path(), stored, tensor::DType::kBF16, 4, 2) == whole);
}

/// Checks a model in a format, which also has the bits of its twin in f32.
void check_divisions(const StoredFormat& format) {
  CAPTURE(format.name);
  const ModelConfig plain = latent_model();
  ModelConfig stored = plain;
  stored.weight_format = format.format;
  const Twins twins(plain, format, 19);
  CHECK(logits_of(twins.stored.path(), stored, tensor::DType::kF32, 1, 1) ==
        logits_of(twins.plain.path(), plain, tensor::DType::kF32, 1, 1));
  check_divisions(twins, stored);
}

const StoredFormat& format_named(const std::vector<StoredFormat>& all, std::string_view name) {
  return *std::ranges::find(all, name, &StoredFormat::name);
}

}  // namespace

TEST_CASE("FP8 latents give the bits of one rank and stage on any") {
  for (const StoredFormat& format : {test::fp8_blocks("128 x 128", 128, 128), test::fp8_blocks("32 x 64", 32, 64),
                                     test::fp8_blocks("rows", 1, 256), test::fp8_blocks("uneven", 48, 128)})
    check_divisions(format);
}

TEST_CASE("Latents in codes give the bits of one rank and stage on any") {
  for (const int64_t group : {32, 64}) {
    CAPTURE(group);
    for (const StoredFormat& format : test::stored_formats(group)) {
      if (format.format.method != weights::QuantMethod::kFp8) check_divisions(format);
    }
  }
  // Kimi K2 has experts in codes and attention in bf16.
  check_divisions(test::ignoring(format_named(test::stored_formats(32), "W4A16"),
                                 std::string(latent_model().names.latent_expansion)));
}

TEST_CASE("Latents in w8a8_int8 give equal bits on any rank and stage") {
  const ModelConfig plain = latent_model();
  const auto all = test::stored_formats(32);
  const Twins twins(plain, format_named(all, "INT8 per row"), 19);
  ModelConfig stored = plain;
  stored.quantization = Quantization::kW8A8Int8;
  stored.keeps_unquantized_projections = true;
  check_divisions(twins, stored);
}

TEST_CASE("An expansion of latents in codes stays as stored") {
  const ModelConfig config = latent_model();
  const double weights = expansion_weights(config);
  struct Kept {
    std::string_view name;
    int64_t group;
    double bits;  // per weight of the expansion at most
  };
  for (const auto& [name, group, bits] :
       {Kept{"W4A16", 64, 4.7}, Kept{"W4A16", 32, 7.0}, Kept{"AWQ", 64, 5.4}, Kept{"GPTQ in order", 64, 5.4},
        Kept{"AWQ", 32, 8.5}, Kept{"MXFP4", 32, 7.0}, Kept{"W8A16 with zero points", 64, 12.6}, Kept{"NVFP4", 64, 11.0},
        Kept{"INT8 in blocks", 64, 8.7}, Kept{"INT8 per row", 64, 8.7}}) {
    CAPTURE(name, group);
    const auto all = test::stored_formats(group);
    const StoredFormat& format = format_named(all, name);
    const double plain = kept_bytes(config, test::ignoring(format, std::string(config.names.latent_expansion)));
    const double found = 16 - 8 * (plain - kept_bytes(config, format)) / weights;
    CHECK(found <= bits);
    CHECK(found > 4);
  }
}
