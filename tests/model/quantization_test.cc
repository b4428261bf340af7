#include <catch2/catch.hpp>
#include <map>
#include <fstream>

#include "cpu/cpu_backend.h"
#include "model/checkpoint_files.h"
#include "model/families/read_config.h"
#include "model/fingerprint.h"
#include "model/quantize/quantize_checkpoint.h"
#include "model/tensor_list.h"
#include "model/test_pipeline.h"
#include "support/paths.h"

using namespace millrace;
using model::Checkpoint;
using model::ModelConfig;
using model::Quantization;
using test::TemporaryFolder;
using test::TestPipeline;

namespace {

std::filesystem::path family_folder(const std::string& name) {
  return test::source_dir() / "tests/golden" / name;
}

ModelConfig w8_config(const std::filesystem::path& folder) {
  ModelConfig config = model::read_config(folder).value();
  config.quantization = Quantization::kW8;
  return config;
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void change_config(const TemporaryFolder& folder, const std::string& from, const std::string& to) {
  std::string config = read_text(folder.path() / "config.json");
  REQUIRE(config.find(from) != std::string::npos);
  config.replace(config.find(from), from.size(), to);
  folder.write("config.json", config);
}

std::vector<float> logits_of(const std::filesystem::path& folder, const ModelConfig& config, tensor::Backend& backend,
                             int32_t stage_count) {
  const auto checkpoint = Checkpoint::open(folder).value();
  TestPipeline pipeline(*checkpoint, config, backend, {.stage_count = stage_count});
  std::vector<TokenId> tokens;
  for (int32_t i = 0; i < 40; ++i) tokens.push_back(i * 97 % config.vocab_size);
  pipeline.start({40}, 1);
  return pipeline.run({{.tokens = tokens}});
}

model::StageFingerprint fingerprint_of(const Checkpoint& checkpoint, const ModelConfig& config) {
  const auto backend = cpu::make_backend({.threads = 1});
  const model::StageSpan span{{1, 3}, false, false};
  return *model::StageModel::load(checkpoint, config, span, *backend, {.max_batch_tokens = 1},
                                  {.with_fingerprint = true})
              .value()
              ->fingerprint();
}

std::string refusal(const std::filesystem::path& folder) {
  const auto config = model::read_config(folder);
  if (config.has_error()) return config.error().message;
  const auto checkpoint = Checkpoint::open(folder).value();
  const auto backend = cpu::make_backend({.threads = 1});
  const auto loaded = model::StageModel::load(*checkpoint, *config, {{0, config->layer_count()}, true, true}, *backend,
                                              {.max_batch_tokens = 8, .max_logit_rows = 8});
  REQUIRE(loaded.has_error());
  return loaded.error().message;
}

}  // namespace

TEST_CASE("a written 8-bit model equals one quantized at load") {
  // The last two have fused tensors, and rows that are reordered at load.
  for (const auto& [family, tensors_of_layer] : std::map<std::string, size_t>{{"llama-tied", 7},
                                                                              {"llama-untied", 7},
                                                                              {"qwen2", 7},
                                                                              {"qwen3", 7},
                                                                              {"llama-f16", 7},
                                                                              {"llama-sharded", 7},
                                                                              {"phi3", 4},
                                                                              {"glm4", 6}}) {
    CAPTURE(family);
    const TemporaryFolder written;
    const std::filesystem::path source = family_folder(family);
    const auto report = model::quantize_checkpoint(source, written.path()).value();
    REQUIRE(report.bytes_after < report.bytes_before);
    const ModelConfig config = w8_config(source);
    REQUIRE(model::read_config(written.path()).value() == config);
    const auto layers = static_cast<size_t>(config.layer_count());
    REQUIRE(report.tensors == layers * tensors_of_layer + (config.tied_embeddings ? 0 : 1));
    for (const tensor::DType dtype : {tensor::DType::kF32, tensor::DType::kBF16}) {
      const auto backend = cpu::make_backend({.threads = 2, .compute_dtype = dtype});
      const auto wanted = logits_of(source, config, *backend, 1);
      REQUIRE(logits_of(written.path(), config, *backend, 1) == wanted);
      REQUIRE(logits_of(written.path(), config, *backend, 3) == wanted);
      REQUIRE(logits_of(source, model::read_config(source).value(), *backend, 1) != wanted);
    }
  }
}

TEST_CASE("power-of-two scales are recognized and unknown ones refused") {
  const TemporaryFolder written;
  const std::filesystem::path source = family_folder("llama-tied");  // its head is rounded when it is loaded
  REQUIRE(model::quantize_checkpoint(source, written.path(), Quantization::kMxInt8).has_value());
  ModelConfig config = model::read_config(source).value();
  config.quantization = Quantization::kMxInt8;
  REQUIRE(model::read_config(written.path()).value() == config);
  for (const tensor::DType dtype : {tensor::DType::kF32, tensor::DType::kBF16}) {
    const auto backend = cpu::make_backend({.threads = 2, .compute_dtype = dtype});
    const auto wanted = logits_of(source, config, *backend, 1);
    REQUIRE(logits_of(written.path(), config, *backend, 2) == wanted);
    REQUIRE(logits_of(source, w8_config(source), *backend, 1) != wanted);
  }
  change_config(written, "powers_of_two", "powers_of_ten");
  REQUIRE_THAT(refusal(written.path()),
               Catch::Contains("scales is 'powers_of_ten', wanted 'largest' or 'powers_of_two'"));
}

TEST_CASE("stored 8-bit weights keep their scales for any setting") {
  using model::resolve_quantization;
  for (const std::string_view name : {"none", "w8", "w8a8", "w8a8_int8", "mxint8", "w4"}) {
    const Quantization quantization = model::parse_quantization(name).value();
    REQUIRE(model::to_string(quantization) == name);
    REQUIRE(resolve_quantization(Quantization::kNone, quantization).value() == quantization);
    REQUIRE(resolve_quantization(quantization, Quantization::kNone).value() == quantization);
    REQUIRE(resolve_quantization(quantization, quantization).value() == quantization);
  }
  REQUIRE(resolve_quantization(Quantization::kW8, Quantization::kW8A8).value() == Quantization::kW8A8);
  for (const Quantization wanted : {Quantization::kW8, Quantization::kW8A8}) {
    const auto refused = resolve_quantization(Quantization::kMxInt8, wanted);
    REQUIRE(refused.has_error());
    REQUIRE_THAT(refused.error().message,
                 Catch::StartsWith("--quantization " + std::string(model::to_string(wanted)) + ": ") &&
                     Catch::Contains("mxint8"));
  }
  REQUIRE(resolve_quantization(Quantization::kW8, Quantization::kMxInt8).has_error());
  for (const Quantization other : {Quantization::kW8, Quantization::kW8A8, Quantization::kMxInt8}) {
    REQUIRE(resolve_quantization(Quantization::kW8A8Int8, other).has_error());
    REQUIRE(resolve_quantization(other, Quantization::kW8A8Int8).has_error());
    REQUIRE(resolve_quantization(other, Quantization::kW4).has_error());
    REQUIRE(resolve_quantization(Quantization::kW4, other).has_error());
  }
}

TEST_CASE("per-channel scales are written as compressed-tensors does") {
  using Catch::Matchers::Contains;
  for (const std::string family : {"llama-tied", "qwen3moe"}) {
    CAPTURE(family);
    const TemporaryFolder written;
    const std::filesystem::path source = family_folder(family);
    REQUIRE(model::quantize_checkpoint(source, written.path(), Quantization::kW8A8Int8).has_value());
    ModelConfig config = model::read_config(source).value();
    config.quantization = Quantization::kW8A8Int8;
    ModelConfig read = model::read_config(written.path()).value();
    REQUIRE(read.keeps_unquantized_projections);
    read.keeps_unquantized_projections = false;  // as `serve --quantization w8a8_int8` has it
    REQUIRE(read == config);
    const auto checkpoint = Checkpoint::open(written.path()).value();
    if (!config.tied_embeddings) REQUIRE(checkpoint->find_stored("lm_head.weight")->dtype == "BF16");
    if (config.is_sparse(0))
      REQUIRE_THAT(read_text(written.path() / "config.json"), Contains(R"(,"model.layers.0.mlp.gate")"));
    const auto scales = checkpoint->find("model.layers.0.self_attn.q_proj.weight_scale");
    REQUIRE(scales->shape == tensor::Shape{config.layer(0).attention.query_width(), 1});
    for (const tensor::DType dtype : {tensor::DType::kF32, tensor::DType::kBF16}) {
      const auto backend = cpu::make_backend({.threads = 2, .compute_dtype = dtype});
      const auto wanted = logits_of(source, config, *backend, 1);
      REQUIRE(logits_of(written.path(), config, *backend, 2) == wanted);
      REQUIRE(logits_of(source, w8_config(source), *backend, 1) != wanted);
    }
  }
}

TEST_CASE("a written 4-bit model equals one quantized at load") {
  for (const std::string family : {"llama-tied", "llama-untied"}) {
    CAPTURE(family);
    const TemporaryFolder written;
    const std::filesystem::path source = family_folder(family);
    const auto report = model::quantize_checkpoint(source, written.path(), Quantization::kW4).value();
    REQUIRE((report.error > 0.03 && report.error < 0.1 && report.worst_error >= report.error));
    REQUIRE(report.bytes_after < report.bytes_before);
    ModelConfig config = model::read_config(source).value();
    const ModelConfig plain = config;
    config.quantization = Quantization::kW4;
    const ModelConfig stored = model::read_config(written.path()).value();
    REQUIRE(stored.weight_format.method == weights::QuantMethod::kCompressedTensors);
    ModelConfig stored_w4 = stored;
    stored_w4.quantization = Quantization::kW4;  // of the head too
    for (const tensor::DType dtype : {tensor::DType::kF32, tensor::DType::kBF16}) {
      const auto backend = cpu::make_backend({.threads = 2, .compute_dtype = dtype});
      const auto wanted = logits_of(source, config, *backend, 1);
      REQUIRE(logits_of(written.path(), stored_w4, *backend, 2) == wanted);
      REQUIRE(logits_of(source, plain, *backend, 1) != wanted);
      const auto kept = logits_of(written.path(), stored, *backend, 1);
      REQUIRE(kept != wanted);
    }
  }
  const TemporaryFolder refused;
  const auto error = model::quantize_checkpoint(family_folder("qwen3moe"), refused.path(), Quantization::kW4);
  REQUIRE(error.error().code == ErrorCode::kInvalidArgument);
  REQUIRE_THAT(error.error().message, Catch::Contains("has 40 inputs"));
}

TEST_CASE("ignored modules stay as stored unless all are quantized") {
  const TemporaryFolder written;
  const std::filesystem::path source = family_folder("llama-tied");
  REQUIRE(model::quantize_checkpoint(source, written.path(), Quantization::kW8A8Int8).has_value());
  ModelConfig partial = model::read_config(written.path()).value();
  REQUIRE(partial.keeps_unquantized_projections);
  change_config(written, R"("ignore":["lm_head"])", R"("ignore":[])");
  const ModelConfig whole = model::read_config(written.path()).value();
  REQUIRE_FALSE(whole.keeps_unquantized_projections);
  REQUIRE(model::fingerprint(partial) != model::fingerprint(whole));
  const auto backend = cpu::make_backend({.threads = 2, .compute_dtype = tensor::DType::kF32});
  const auto all = logits_of(written.path(), whole, *backend, 1);
  const auto some = logits_of(written.path(), partial, *backend, 1);
  REQUIRE(some != all);
  REQUIRE(logits_of(written.path(), partial, *backend, 3) == some);
  // The head alone is another one: with the plain model's rounded to 8 bits the logits are those of the whole again.
  partial.keeps_unquantized_projections = false;
  REQUIRE(logits_of(written.path(), partial, *backend, 1) == all);
}

TEST_CASE("a quantization_config with all usual members is read") {
  const TemporaryFolder folder;
  folder.write("config.json", read_text(family_folder("qwen2") / "config.json"));
  change_config(folder, "{", R"({"quantization_config": {"config_groups": {"group_0": {
    "input_activations": {"actorder": null, "block_structure": null, "dynamic": true, "group_size": null,
      "num_bits": 8, "observer": "memoryless", "observer_kwargs": {}, "strategy": "token", "symmetric": true,
      "type": "int"},
    "output_activations": null, "targets": ["Linear"],
    "weights": {"actorder": null, "block_structure": null, "dynamic": false, "group_size": null, "num_bits": 8,
      "observer": "minmax", "observer_kwargs": {}, "strategy": "channel", "symmetric": true, "type": "int"}}},
    "format": "int-quantized", "global_compression_ratio": 1.2, "ignore": ["lm_head"], "kv_cache_scheme": null,
    "quant_method": "compressed-tensors", "quantization_status": "compressed"},)");
  const auto is_read = [&] {
    const ModelConfig config = model::read_config(folder.path()).value();
    return config.quantization == Quantization::kW8A8Int8 && config.keeps_unquantized_projections;
  };
  REQUIRE(is_read());
  // The older name is read too; the newer one counts where there are both.
  change_config(folder, "\"quantization_config\"", "\"compression_config\"");
  REQUIRE(is_read());
  change_config(folder, "{", R"({"quantization_config": {"quant_method": "fp8"},)");
  const ModelConfig newer = model::read_config(folder.path()).value();
  REQUIRE(newer.quantization == Quantization::kNone);
  REQUIRE(newer.weight_format.method == weights::QuantMethod::kFp8);
}

TEST_CASE("w8a8_int8 of SGLang is read as compressed-tensors is") {
  const TemporaryFolder written;
  const std::filesystem::path source = family_folder("qwen3moe");
  REQUIRE(model::quantize_checkpoint(source, written.path(), Quantization::kW8A8Int8).has_value());
  const auto backend = cpu::make_backend({.threads = 2, .compute_dtype = tensor::DType::kF32});
  const auto wanted = logits_of(written.path(), model::read_config(written.path()).value(), *backend, 1);
  change_config(written, "\"quantization_config\"", "\"former\"");
  change_config(written, "{", R"({"quantization_config": {"quant_method": "w8a8_int8", "is_dynamic": true},)");
  REQUIRE(logits_of(written.path(), model::read_config(written.path()).value(), *backend, 1) == wanted);
}

/// Returns config.json of a checkpoint of compressed-tensors in int8, with a text in it replaced.
std::string changed_int8_config(const std::string& from, const std::string& to) {
  const TemporaryFolder written;
  const std::filesystem::path target = written.path() / "target";
  REQUIRE(model::quantize_checkpoint(family_folder("llama-tied"), target, Quantization::kW8A8Int8).has_value());
  std::string text = read_text(target / "config.json");
  REQUIRE(text.find(from) != std::string::npos);
  return text.replace(text.find(from), from.size(), to);
}

TEST_CASE("unsupported compressed-tensors formats are refused by name") {
  const auto refused_with = [](const std::string& from, const std::string& to) {
    const TemporaryFolder bad;
    bad.write("config.json", changed_int8_config(from, to));
    const auto read = model::read_config(bad.path());
    REQUIRE(read.has_error());
    return read.error().message;
  };
  using Catch::Matchers::Contains;
  REQUIRE_THAT(refused_with("int-quantized", "marlin-24"), Contains("format is 'marlin-24'"));
  REQUIRE_THAT(refused_with(R"("num_bits":8)", R"("num_bits":9)"), Contains("group_0: num_bits is 9"));
  REQUIRE_THAT(refused_with(R"("config_groups":{)", R"("former":{)"), Contains("config_groups is missing"));
  REQUIRE_THAT(
      refused_with(R"("ignore":["lm_head"],)", R"("ignore":[],"transform_config":{"config_groups":{"R1":{}}},)"),
      Contains("transform_config"));
}

TEST_CASE("int8 scaled by other than channel and token keeps codes") {
  using Change = std::pair<std::string, std::string>;
  for (const auto& [from, to] :
       {Change{R"("strategy":"channel")", R"("strategy":"group","group_size":32)"},
        Change{R"("strategy":"token")", R"("strategy":"tensor")"}, Change{R"("dynamic":true)", R"("dynamic":false)"},
        Change{R"("symmetric":true)", R"("symmetric":false)"}, Change{R"("num_bits":8)", R"("num_bits":4)"},
        Change{R"("input_activations")", R"("output_activations")"}, Change{R"("Linear")", R"("re:.*q_proj")"},
        Change{R"("config_groups":{)", R"("config_groups":{"group_1":{},)"}}) {
    CAPTURE(to);
    const TemporaryFolder folder;
    folder.write("config.json", changed_int8_config(from, to));
    const ModelConfig config = model::read_config(folder.path()).value();
    CHECK(config.quantization == Quantization::kNone);
    CHECK(config.weight_format.method == weights::QuantMethod::kCompressedTensors);
    CHECK(config.weight_format.bits == 8);
  }
}

TEST_CASE("experts are written in 8 bits and the router as it is") {
  for (const std::string family : {"qwen3moe", "mixtral"}) {
    CAPTURE(family);
    const TemporaryFolder written;
    const std::filesystem::path source = family_folder(family);
    const auto report = model::quantize_checkpoint(source, written.path()).value();
    const ModelConfig config = w8_config(source);
    REQUIRE(model::read_config(written.path()).value() == config);
    size_t projections = 1;  // the head
    for (int32_t layer = 0; layer < config.layer_count(); ++layer) projections += config.is_sparse(layer) ? 4 + 24 : 7;
    REQUIRE(report.tensors == projections);
    const auto checkpoint = Checkpoint::open(written.path()).value();
    for (int32_t layer = 0; layer < config.layer_count(); ++layer) {
      if (!config.is_sparse(layer)) continue;
      REQUIRE(checkpoint->find_stored(model::router_name(config, layer))->dtype == "BF16");
      const std::string expert = model::expert_tensor_name(config, layer, 3, model::ExpertPart::kDown);
      REQUIRE(checkpoint->find_stored(expert)->dtype == "I8");
    }
    for (const tensor::DType dtype : {tensor::DType::kF32, tensor::DType::kBF16}) {
      const auto backend = cpu::make_backend({.threads = 2, .compute_dtype = dtype});
      const auto wanted = logits_of(source, config, *backend, 1);
      REQUIRE(logits_of(written.path(), config, *backend, 3) == wanted);
      REQUIRE(logits_of(source, model::read_config(source).value(), *backend, 1) != wanted);
    }
  }
}

TEST_CASE("a separate tied head is written and the config says so") {
  const TemporaryFolder source;
  const TemporaryFolder written;
  const std::filesystem::path untied = family_folder("llama-untied");
  std::filesystem::copy(untied, source.path(), std::filesystem::copy_options::recursive);
  change_config(source, R"("tie_word_embeddings": false)", R"("tie_word_embeddings": true)");
  const auto report = model::quantize_checkpoint(source.path(), written.path()).value();
  const ModelConfig config = w8_config(untied);
  REQUIRE(report.tensors == static_cast<size_t>(config.layer_count()) * 7 + 1);
  REQUIRE(model::read_config(written.path()).value() == config);
  const auto backend = cpu::make_backend({.threads = 1});
  REQUIRE(logits_of(written.path(), config, *backend, 2) == logits_of(untied, config, *backend, 2));
}

TEST_CASE("config.json keeps its members and adds quantization_config") {
  const TemporaryFolder source;
  const TemporaryFolder written;
  std::filesystem::copy(family_folder("llama-tied"), source.path(), std::filesystem::copy_options::recursive);
  const std::string other = R"("a \"name\"": [1e-7, {"ü": null}])";
  change_config(source, "{", R"({"quantization_config": null, )" + other + ",");
  REQUIRE(model::quantize_checkpoint(source.path(), written.path()).has_value());
  REQUIRE(model::read_config(written.path()).value() == w8_config(source.path()));
  REQUIRE_THAT(read_text(written.path() / "config.json"), Catch::Contains(R"("a \"name\"": [1e-7,{"ü":null}],)"));
}

TEST_CASE("models that are held differently have different fingerprints") {
  const std::filesystem::path source = family_folder("qwen3");
  const TemporaryFolder written;
  REQUIRE(model::quantize_checkpoint(source, written.path()).has_value());
  const ModelConfig plain = model::read_config(source).value();
  const ModelConfig w8 = w8_config(source);
  REQUIRE(model::fingerprint(plain) != model::fingerprint(w8));
  const auto checkpoint = Checkpoint::open(source).value();
  const auto small = Checkpoint::open(written.path()).value();
  const auto of_small = fingerprint_of(*small, w8);
  REQUIRE(fingerprint_of(*checkpoint, plain) != fingerprint_of(*checkpoint, w8));
  REQUIRE(fingerprint_of(*checkpoint, plain) != of_small);
  REQUIRE(fingerprint_of(*small, w8) == of_small);
  // Other scales are another model.
  std::string weights = read_text(written.path() / "model.safetensors");
  const auto matrix = small->find_w8("model.layers.1.self_attn.q_proj.weight",
                                     {plain.layer(0).attention.query_width(), plain.hidden_size}, false);
  REQUIRE(matrix.has_value());
  const std::string scales(reinterpret_cast<const char*>(matrix->scales), 64);
  weights[weights.find(scales)] ^= 1;
  const TemporaryFolder changed;
  changed.write("model.safetensors", weights);
  REQUIRE(fingerprint_of(*Checkpoint::open(changed.path()).value(), w8) != of_small);
}

TEST_CASE("other files are copied with the weights but no other weights") {
  const TemporaryFolder source;
  const TemporaryFolder written;
  std::filesystem::copy(family_folder("llama-tied"), source.path(), std::filesystem::copy_options::recursive);
  source.write("tokenizer.json", "{}");
  source.write("pytorch_model.bin", "weights");
  source.write("model.safetensors.index.json", "{}");
  REQUIRE(model::quantize_checkpoint(source.path(), written.path() / "new").has_value());
  REQUIRE(read_text(written.path() / "new/tokenizer.json") == "{}");
  REQUIRE_FALSE(std::filesystem::exists(written.path() / "new/pytorch_model.bin"));
  REQUIRE_FALSE(std::filesystem::exists(written.path() / "new/model.safetensors.index.json"));
}

TEST_CASE("a checkpoint with more than its config is not quantized") {
  const TemporaryFolder source;
  const TemporaryFolder written;
  std::filesystem::copy(family_folder("qwen2"), source.path(), std::filesystem::copy_options::recursive);
  change_config(source, "Qwen2ForCausalLM", "LlamaForCausalLM");
  const auto refused = model::quantize_checkpoint(source.path(), written.path() / "new");
  REQUIRE(refused.has_error());
  REQUIRE_THAT(refused.error().message, Catch::Contains("self_attn.k_proj.bias' is unknown to LlamaForCausalLM"));
  REQUIRE_FALSE(std::filesystem::exists(written.path() / "new"));
}

TEST_CASE("nothing is overwritten and nothing quantized twice") {
  const TemporaryFolder written;
  const std::filesystem::path source = family_folder("llama-tied");
  const std::filesystem::path target = written.path() / "target";
  REQUIRE(model::quantize_checkpoint(source, target).has_value());
  const auto again = model::quantize_checkpoint(source, target);
  REQUIRE(again.has_error());
  REQUIRE(again.error().message == target.string() + ": is not empty, wanted a new or empty folder");
  const auto twice = model::quantize_checkpoint(target, written.path() / "twice");
  REQUIRE(twice.has_error());
  REQUIRE_THAT(twice.error().message, Catch::StartsWith(target.string() + ": has quantized weights"));
  REQUIRE_FALSE(std::filesystem::exists(written.path() / "twice"));
}

TEST_CASE("a model of 8 bits that is not whole is refused by name") {
  const TemporaryFolder written;
  const std::filesystem::path target = written.path() / "target";
  REQUIRE(model::quantize_checkpoint(family_folder("llama-tied"), target).has_value());
  const std::string weights = read_text(target / "model.safetensors");
  const std::string config = read_text(target / "config.json");
  const auto refused_with = [&](const std::string& file, std::string text, const std::string& from,
                                const std::string& to) {
    std::filesystem::remove_all(written.path() / "bad");
    std::filesystem::copy(target, written.path() / "bad");
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    REQUIRE(from.size() == to.size());
    text.replace(at, from.size(), to);
    std::ofstream(written.path() / "bad" / file, std::ios::binary) << text;
    return refusal(written.path() / "bad");
  };
  using Catch::Matchers::Contains;
  REQUIRE_THAT(refused_with("model.safetensors", weights, "down_proj.weight_scale", "down_proj.weight_scald"),
               Contains("down_proj.weight' has dtype I8, wanted F32, BF16 or F16"));
  REQUIRE_THAT(refused_with("model.safetensors", weights, R"("dtype":"I8")", R"("dtype":"U8")"),
               Contains("has dtype U8, wanted I8"));
  REQUIRE_THAT(refused_with("config.json", config, R"("group_size":32)", R"("group_size":64)"),
               Contains("quantization_config: group_size is 64, wanted 32"));
  REQUIRE_THAT(refused_with("config.json", config, R"("bits":8)", R"("bits":4)"),
               Contains("quantization_config: bits is 4, wanted 8"));
  REQUIRE_THAT(
      refused_with("config.json", config, R"("quant_method":"millrace-w8")", R"("quant_method":"compress-w8")"),
      Contains("quant_method is 'compress-w8'"));
}
