#include <simdjson.h>

#include <algorithm>

#include "base/random.h"
#include "cuda/draws.h"
#include "support/golden_sampling.h"
#include "support/paths.h"
#include "support/skip.h"

using namespace millrace;
using namespace millrace::test;

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
