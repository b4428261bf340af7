#include "model/known_models.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "model/cache_groups.h"
#include "model/families/read_config.h"
#include "model/tensor_list.h"

using namespace millrace::model;
using millrace::test::kKnownModels;
using millrace::test::KnownModel;

TEST_CASE("published configs give the published parameter counts") {
  for (const KnownModel& known : kKnownModels) {
    CAPTURE(known.name);
    const auto config = parse_config(known.config);
    if (!config) FAIL(config.error().message);
    REQUIRE(parameter_count(*config) == known.parameters);
    REQUIRE(config->context_length() == known.context_length);
    REQUIRE(config->dtype == millrace::tensor::DType::kBF16);
  }
}

TEST_CASE("a token of a window group weighs what its layers keep") {
  const auto windows_of = [](std::string_view name) {
    const auto known = std::ranges::find(kKnownModels, name, [](const KnownModel& one) { return one.name; });
    return CacheGroups(parse_config(known->config).value()).windows();
  };
  // Eight of 48 layers with equal heads see all tokens.
  const auto gemma = windows_of("Gemma-3-12B");
  REQUIRE(gemma.size() == 1);
  REQUIRE(gemma[0].window == 1024);
  REQUIRE(gemma[0].token_percent == 100 * 40 / 8);
  REQUIRE(windows_of("Llama-3.2-1B").empty());
}
