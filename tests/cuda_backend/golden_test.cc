// Whole models on the CUDA backend, its kernels replaced by plain loops.

#include <catch2/catch.hpp>

#include "cuda_backend/families.h"

using namespace millrace;

TEST_CASE("on the CUDA backend, logits and logprobs are near those of the reference") {
  const test::GoldenFamily family = test::read_golden_family(GENERATE(from_range(test::cuda_family_names())));
  test::require_agreement(family);
}

TEST_CASE("a model with experts is refused by name") {
  for (const std::string family : {"qwen3moe", "mixtral"}) {
    const test::GoldenFamily golden = test::read_golden_family(family);
    const auto checkpoint = model::Checkpoint::open(golden.folder).value();
    const model::ModelConfig config = model::read_config(golden.folder).value();
    const auto backend = cuda::make_backend({});
    const auto load = [&](model::LayerRange layers) {
      return model::StageModel::load(*checkpoint, config, {.layers = layers, .first = false, .last = false}, *backend,
                                     {.max_batch_tokens = 8});
    };
    const auto refused = load({0, 2});
    REQUIRE(refused.has_error());
    REQUIRE(refused.error().code == ErrorCode::kInvalidArgument);
    REQUIRE(refused.error().message == backend->description() + " computes no mixture of experts, and layer 0 of the " +
                                           config.architecture + " is one");
    REQUIRE(load({1, 2}).has_value() == !config.is_sparse(1));
  }
}
