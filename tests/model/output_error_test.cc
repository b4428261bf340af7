#include "model/quantize/output_error.h"

#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "cpu/cpu_backend.h"
#include "model/families/read_config.h"
#include "model/quantize/quantize_checkpoint.h"
#include "model/test_pipeline.h"
#include "support/mentions.h"
#include "support/paths.h"
#include "support/temporary_folder.h"

using namespace millrace;
using model::Checkpoint;
using model::Quantization;
using test::TemporaryFolder;
using test::TestPipeline;

namespace {

std::filesystem::path golden_folder(const std::string& name) {
  return test::source_dir() / "tests/golden" / name;
}

/// Returns prompts of several lengths, one of which is a single token and one of which ends a page.
std::vector<std::vector<TokenId>> drawn_prompts(int32_t vocab_size) {
  std::vector<std::vector<TokenId>> prompts;
  for (const int32_t length : {1, 16, 70}) {
    std::vector<TokenId>& prompt = prompts.emplace_back();
    for (int32_t i = 0; i < length; ++i) prompt.push_back((i * 131 + length) % vocab_size);
  }
  return prompts;
}

/// Returns the error that whole models have, loaded at once.
model::OutputError error_of_whole_models(const std::filesystem::path& original, const std::filesystem::path& quantized,
                                         const std::vector<std::vector<TokenId>>& prompts, tensor::Backend& backend) {
  model::OutputErrorSum sum;
  std::array<std::vector<std::vector<float>>, 2> logits;
  size_t vocab = 0;
  for (const size_t side : {0, 1}) {
    const std::filesystem::path& folder = side == 0 ? original : quantized;
    const auto checkpoint = Checkpoint::open(folder).value();
    TestPipeline pipeline(*checkpoint, model::read_config(folder).value(), backend, {});
    vocab = static_cast<size_t>(pipeline.stage(0).config().vocab_size);
    for (const auto& prompt : prompts) {
      pipeline.start({static_cast<int32_t>(prompt.size())}, 1);
      logits[side].push_back(pipeline.run({{.tokens = prompt}}));
    }
  }
  for (size_t prompt = 0; prompt < prompts.size(); ++prompt) {
    for (size_t row = 0; row < prompts[prompt].size(); ++row)
      sum.add(std::span(logits[0][prompt]).subspan(row * vocab, vocab),
              std::span(logits[1][prompt]).subspan(row * vocab, vocab), prompt, row);
  }
  return sum.total();
}

}  // namespace

TEST_CASE("errors of outputs layer by layer equal those of whole models") {
  // Windows, two rotations, states and latents.
  for (const std::string family : {"qwen2", "gemma3", "qwen3next", "deepseek-v2-lite"}) {
    CAPTURE(family);
    const std::filesystem::path source = golden_folder(family);
    const TemporaryFolder written;
    REQUIRE(model::quantize_checkpoint(source, written.path(), Quantization::kW8).has_value());
    const auto prompts = drawn_prompts(model::read_config(source).value().vocab_size);
    const auto backend = cpu::make_backend({.threads = 2});
    const model::OutputError found = model::measure_output_error(source, written.path(), prompts, *backend).value();
    const model::OutputError wanted = error_of_whole_models(source, written.path(), prompts, *backend);
    REQUIRE(found.positions == 87);
    REQUIRE(found.mean_kl == wanted.mean_kl);
    REQUIRE(found.max_kl == wanted.max_kl);
    REQUIRE(found.max_kl > 0.0);
    REQUIRE(found.mean_kl < found.max_kl);
    REQUIRE(found.max_prompt == wanted.max_prompt);
    REQUIRE(found.max_position == wanted.max_position);
    REQUIRE(found.agreeing == wanted.agreeing);
    const model::OutputError none = model::measure_output_error(source, source, prompts, *backend).value();
    REQUIRE(none.max_kl == 0.0);
    REQUIRE(none.agreeing == none.positions);
  }
}

TEST_CASE("fewer bits make larger errors of weights and outputs") {
  const std::filesystem::path source = golden_folder("llama-untied");
  const auto prompts = drawn_prompts(model::read_config(source).value().vocab_size);
  const auto backend = cpu::make_backend({.threads = 2, .compute_dtype = tensor::DType::kF32});
  const TemporaryFolder of_8;
  const TemporaryFolder of_4;
  const auto report_8 = model::quantize_checkpoint(source, of_8.path(), Quantization::kW8).value();
  const auto report_4 = model::quantize_checkpoint(source, of_4.path(), Quantization::kW4).value();
  REQUIRE(report_8.tensor_errors.size() == report_8.tensors);
  REQUIRE(report_4.tensor_errors.size() == report_4.tensors);
  for (size_t i = 0; i < report_4.tensor_errors.size(); ++i) {
    REQUIRE(report_4.tensor_errors[i].error <= report_4.worst_error);
    REQUIRE(report_4.tensor_errors[i].error > report_8.error);
  }
  const auto error_8 = model::measure_output_error(source, of_8.path(), prompts, *backend).value();
  const auto error_4 = model::measure_output_error(source, of_4.path(), prompts, *backend).value();
  REQUIRE(error_4.mean_kl > 10 * error_8.mean_kl);
  REQUIRE(error_4.agreeing <= error_8.agreeing);
}

TEST_CASE("the divergence of two distributions is that of its formula") {
  model::OutputErrorSum sum;
  // 1/2, 1/4, 1/4 against 1/4, 1/2, 1/4: KL is ln 2 / 4.
  const float two = std::log(2.0f);
  sum.add(std::vector<float>{two, 0.0f, 0.0f}, std::vector<float>{0.0f, two, 0.0f}, 3, 7);
  sum.add(std::vector<float>{1.0f, 2.0f, 3.0f}, std::vector<float>{11.0f, 12.0f, 13.0f}, 4, 8);
  const model::OutputError total = sum.total();
  REQUIRE(total.positions == 2);
  REQUIRE(total.agreeing == 1);
  REQUIRE(total.max_kl == Approx(std::log(2.0) / 4).margin(1e-7));
  REQUIRE(total.mean_kl == Approx(std::log(2.0) / 8).margin(1e-7));
  REQUIRE(total.max_prompt == 3);
  REQUIRE(total.max_position == 7);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  sum.add(std::vector<float>{1.0f, 2.0f, 3.0f}, std::vector<float>{1.0f, nan, 3.0f}, 5, 9);
  sum.add(std::vector<float>{two, 0.0f, 0.0f}, std::vector<float>{0.0f, two, 0.0f}, 6, 1);
  REQUIRE(std::isnan(sum.total().mean_kl));
  REQUIRE(std::isnan(sum.total().max_kl));
  REQUIRE(sum.total().max_prompt == 5);
}

TEST_CASE("outputs are not compared with those of another model") {
  const auto backend = cpu::make_backend({.threads = 1});
  const auto other =
      model::measure_output_error(golden_folder("llama-tied"), golden_folder("llama-untied"), {{1, 2, 3}}, *backend);
  REQUIRE(other.error().code == ErrorCode::kInvalidArgument);
  REQUIRE_THAT(other.error().message, test::Mentions("llama-tied", "4 layers", "llama-untied", "8"));
  const auto foreign =
      model::measure_output_error(golden_folder("qwen2"), golden_folder("qwen2"), {{1, 512}}, *backend);
  REQUIRE(foreign.error().code == ErrorCode::kInvalidArgument);
  REQUIRE_THAT(foreign.error().message, test::Mentions("512"));
}
