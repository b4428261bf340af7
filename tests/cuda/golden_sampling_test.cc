#include <simdjson.h>

#include <algorithm>

#include "base/random.h"
#include "cuda/draws.h"
#include "support/paths.h"
#include "support/skip.h"

using namespace millrace;
using namespace millrace::test;
using tensor::SamplingParams;

namespace {

SamplingParams params_of(simdjson::dom::element given) {
  const auto number = [&](const char* name) { return static_cast<float>(given[name].get_double()); };
  SamplingParams params{.temperature = number("temperature"),
                        .top_p = number("top_p"),
                        .min_p = number("min_p"),
                        .top_k = static_cast<int32_t>(given["top_k"].get_int64()),
                        .repetition_penalty = number("repetition_penalty"),
                        .frequency_penalty = number("frequency_penalty"),
                        .presence_penalty = number("presence_penalty")};
  for (const auto& [token, bias] : given["logit_bias"].get_object()) {
    params.logit_bias.emplace_back(std::stoi(std::string(token)), static_cast<float>(bias.get_double()));
  }
  return params;
}

std::vector<TokenId> tokens_of(simdjson::dom::element list) {
  std::vector<TokenId> tokens;
  for (const auto token : list.get_array()) tokens.push_back(static_cast<TokenId>(token.get_int64()));
  return tokens;
}

}  // namespace

TEST_CASE("CUDA draws come from the golden distributions") {
  const auto path = source_dir() / "tests" / "golden" / "sampling.json";
  if (!std::filesystem::exists(path)) SKIP_TEST("tests/golden/sampling.json is absent");
  simdjson::dom::parser parser;
  const simdjson::dom::element file = parser.load(path.string());
  std::vector<Values> logits;
  for (const auto row : file["logits"].get_array()) {
    logits.emplace_back();
    for (const auto logit : row.get_array()) logits.back().push_back(static_cast<float>(logit.get_double()));
  }
  size_t index = 0;
  for (const auto test_case : file["cases"].get_array()) {
    INFO("case " << index++ << ": " << simdjson::minify(test_case["params"]));
    const Values& row = logits[test_case["logits"].get_uint64()];
    constexpr size_t kDraws = 12;
    std::vector<Draw> draws(kDraws);
    std::vector<std::pair<TokenId, double>> wanted;
    for (const auto& [token, p] : test_case["probs"].get_object()) {
      wanted.emplace_back(std::stoi(std::string(token)), p.get_double());
    }
    std::sort(wanted.begin(), wanted.end());
    for (size_t i = 0; i < kDraws; ++i) {
      draws[i].params = params_of(test_case["params"]);
      draws[i].params.seed = test_seed() + index;
      draws[i].position = i;
      draws[i].prompt = tokens_of(test_case["prompt"]);
      draws[i].output = tokens_of(test_case["output"]);
    }
    const auto vocab = static_cast<int32_t>(row.size());
    const auto results = draw_rows(std::vector<Values>(kDraws, row), vocab, draws);
    for (size_t i = 0; i < kDraws; ++i) {
      REQUIRE(results[i].row.fault == 0);
      if (draws[i].params.greedy()) {
        REQUIRE(results[i].row.token == wanted.front().first);
      } else {
        check_draw(results[i].row.token, uniform_at(draws[i].params.seed, i), wanted);
      }
    }
  }
  REQUIRE(index > 50);
}
