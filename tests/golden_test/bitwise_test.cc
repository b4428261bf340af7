#include <algorithm>
#include <catch2/catch.hpp>
#include <variant>
#include <vector>

#include "cpu/cpu_backend.h"
#include "golden_test/feeding.h"
#include "golden_test/golden_file.h"
#include "model/families/read_config.h"

using namespace millrace;
using model::Quantization;
using test::GoldenFamily;
using test::Logits;
using test::Sequences;
using test::TestPipeline;

namespace {

Sequences sequences_of(const GoldenFamily& family) {
  Sequences sequences;
  for (const test::GoldenPrompt& prompt : family.prompts) sequences.push_back(prompt.sequence());
  return sequences;
}

const std::vector<Quantization> kQuantizations = {Quantization::kNone, Quantization::kW8, Quantization::kW8A8,
                                                  Quantization::kMxInt8, Quantization::kW8A8Int8};

/// Returns whether weights of 8 bits are tried with a family: one of each kind of head, and one with experts.
bool quantizes(const GoldenFamily& family) {
  return family.name == "qwen2" || family.name == "qwen3" || family.name == "qwen3moe-raw";
}

/// Returns the heads by which a model's recurrent layers are divided, at most 4; 4 without such layers. A short
/// convolution is divided by channels.
int32_t recurrent_heads(const model::ModelConfig& config) {
  for (const model::LayerConfig& layer : config.layers) {
    if (!layer.recurrent) continue;
    if (const auto* net = std::get_if<model::DeltaNetConfig>(&*layer.recurrent))
      return std::min(net->key_head_count, 4);
    if (const auto* mamba = std::get_if<model::MambaConfig>(&*layer.recurrent)) return std::min(mamba->group_count, 4);
  }
  return 4;
}

}  // namespace

TEST_CASE("logits have equal bits for all stages and chunks and pages") {
  const GoldenFamily family = test::read_golden_family(GENERATE(from_range(test::drawn_family_names())));
  const tensor::DType dtype = GENERATE(tensor::DType::kF32, tensor::DType::kBF16);
  const auto checkpoint = model::Checkpoint::open(family.folder).value();
  model::ModelConfig config = test::adapted_config(*checkpoint);
  if (quantizes(family)) config.quantization = GENERATE(from_range(kQuantizations));
  const auto backend = cpu::make_backend({.threads = 2, .compute_dtype = dtype});
  const Sequences sequences = sequences_of(family);
  TestPipeline whole(*checkpoint, config, *backend, {.stage_count = 1});
  const Logits wanted = run_alone(whole, sequences, SIZE_MAX / 2, 1);
  const std::string label = family.name + " " + std::string(tensor::to_string(dtype));
  for (const int32_t stages : {1, 2, 4}) {
    TestPipeline pipeline(
        *checkpoint, config, *backend,
        {.stage_count = stages, .page_size = stages == 2 ? 5 : 16, .page_count = stages == 2 ? 160 : 64});
    for (const size_t chunk : {SIZE_MAX / 2, size_t{64}, size_t{7}, size_t{1}}) {
      CAPTURE(label, stages, chunk);
      REQUIRE(test::same_bits(run_alone(pipeline, sequences, chunk, 2), wanted));
      REQUIRE(test::same_bits(run_batched(pipeline, sequences, chunk, 3), wanted));
    }
  }
}

TEST_CASE("logits have equal bits for all counts of ranks") {
  const GoldenFamily family = test::read_golden_family(GENERATE(from_range(test::drawn_family_names())));
  const tensor::DType dtype = GENERATE(tensor::DType::kF32, tensor::DType::kBF16);
  const auto checkpoint = model::Checkpoint::open(family.folder).value();
  model::ModelConfig config = test::adapted_config(*checkpoint);
  if (quantizes(family)) config.quantization = GENERATE(from_range(kQuantizations));
  std::vector<std::unique_ptr<tensor::Backend>> backends;
  for (int rank = 0; rank < 8; ++rank)
    backends.push_back(cpu::make_backend({.threads = rank % 2 + 1, .compute_dtype = dtype}));
  const Sequences sequences = sequences_of(family);
  TestPipeline alone(*checkpoint, config, *backends[0], {.stage_count = 1});
  const Logits wanted = run_alone(alone, sequences, SIZE_MAX / 2, 1);
  int32_t largest = 1;
  for (const int32_t ranks : {2, 4, 8}) {
    if (!model::check_ranks(config, ranks)) continue;
    largest = ranks;
    std::vector<tensor::Backend*> of_ranks;
    for (int32_t rank = 0; rank < ranks; ++rank) of_ranks.push_back(backends[static_cast<size_t>(rank)].get());
    for (const int32_t stages : {1, 2}) {
      TestPipeline pipeline(*checkpoint, config, of_ranks, {.stage_count = stages});
      CAPTURE(family.name, tensor::to_string(dtype), to_string(config.quantization), ranks, stages);
      for (const size_t chunk : {SIZE_MAX / 2, size_t{7}}) {
        CAPTURE(chunk);
        REQUIRE(test::same_bits(run_alone(pipeline, sequences, chunk, 2), wanted));
        REQUIRE(test::same_bits(run_batched(pipeline, sequences, chunk, 3), wanted));
      }
    }
  }
  // The norm over all heads is not divided.
  const model::AttentionConfig& attention = config.layer(0).attention;
  const bool is_divided = attention.qk_norm != model::QkNorm::kAllHeads;
  // All others have 4 heads; a group of 32 weights is as wide as two or as one of them.
  const int32_t heads = attention.head_dim % 32 == 0 || config.quantization == Quantization::kNone ? 4 : 2;
  REQUIRE(largest >= (is_divided ? std::min(heads, recurrent_heads(config)) : 1));
}

TEST_CASE("logits have the same bits whatever the count of threads") {
  const GoldenFamily family = test::read_golden_family(GENERATE(as<std::string>{}, "qwen3", "qwen3moe"));
  const tensor::DType dtype = GENERATE(tensor::DType::kF32, tensor::DType::kBF16);
  const auto checkpoint = model::Checkpoint::open(family.folder).value();
  const model::ModelConfig config = test::adapted_config(*checkpoint);
  const Sequences sequences = sequences_of(family);
  Logits first;
  for (const int threads : {1, 2, 3}) {
    const auto backend = cpu::make_backend({.threads = threads, .compute_dtype = dtype});
    TestPipeline pipeline(*checkpoint, config, *backend, {.stage_count = 1});
    Logits logits = run_batched(pipeline, sequences, 20, 4);
    if (threads == 1)
      first = std::move(logits);
    else
      REQUIRE(test::same_bits(logits, first));
  }
}

TEST_CASE("8-bit keys and values give equal bits however they are cut") {
  const GoldenFamily family =
      test::read_golden_family(GENERATE(as<std::string>{}, "qwen2", "qwen3", "gemma3", "gemma4", "gpt_oss", "qwen3moe",
                                        "deepseek-v2-lite", "deepseek-v32-sparse"));
  const tensor::DType dtype = GENERATE(tensor::DType::kF32, tensor::DType::kBF16);
  const tensor::KvDType kv_dtype = GENERATE(tensor::KvDType::kInt8, tensor::KvDType::kFp8E4M3);
  const auto checkpoint = model::Checkpoint::open(family.folder).value();
  const model::ModelConfig config = test::adapted_config(*checkpoint);
  std::vector<std::unique_ptr<tensor::Backend>> backends;
  for (const int threads : {1, 2})
    backends.push_back(cpu::make_backend({.threads = threads, .compute_dtype = dtype, .kv_dtype = kv_dtype}));
  const Sequences sequences = sequences_of(family);
  TestPipeline whole(*checkpoint, config, *backends[0], {.stage_count = 1});
  const Logits wanted = run_alone(whole, sequences, SIZE_MAX / 2, 1);
  for (const bool is_odd : {false, true}) {
    const std::vector<tensor::Backend*> ranks = {backends[0].get(), backends[1].get()};
    TestPipeline pipeline(*checkpoint, config, ranks,
                          {.stage_count = 2, .page_size = is_odd ? 5 : 16, .page_count = is_odd ? 160 : 64});
    for (const size_t chunk : {SIZE_MAX / 2, size_t{7}, size_t{1}}) {
      CAPTURE(family.name, tensor::to_string(dtype), enum_name(kv_dtype), is_odd, chunk);
      REQUIRE(test::same_bits(run_alone(pipeline, sequences, chunk, 2), wanted));
      REQUIRE(test::same_bits(run_batched(pipeline, sequences, chunk, 3), wanted));
    }
  }
}
