#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <set>

#include "base/text_file.h"
#include "cpu/cpu_backend.h"
#include "gguf/families.h"
#include "golden_test/feeding.h"
#include "golden_test/gguf_conversion.h"
#include "golden_test/golden_file.h"
#include "model/adapt_config.h"
#include "model/families/read_config.h"
#include "model/quantize/output_error.h"
#include "model/tensor_list.h"
#include "model/test_pipeline.h"
#include "support/temporary_folder.h"

using namespace millrace;
using test::GgufConversion;
using test::TemporaryFolder;
using test::TestPipeline;

namespace {

/// A golden checkpoint and the GGUF file that it was converted to.
struct Converted {
  TemporaryFolder work;
  std::filesystem::path folder;
  std::filesystem::path file;

  explicit Converted(const GgufConversion& conversion) {
    const std::filesystem::path source = test::golden_dir() / conversion.folder;
    folder = work.path() / "safetensors";
    std::filesystem::create_directory(folder);
    for (const auto& entry : std::filesystem::directory_iterator(source)) {
      if (entry.path().filename().string().starts_with("model"))
        std::filesystem::create_symlink(entry.path(), folder / entry.path().filename());
    }
    std::string config = read_text_file(source / "config.json").value();
    for (const auto& [from, to] : conversion.changes) {
      const size_t at = config.find(from);
      REQUIRE(at != std::string::npos);
      config.replace(at, from.size(), to);
    }
    std::ofstream(folder / "config.json") << config;
    std::filesystem::create_directory(work.path() / "gguf");
    file = work.path() / "gguf" / "model.gguf";
    std::ofstream(file, std::ios::binary) << test::convert_to_gguf(conversion, folder);
  }
};

/// Returns tokens that go beyond the windows of all golden models.
std::vector<TokenId> drawn_tokens() {
  std::vector<TokenId> tokens;
  for (TokenId i = 0; i < 120; ++i) tokens.push_back(i * 97 % 127);
  return tokens;
}

/// Returns the logits of a model with one rank for each backend.
std::vector<float> logits_of(const std::filesystem::path& path, const std::vector<tensor::Backend*>& ranks,
                             int32_t stage_count) {
  const auto checkpoint = model::Checkpoint::open(path).value();
  model::ModelConfig config = model::read_config(path).value();
  const auto adapted = model::adapt_to_checkpoint(*checkpoint, config);
  REQUIRE_FALSE(adapted.has_error());
  TestPipeline pipeline(*checkpoint, config, ranks, {.stage_count = stage_count});
  const std::vector<TokenId> tokens = drawn_tokens();
  pipeline.start({static_cast<int32_t>(tokens.size())}, 1);
  return pipeline.run({{.tokens = tokens}});
}

/// Returns the bytes that a model keeps packed.
double packed_bytes(const std::filesystem::path& path, tensor::Backend& backend) {
  const auto checkpoint = model::Checkpoint::open(path).value();
  model::ModelConfig config = model::read_config(path).value();
  REQUIRE_FALSE(model::adapt_to_checkpoint(*checkpoint, config).has_error());
  const uint64_t before = cpu::packed_bytes();
  const TestPipeline pipeline(*checkpoint, config, backend, {});
  return static_cast<double>(cpu::packed_bytes() - before);
}

/// Returns the weights of the expansions of latents of all layers.
double expansion_weights(const std::filesystem::path& path) {
  const model::ModelConfig config = model::read_config(path).value();
  double weights = 0;
  for (const model::TensorSpec& spec : model::stage_tensors(config, {.layers = {0, config.layer_count()}})) {
    if (spec.name.find(config.names.latent_expansion) != std::string::npos)
      weights += static_cast<double>(spec.shape.elements());
  }
  return weights;
}

}  // namespace

TEST_CASE("every architecture of GGUF files has a golden file") {
  std::set<std::string, std::less<>> tested = {"llama", "qwen2", "qwen3moe"};  // golden_gguf_names()
  for (const GgufConversion& conversion : test::gguf_conversions()) tested.insert(conversion.architecture);
  for (const std::string_view name : gguf::architecture_names()) CHECK(tested.contains(name));
}

TEST_CASE("GGUF files of a family give the bits of its safetensors") {
  const GgufConversion conversion = GENERATE(from_range(test::gguf_conversions()));
  CAPTURE(conversion.folder);
  const Converted model(conversion);
  const auto backend = cpu::make_backend({.threads = 2, .compute_dtype = tensor::DType::kF32});
  const std::vector<float> wanted = logits_of(model.folder, {backend.get()}, 1);
  for (const int32_t stage_count : {1, 2}) {
    CAPTURE(stage_count);
    const std::vector<float> found = logits_of(model.file, {backend.get()}, stage_count);
    if (!conversion.multiplies_weights) {
      REQUIRE(test::same_bits({found}, {wanted}));
      continue;
    }
    REQUIRE(found.size() == wanted.size());
    for (size_t i = 0; i < found.size(); ++i) REQUIRE(std::abs(found[i] - wanted[i]) < 1e-3f);
  }
}

TEST_CASE("ranks take their parts of recurrent layers in a file") {
  const auto conversion = GENERATE(GgufConversion{.folder = "qwen3_5", .architecture = "qwen35"},
                                   GgufConversion{.folder = "qwen3next", .architecture = "qwen35moe"},
                                   GgufConversion{.folder = "granitemoehybrid", .architecture = "granitehybrid"},
                                   GgufConversion{.folder = "nemotronh-moe", .architecture = "nemotron_h_moe"});
  CAPTURE(conversion.architecture);
  const Converted model(conversion);
  const auto first = cpu::make_backend({.threads = 1, .compute_dtype = tensor::DType::kF32});
  const auto second = cpu::make_backend({.threads = 1, .compute_dtype = tensor::DType::kF32});
  const std::vector<float> wanted = logits_of(model.folder, {first.get()}, 1);
  REQUIRE(test::same_bits({logits_of(model.file, {first.get(), second.get()}, 1)}, {wanted}));
}

TEST_CASE("expansions of latents in a file keep their codes") {
  GgufConversion conversion = GENERATE(GgufConversion{.folder = "glm4-moe-lite", .architecture = "deepseek2"},
                                       GgufConversion{.folder = "deepseek-v32",
                                                      .architecture = "deepseek32",
                                                      .changes = {{"\"mscale\": 0.7", "\"mscale\": 1.0"}},
                                                      .predicting_layers = 1});
  CAPTURE(conversion.folder);
  const Converted plain(conversion);
  conversion.quantizes_latents = true;
  const Converted coded(conversion);
  std::vector<std::unique_ptr<tensor::Backend>> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.push_back(cpu::make_backend({.threads = 1, .compute_dtype = tensor::DType::kBF16}));
  const std::vector<float> wanted = logits_of(coded.file, {ranks[0].get()}, 1);
  REQUIRE(test::same_bits({logits_of(coded.file, {ranks[0].get()}, 2)}, {wanted}));
  REQUIRE(test::same_bits({logits_of(coded.file, {ranks[0].get(), ranks[1].get()}, 1)}, {wanted}));
  const auto error = model::measure_output_error(plain.file, coded.file, {drawn_tokens()}, *ranks[0]).value();
  CAPTURE(error.mean_kl, error.agreeing);
  REQUIRE(error.mean_kl < 1e-2);
  REQUIRE(error.mean_kl > 0);
  const double saved = packed_bytes(plain.file, *ranks[0]) - packed_bytes(coded.file, *ranks[0]);
  REQUIRE(saved >= 7.0 / 8 * expansion_weights(coded.file));
}

TEST_CASE("mixed codes have the same bits on every count of ranks") {
  const std::string name = GENERATE(from_range(test::golden_gguf_names()));
  CAPTURE(name);
  const std::filesystem::path file = test::read_golden_family(name).folder;
  const auto first = cpu::make_backend({.threads = 2, .compute_dtype = tensor::DType::kBF16});
  const auto second = cpu::make_backend({.threads = 1, .compute_dtype = tensor::DType::kBF16});
  const std::vector<float> wanted = logits_of(file, {first.get()}, 1);
  REQUIRE(test::same_bits({logits_of(file, {first.get(), second.get()}, 2)}, {wanted}));
}

TEST_CASE("bf16 arithmetic of GGUF files is near that of safetensors") {
  const GgufConversion conversion = GENERATE(from_range(test::gguf_conversions()));
  CAPTURE(conversion.folder);
  const Converted model(conversion);
  const auto backend = cpu::make_backend({.threads = 2});
  const auto error = model::measure_output_error(model.folder, model.file, {drawn_tokens()}, *backend).value();
  // Routers are stored in f32 and may choose another expert.
  CAPTURE(error.mean_kl, error.max_kl, error.agreeing);
  REQUIRE(error.mean_kl < 5e-3);
  REQUIRE(error.agreeing >= 110);
}
