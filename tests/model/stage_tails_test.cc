#include <catch2/catch.hpp>

#include "cpu/cpu_backend.h"
#include "model/checkpoint_files.h"
#include "model/plain_model.h"
#include "model/random_model.h"
#include "model/stage_model.h"

using namespace millrace;
using namespace millrace::model;

namespace {

/// Returns a config of parallel layers without biases in their LayerNorm, some without rotation.
ModelConfig parallel_config() {
  ModelConfig config = test::five_layer_model();
  config.norm = NormKind::kLayer;
  config.logit_scale = 0.3f;
  test::for_layers(config, [](LayerConfig& layer) { layer.parallel = true; });
  config.layers[4].attention.rope.reset();
  config.ropes.front().interleaved = true;
  return config;
}

/// Returns a config with norms before and after each block, soft caps, sinks, scalars and GELU.
ModelConfig capped_config() {
  ModelConfig config = test::five_layer_model();
  config.norm = NormKind::kRmsPlusOne;
  config.embedding_scale = 3.0f;
  config.logit_soft_cap = 5.0f;
  config.names.attention_output_norm = "attention_output_norm";
  config.names.feed_forward_norm = "feed_forward_norm";
  config.names.feed_forward_output_norm = "feed_forward_output_norm";
  test::for_layers(config, [](LayerConfig& layer) {
    layer.norms.after_attention = layer.norms.after_feed_forward = true;
    layer.residual_multiplier = 0.5f;
    layer.attention.soft_cap = 2.0f;
    layer.attention.sinks = true;
    layer.feed_forward.activation = MlpActivation::kGeluTanh;
  });
  return config;
}

}  // namespace

TEST_CASE("tail rows have equal bits with or without the other rows") {
  ModelConfig config =
      GENERATE(test::five_layer_model(), test::five_layer_mixture(), parallel_config(), capped_config());
  test::set_windows(config, {0, 0, 0, 0, 3});
  const test::RandomModel random(config, 23);
  const test::TemporaryFolder folder;
  folder.write("model.safetensors", test::safetensors_text(random.tensors()));
  const auto checkpoint = Checkpoint::open(folder.path()).value();
  const auto backend = cpu::make_backend({.threads = 1, .compute_dtype = tensor::DType::kF32});
  const StageLimits limits{.max_batch_tokens = 16, .max_logit_rows = 4, .max_tail_rows = 6};
  const StageSpan whole{.layers = {0, 5}, .first = true, .last = true};
  const auto model = StageModel::load(*checkpoint, config, whole, *backend, limits).value();
  model->allocate_cache(4, 8);
  const auto hidden = model->allocate_hidden();
  const std::vector<PageId> pages{PageId(0), PageId(1), PageId(2), PageId(3), PageId(4), PageId(5)};
  const std::vector<int32_t> page_begin{0, 2, 4, 6};
  const auto forward = [&](const std::vector<TokenId>& tokens, const std::vector<int32_t>& row_begin,
                           const std::vector<int32_t>& prefix, std::vector<int32_t> tails) {
    const tensor::BatchLayout layout{
        .row_begin = row_begin, .prefix = prefix, .page_begin = page_begin, .pages = pages};
    std::vector<float> out;
    backend->run_and_wait([&] {
      const auto kept = model->forward({tokens, layout, model->hidden_view(hidden, layout.row_count()), {}, tails});
      out.resize(static_cast<size_t>(kept.rows * kept.cols));
      backend->copy_to_host(kept.data, std::as_writable_bytes(std::span(out)));
    });
    return out;
  };
  const auto first = test::spread_tokens(9, config.vocab_size);
  (void)forward(first, {0, 3, 3, 9}, {0, 0, 0}, {0, 0, 0});  // keys and values are stored though no row goes on
  const auto next = test::spread_tokens(8, config.vocab_size);
  const std::vector<int32_t> row_begin{0, 4, 7, 8};
  const std::vector<int32_t> prefix{3, 0, 6};
  const auto all = forward(next, row_begin, prefix, {});
  const auto width = static_cast<size_t>(config.hidden_size);
  REQUIRE(all.size() == 8 * width);
  const auto rows = [&](std::vector<size_t> wanted) {
    std::vector<float> out;
    for (const size_t row : wanted)
      out.insert(out.end(), all.begin() + static_cast<ptrdiff_t>(row * width),
                 all.begin() + static_cast<ptrdiff_t>((row + 1) * width));
    return out;
  };
  REQUIRE(forward(next, row_begin, prefix, {1, 0, 1}) == rows({3, 7}));
  REQUIRE(forward(next, row_begin, prefix, {1, 3, 1}) == rows({3, 4, 5, 6, 7}));
  REQUIRE(forward(next, row_begin, prefix, {0, 1, 0}) == rows({6}));
  REQUIRE(forward(next, row_begin, prefix, {0, 0, 0}).empty());
}
