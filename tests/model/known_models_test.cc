#include "model/known_models.h"

#include <catch2/catch.hpp>

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
