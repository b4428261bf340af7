#include <array>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "base/text_file.h"
#include "model/adapt_config.h"
#include "model/checkpoint_files.h"
#include "model/config.h"
#include "model/tensor_list.h"
#include "support/captured_log.h"
#include "support/mentions.h"
#include "support/paths.h"

using namespace millrace;
using namespace millrace::model;

namespace {

/// The endings of a weight's name: as floating point, and in codes of compressed-tensors and of GPTQ or AWQ.
constexpr std::array<std::string_view, 3> kEndings = {".weight", ".weight_packed", ".qweight"};
constexpr std::string_view kWeight = ".weight";

ModelConfig golden_config(const std::string& name) {
  return read_config(test::source_dir() / "tests/golden" / name).value();
}

/// Returns the name of a weight with another ending.
std::string stored_as(const std::string& name, std::string_view ending) {
  return name.substr(0, name.size() - kWeight.size()).append(ending);
}

/// Adapts a config to a checkpoint that has tensors of these names.
ModelConfig adapted(ModelConfig config, const std::vector<std::string>& names) {
  std::vector<test::TensorToWrite> tensors{{"model.embed_tokens.weight", {1}, {1}}};
  for (const std::string& name : names) tensors.push_back({name, {1}, {2}});
  const test::TemporaryFolder folder;
  folder.write("model.safetensors", test::safetensors_text(tensors));
  const auto checkpoint = Checkpoint::open(folder.path()).value();
  REQUIRE(adapt_to_checkpoint(*checkpoint, config).has_value());
  return config;
}

int32_t first_sparse_layer(const ModelConfig& config) {
  int32_t layer = 0;
  while (!config.is_sparse(layer)) ++layer;
  return layer;
}

TEST_CASE("Experts are read one by one where they are stored so") {
  for (const char* name : {"llama4", "gemma4-moe", "granitemoe", "qwen3moe", "gpt_oss", "gpt_oss-mxfp4", "deepseek-v3",
                           "qwen3next", "nemotronh-moe"}) {
    CAPTURE(name);
    const ModelConfig config = golden_config(name);
    const int32_t layer = first_sparse_layer(config);
    const std::string first = expert_tensor_name(config, layer, 0, ExpertPart::kUp);
    // Biases belong to experts that are stored together.
    const bool has_biases = config.layer(layer).feed_forward.moe->biases;
    const ExpertStorage stacked = config.names.expert_storage;
    for (const std::string_view ending : kEndings) {
      CAPTURE(ending);
      const ExpertStorage found = adapted(config, {stored_as(first, ending)}).names.expert_storage;
      CHECK(found == (has_biases ? stacked : ExpertStorage::kSeparate));
    }
    const std::string all = config.names.plain(layer, config.names.fused_experts_gate_up);
    CHECK(adapted(config, {all}).names.expert_storage ==
          (stacked == ExpertStorage::kSeparate ? ExpertStorage::kRows : stacked));
  }
}

TEST_CASE("Fused weights are read apart where they are stored so") {
  for (const std::string_view ending : kEndings) {
    CAPTURE(ending);
    const ModelConfig next = golden_config("qwen3next");
    const int32_t layer = 0;
    const std::string apart = stored_as(next.names.weight(layer, next.names.delta_qkv), ending);
    const std::string fused = stored_as(next.names.weight(layer, next.names.fused_delta_qkvz), ending);
    CHECK(adapted(next, {apart}).names.fused_delta_qkvz.empty());
    CHECK_FALSE(adapted(next, {apart, fused}).names.fused_delta_qkvz.empty());
    for (const char* name : {"phi3", "glm4"}) {
      CAPTURE(name);
      const ModelConfig config = golden_config(name);
      CHECK(adapted(config, {stored_as(config.names.weight(layer, config.names.up), ending)})
                .names.fused_gate_up.empty());
    }
  }
}

TEST_CASE("A head in codes is none that is tied") {
  ModelConfig config = golden_config("llama-tied");
  REQUIRE(config.tied_embeddings);
  CHECK(adapted(config, {}).tied_embeddings);
  for (const char* name : {"lm_head.qweight", "lm_head.weight_packed"}) {
    const test::CapturedLog log;
    CHECK_FALSE(adapted(config, {name}).tied_embeddings);
    CHECK(log.count("lm_head.weight is stored in codes") == 1);
  }
}

/// Returns whether the head stays tied in a checkpoint with these tensors.
bool is_tied(const std::vector<test::RawTensorToWrite>& tensors) {
  ModelConfig config = golden_config("llama-tied");
  const test::TemporaryFolder folder;
  folder.write("model.safetensors", test::raw_safetensors_text(tensors));
  const test::CapturedLog log;
  REQUIRE(untie_separate_head(*Checkpoint::open(folder.path()).value(), config).has_value());
  return config.tied_embeddings;
}

TEST_CASE("A head is tied where all of it equals the embedding") {
  const auto bytes = [](int count, int value) {
    return std::vector<std::byte>(static_cast<size_t>(count), static_cast<std::byte>(value));
  };
  const test::RawTensorToWrite head{"lm_head.weight", "BF16", {1}, bytes(2, 1)};
  const test::RawTensorToWrite fp8{"lm_head.weight", "F8_E4M3", {1}, bytes(1, 1)};
  const test::RawTensorToWrite table{"model.embed_tokens.weight", "F8_E4M3", {1}, bytes(1, 1)};
  const test::RawTensorToWrite scale{"model.embed_tokens.weight_scale", "BF16", {1}, bytes(2, 3)};
  CHECK_FALSE(is_tied({head, {"model.embed_tokens.qweight", "I32", {1}, bytes(4, 1)}}));
  CHECK(is_tied({fp8, table, scale, {"lm_head.weight_scale", "BF16", {1}, bytes(2, 3)}}));
  CHECK_FALSE(is_tied({fp8, table, scale, {"lm_head.weight_scale", "BF16", {1}, bytes(2, 4)}}));
  CHECK_FALSE(is_tied({fp8, table, scale}));
  // Scales of inputs change no weight, and scales alone are none.
  CHECK(is_tied({fp8, table, {"lm_head.input_scale", "BF16", {1}, bytes(2, 3)}}));
  CHECK(is_tied({table, scale, {"lm_head.weight_scale", "BF16", {1}, bytes(2, 4)}}));
}

/// Reads the config of a folder as a checkpoint with one tensor of this name has it.
Result<ModelConfig> config_with(const std::filesystem::path& folder, const std::string& tensor) {
  const test::TemporaryFolder weights;
  weights.write("model.safetensors", test::safetensors_text({{tensor, {1}, {1}}}));
  auto config = read_config(folder);
  REQUIRE(config.has_value());
  const test::CapturedLog log;
  RETURN_IF_ERROR(settle_weight_format(*Checkpoint::open(weights.path()).value(), *config));
  CHECK_FALSE(config->format_file);
  return config;
}

TEST_CASE("Files of quantizers describe weights beside config.json") {
  struct File {
    const char* name;
    const char* text;
    weights::WeightFormat format;
  };
  using weights::QuantMethod;
  const std::string config = read_text_file(test::source_dir() / "tests/golden/llama-untied/config.json").value();
  for (const auto& [name, text, format] : {
           File{"hf_quant_config.json",
                R"({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}})",
                {.method = QuantMethod::kModelOpt}},
           File{"quantize_config.json",
                R"({"bits": 8, "group_size": -1, "sym": true, "desc_act": false})",
                {.method = QuantMethod::kGptq,
                 .bits = 8,
                 .widths = 1u << 8,
                 .group_sizes = {0},
                 .is_symmetric = true,
                 .has_groups_in_order = true}},
           File{"quant_config.json",
                R"({"zero_point": true, "q_group_size": 64, "w_bit": 4, "version": "GEMV"})",
                {.method = QuantMethod::kAwq, .bits = 4, .group_size = 64, .awq_version = weights::AwqVersion::kGemv}},
       }) {
    CAPTURE(name);
    const test::TemporaryFolder folder;
    folder.write("config.json", config);
    CHECK(read_config(folder.path()).value().weight_format == weights::WeightFormat());
    folder.write(name, text);
    for (const char* ending : {".qweight", ".weight_packed", ".weight_scale", ".scales"})
      CHECK(config_with(folder.path(), std::string("a") + ending).value().weight_format == format);
    // It may be left over from weights that are gone.
    CHECK(config_with(folder.path(), "a.weight").value().weight_format == weights::WeightFormat());
    folder.write(name, R"({"quant_method": "bitsandbytes"})");
    CHECK_THAT(config_with(folder.path(), "a.qweight").error().message, test::Mentions(name, "bitsandbytes"));
    CHECK(config_with(folder.path(), "a.weight").value().weight_format == weights::WeightFormat());
    folder.write(name, "{");
    CHECK_THAT(config_with(folder.path(), "a.scales").error().message, test::Mentions(name));
    CHECK(config_with(folder.path(), "a.weight").has_value());
    // What exporters to ONNX write under such names is of no quantizer.
    folder.write(name, R"({"per_channel": true, "reduce_range": true, "per_model_config": {}})");
    CHECK(config_with(folder.path(), "a.qweight").value().weight_format == weights::WeightFormat());
    // What config.json says goes first.
    const std::string head = R"({"quantization_config": {"quant_method": "mxfp4"},)";
    folder.write("config.json", head + config.substr(config.find('{') + 1));
    CHECK(read_config(folder.path()).value().weight_format.method == QuantMethod::kMxfp4);
  }
}

TEST_CASE("Files of quantizers describe weights that are not there yet") {
  const test::TemporaryFolder folder;
  folder.write("config.json", read_text_file(test::source_dir() / "tests/golden/llama-untied/config.json").value());
  folder.write("quant_config.json", R"({"w_bit": 4, "q_group_size": 64, "version": "GEMM"})");
  const auto settled = [&folder]() -> Result<weights::QuantMethod> {
    auto config = read_config(folder.path());
    REQUIRE(config.has_value());
    RETURN_IF_ERROR(settle_weight_format(folder.path(), *config));
    CHECK_FALSE(config->format_file);
    return config->weight_format.method;
  };
  {
    const test::CapturedLog log;
    CHECK(settled().value() == weights::QuantMethod::kAwq);
    CHECK(log.count("quant_config.json: is taken to describe the weights") == 1);
  }
  const test::CapturedLog log;
  folder.write("model.safetensors", test::safetensors_text({{"a.weight", {1}, {1}}}));
  CHECK(settled().value() == weights::QuantMethod::kNone);
  folder.write("model.safetensors", test::safetensors_text({{"a.qweight", {1}, {1}}}));
  CHECK(settled().value() == weights::QuantMethod::kAwq);
  folder.write("model.safetensors", "short");
  CHECK_THAT(settled().error().message, test::Mentions("model.safetensors"));
  std::filesystem::remove(folder.path() / "model.safetensors");
  folder.write("quant_config.json", R"({"quant_method": "bitsandbytes"})");
  CHECK_THAT(settled().error().message, test::Mentions("quant_config.json", "bitsandbytes"));
}

}  // namespace
