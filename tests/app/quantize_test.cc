#include "app/quantize.h"

#include <simdjson.h>

#include <catch2/catch.hpp>
#include <algorithm>

#include "app/sample_prompts.h"
#include "base/utf8.h"
#include "support/mentions.h"
#include "support/paths.h"
#include "support/temporary_folder.h"

using namespace millrace;
using model::Quantization;
using test::Mentions;
using test::TemporaryFolder;

namespace {

simdjson::dom::element read_json(simdjson::dom::parser& parser, const std::filesystem::path& path) {
  return parser.load(path.string());
}

}  // namespace

TEST_CASE("a text is cut into prompts that begin alike") {
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5, 6, 7};
  using Prompts = std::vector<std::vector<TokenId>>;
  REQUIRE(app::cut_prompts(tokens, {9}, 4, 100) == Prompts{{9, 1, 2, 3}, {9, 4, 5, 6}, {9, 7}});
  REQUIRE(app::cut_prompts(tokens, {}, 4, 100) == Prompts{{1, 2, 3, 4}, {5, 6, 7}});
  REQUIRE(app::cut_prompts(tokens, {}, 4, 5) == Prompts{{1, 2, 3, 4}, {5}});
  REQUIRE(app::cut_prompts({}, {9}, 4, 5).empty());
}

TEST_CASE("the prompts that ship are distinct texts") {
  REQUIRE(app::sample_prompts().size() >= 10);
  for (const std::string_view text : app::sample_prompts()) {
    REQUIRE(is_valid_utf8(text));
    REQUIRE(text.size() > 150);
    REQUIRE(std::ranges::count(app::sample_prompts(), text) == 1);
  }
}

TEST_CASE("errors of weights and outputs are reported") {
  const std::filesystem::path model = test::source_dir() / "models/books-4m";
  const TemporaryFolder work;
  work.write("text.txt", "It was the best of times. " + std::string(900, 'x') + " She said nothing, and went home.");
  const auto quantized = [&](const std::string& name, Quantization quantization, const std::string& prompts) {
    const auto text = app::quantize({.model_path = model,
                                     .output = work.path() / name,
                                     .quantization = quantization,
                                     .prompts = prompts,
                                     .report = work.path() / (name + ".json")});
    REQUIRE(text.has_value());
    return *text;
  };
  REQUIRE_THAT(quantized("w8", Quantization::kW8, ""), Mentions("w8: ", "8 bits", "KL 0.0", "agrees at", "positions"));
  REQUIRE_THAT(quantized("w4", Quantization::kW4, (work.path() / "text.txt").string()), Mentions("4 bits", "KL"));
  REQUIRE_THAT(quantized("none", Quantization::kW8, "none"), Mentions("outputs are not compared", "--prompts"));
  simdjson::dom::parser parser;
  const auto none = read_json(parser, work.path() / "none.json");
  REQUIRE(none["outputs"].is_null());
  const auto w8 = read_json(parser, work.path() / "w8.json");
  const double error_8 = w8["outputs"]["mean_kl"];
  const uint64_t positions = w8["outputs"]["positions"];
  REQUIRE(positions > 1000);
  REQUIRE(uint64_t(w8["outputs"]["agreeing"]) > positions * 9 / 10);
  const auto w4 = read_json(parser, work.path() / "w4.json");
  REQUIRE(double(w4["outputs"]["mean_kl"]) > error_8);
  REQUIRE(w4["tensors"].get_array().size() > 7);
  for (const simdjson::dom::element tensor : w4["tensors"].get_array()) REQUIRE(double(tensor["error"]) > 0.01);
}

TEST_CASE("models and texts that cannot be compared are named") {
  const TemporaryFolder work;
  const std::filesystem::path golden = test::source_dir() / "tests/golden";
  const auto without = app::quantize({.model_path = golden / "qwen2", .output = work.path() / "a"});
  REQUIRE_THAT(without.value(), Mentions("outputs are not compared", "tokenizer.json"));
  const auto absent = app::quantize({.model_path = test::source_dir() / "models/books-4m",
                                     .output = work.path() / "b",
                                     .prompts = (work.path() / "absent.txt").string()});
  REQUIRE(absent.error().code == ErrorCode::kNotFound);
  REQUIRE_THAT(absent.error().message, Mentions("absent.txt"));
  REQUIRE_FALSE(std::filesystem::exists(work.path() / "b"));
}
