#include "golden_test/golden_file.h"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>

#include "model/adapt_config.h"
#include "model/families/read_config.h"
#include "model/gguf_files.h"
#include "support/effort.h"
#include "support/paths.h"

namespace millrace::test {
namespace {

std::vector<int32_t> integers(simdjson::dom::array list) {
  std::vector<int32_t> values;
  for (const simdjson::dom::element item : list) values.push_back(static_cast<int32_t>(int64_t(item)));
  return values;
}

std::vector<float> to_floats(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

std::vector<double> numbers(simdjson::dom::array list) {
  std::vector<double> values;
  for (const simdjson::dom::element item : list)
    values.push_back(item.is_null() ? std::numeric_limits<double>::quiet_NaN() : double(item));
  return values;
}

GoldenPrompt read_prompt(simdjson::dom::element prompt) {
  GoldenPrompt golden;
  golden.ids = integers(prompt["ids"]);
  golden.logprobs = numbers(prompt["prompt_logprobs"]);
  golden.greedy = integers(prompt["greedy"]);
  golden.margins = numbers(prompt["margins"]);
  if (prompt["top_ids"].error() == simdjson::SUCCESS) {
    golden.top_ids = integers(prompt["top_ids"]);
    golden.top_logits = to_floats(numbers(prompt["top_logits"]));
    return golden;
  }
  golden.positions = integers(prompt["positions"]);
  for (const simdjson::dom::element row : prompt["logits"].get_array()) {
    const std::vector<float> values = to_floats(numbers(row));
    golden.logits.insert(golden.logits.end(), values.begin(), values.end());
  }
  return golden;
}

std::filesystem::path small_model_dir() {
  return source_dir() / "models" / kSmallModelName;
}

/// The folders of families in tests/golden.
constexpr auto kFamilyFolders = std::to_array<std::string_view>({"llama-tied",
                                                                 "llama-untied",
                                                                 "mistral",
                                                                 "qwen2",
                                                                 "qwen3",
                                                                 "llama-f16",
                                                                 "llama-f32",
                                                                 "llama-sharded",
                                                                 "qwen3moe",
                                                                 "qwen3moe-raw",
                                                                 "mixtral",
                                                                 "phi3",
                                                                 "granite",
                                                                 "olmo2",
                                                                 "olmo3",
                                                                 "gemma2",
                                                                 "gemma3",
                                                                 "llama4",
                                                                 "gemma4",
                                                                 "gemma4-moe",
                                                                 "gemma4-e",
                                                                 "glm4",
                                                                 "cohere2",
                                                                 "cohere",
                                                                 "cohere-plain",
                                                                 "arcee",
                                                                 "ministral3",
                                                                 "qwen2moe",
                                                                 "granitemoe",
                                                                 "ernie4_5moe",
                                                                 "glm4moe",
                                                                 "hunyuan",
                                                                 "hunyuan-moe",
                                                                 "hyv3",
                                                                 "minimax_m2",
                                                                 "gpt_oss",
                                                                 "gpt_oss-mxfp4",
                                                                 "qwen3next",
                                                                 "kimi-linear",
                                                                 "qwen3_5",
                                                                 "lfm2",
                                                                 "lfm2moe",
                                                                 "granitemoehybrid",
                                                                 "granite4-dense",
                                                                 "nemotronh",
                                                                 "nemotronh-moe",
                                                                 "nemotronh-latent",
                                                                 "falcon-h1",
                                                                 "falcon-h1-plain",
                                                                 "falcon-h1-biases",
                                                                 "deepseek-v2-lite",
                                                                 "deepseek-v2",
                                                                 "deepseek-v3",
                                                                 "deepseek-v32",
                                                                 "glm-moe-dsa",
                                                                 "deepseek-v32-sparse",
                                                                 "glm-moe-dsa-sparse",
                                                                 "glm4-moe-lite",
                                                                 "mistral4",
                                                                 "exaone4",
                                                                 "seed-oss",
                                                                 "smollm3",
                                                                 "afmoe",
                                                                 "exaone-moe",
                                                                 "dots1",
                                                                 "solar-open",
                                                                 "bailing",
                                                                 "qwen3vl-moe"});

}  // namespace

std::vector<TokenId> GoldenPrompt::sequence() const {
  std::vector<TokenId> all = ids;
  all.insert(all.end(), greedy.begin(), greedy.end() - 1);
  return all;
}

std::filesystem::path golden_dir() {
  return source_dir() / "tests" / "golden";
}

const std::vector<std::string>& golden_family_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all(kFamilyFolders.begin(), kFamilyFolders.end());
    if (std::filesystem::exists(small_model_dir())) all.emplace_back(kSmallModelName);
    return all;
  }();
  return names;
}

const std::vector<std::string>& drawn_family_names() {
  static const std::vector<std::string> names = drawn_from(golden_family_names());
  return names;
}

const std::vector<std::string>& golden_gguf_names() {
  static const std::vector<std::string> names = {"gguf-llama",    "gguf-qwen2", "gguf-mixtral",
                                                 "gguf-qwen3moe", "gguf-k",     "gguf-k-low"};
  return names;
}

std::filesystem::path golden_folder(const std::string& name) {
  if (name == kSmallModelName) return small_model_dir();
  const std::filesystem::path folder = golden_dir() / name;
  if (std::ranges::find(golden_gguf_names(), name) == golden_gguf_names().end()) return folder;
  return model::find_gguf(folder).value().value();
}

GoldenFamily read_golden_family(const std::string& name) {
  GoldenFamily family{.name = name, .folder = golden_folder(name), .tolerance = {}, .prompts = {}};
  const std::filesystem::path file =
      name == kSmallModelName ? golden_dir() / (name + ".json") : golden_dir() / name / "golden.json";
  simdjson::dom::parser parser;
  const simdjson::dom::element root = parser.load(file.string());
  const simdjson::dom::element tolerance = root["tolerance"];
  family.tolerance = {.f32_max = tolerance["f32_max"],
                      .bf16_max = tolerance["bf16_max"],
                      .bf16_rms = tolerance["bf16_rms"],
                      .bf16_kl = tolerance["bf16_kl"]};
  if (double factor = 0.0; tolerance["w8_factor"].get(factor) == simdjson::SUCCESS) family.tolerance.w8_factor = factor;
  for (const simdjson::dom::element prompt : root["prompts"].get_array()) family.prompts.push_back(read_prompt(prompt));
  return family;
}

model::ModelConfig adapted_config(const model::Checkpoint& checkpoint) {
  model::ModelConfig config = model::read_config(checkpoint.folder()).value();
  const Result<void> adapted = model::adapt_to_checkpoint(checkpoint, config);
  if (!adapted) throw ErrorException(adapted.error());
  return config;
}

std::vector<double> log_softmax(std::span<const float> logits) {
  const double highest = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float value : logits) sum += std::exp(value - highest);
  std::vector<double> result;
  for (const float value : logits) result.push_back(value - highest - std::log(sum));
  return result;
}

void LogitDistance::add_row(std::span<const float> found, std::span<const float> wanted) {
  double kl = 0.0;
  const std::vector<double> log_found = log_softmax(found);
  const std::vector<double> log_wanted = log_softmax(wanted);
  for (size_t i = 0; i < found.size(); ++i) {
    const double difference = std::fabs(static_cast<double>(found[i]) - wanted[i]);
    // std::max would drop a NaN, which must stick.
    if (std::isnan(difference) || difference > max_) max_ = difference;
    squares_ += difference * difference;
    kl += std::exp(log_wanted[i]) * (log_wanted[i] - log_found[i]);
  }
  if (std::isnan(kl) || kl > kl_) kl_ = kl;
  count_ += found.size();
}

}  // namespace millrace::test
