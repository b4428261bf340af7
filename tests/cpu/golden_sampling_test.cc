// The sampling distribution against tests/golden/sampling.json, made by an independent implementation.

#include <simdjson.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "cpu/sampling.h"
#include "support/golden_sampling.h"
#include "support/paths.h"
#include "support/skip.h"

using namespace millrace;

TEST_CASE("the sampling distribution is the golden one") {
  const auto path = test::source_dir() / "tests" / "golden" / "sampling.json";
  if (!std::filesystem::exists(path)) SKIP_TEST("tests/golden/sampling.json is absent");
  simdjson::dom::parser parser;
  const simdjson::dom::element file = parser.load(path.string());
  std::vector<std::vector<float>> logits;
  for (const auto row : file["logits"].get_array()) {
    logits.emplace_back();
    for (const auto logit : row.get_array()) logits.back().push_back(static_cast<float>(logit.get_double()));
  }
  size_t index = 0;
  for (const auto test_case : file["cases"].get_array()) {
    INFO("case " << index++ << ": " << simdjson::minify(test_case["params"]));
    const std::vector<float>& row = logits[test_case["logits"].get_uint64()];
    const tensor::SamplingParams params = test::params_of(test_case["params"]);
    const auto prompt = test::tokens_of(test_case["prompt"]);
    const auto output = test::tokens_of(test_case["output"]);
    const tensor::SampleSpec spec{.params = &params,
                                  .position = 0,
                                  .output_count = static_cast<uint32_t>(output.size()),
                                  .prompt = prompt,
                                  .output = output};
    std::map<TokenId, double> wanted;
    for (const auto& [token, p] : test_case["probs"].get_object())
      wanted[std::stoi(std::string(token))] = p.get_double();
    const auto got = cpu::sampling_distribution(row, static_cast<int32_t>(row.size()), spec);
    const bool cuts = params.top_k > 0 || params.top_p < 1.0f || params.min_p > 0.0f;
    size_t visible = 0;
    for (const auto& [token, p] : got) {
      if (p <= 1e-10f) continue;
      ++visible;
      INFO("token " << token);
      REQUIRE(double{p} == Approx(wanted[token]).margin(1e-5));
      if (cuts) REQUIRE(wanted[token] > 1e-10);
    }
    if (cuts) REQUIRE(visible == wanted.size());
  }
  REQUIRE(index > 50);
}
