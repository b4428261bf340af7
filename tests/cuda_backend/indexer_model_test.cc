// Models with indexers over the ops themselves, emulated or on a GPU. Where bits are compared, indexers choose fewer
// tokens than the golden models say, so that short prompts need them.

#include <algorithm>
#include <catch2/catch.hpp>

#include "cuda/cuda_backend.h"
#include "cuda_backend/decode_rig.h"
#include "cuda_backend/families.h"
#include "cuda_backend/same_draws.h"
#include "cuda_backend/tested_gemm.h"
#include "golden_test/feeding.h"
#include "golden_test/golden_file.h"
#include "model/families/read_config.h"
#include "support/effort.h"

using namespace millrace;

namespace {

constexpr int32_t kChosen = 13;
constexpr size_t kMaxTokens = 36;

model::ModelConfig config_of(const test::GoldenFamily& family, int32_t chosen_count = kChosen) {
  model::ModelConfig config = model::read_config(family.folder).value();
  for (model::LayerConfig& layer : config.layers) layer.attention.latent->indexer->chosen_count = chosen_count;
  return config;
}

test::Sequences short_sequences(const test::GoldenFamily& family, size_t count) {
  test::Sequences sequences;
  for (size_t i = 0; i < count; ++i) {
    std::vector<TokenId>& tokens = sequences.emplace_back(family.prompts.at(i).sequence());
    tokens.resize(std::min(tokens.size(), kMaxTokens));
  }
  return sequences;
}

}  // namespace

TEST_CASE("stages and graphs change no bit of models with indexers") {
  constexpr size_t kSequences = 3;
  const test::GoldenFamily family = test::read_golden_family("deepseek-v32-sparse");
  std::vector<test::DecodeRig::Drawn> drawn;
  for (const auto& [stages, graphs] : {std::pair{1, false}, std::pair{1, true}, std::pair{2, true}}) {
    std::vector<std::unique_ptr<tensor::Backend>> backends;
    std::vector<std::string> graphs_less;
    const auto warn = [&](const std::string& what) { graphs_less.push_back(what); };
    for (int s = 0; s < stages; ++s)
      backends.push_back(cuda::make_backend({.products = test::tested_gemm(), .graphs = graphs, .warn = warn}));
    test::DecodeRig rig(std::move(backends), {.folder = family.folder,
                                              .config = config_of(family, 10),
                                              .sequence_count = kSequences,
                                              .first_prompt = 5,
                                              .prompt_growth = 8,
                                              .draft_rows = 18});
    rig.prefill();
    // The first sequence alone sees all its tokens at first, and chooses later.
    const std::vector<std::vector<TokenId>> drafts = {{1, 2, 3}, {4}, {}};
    for (const size_t count : {1, 1, 1}) rig.decode(count);
    rig.decode(drafts);  // the first sequence's last drafts choose, its other rows see all
    for (const size_t count : {3, 3, 3, 2, 1, 1, 1}) rig.decode(count);
    for (int repeat = 0; repeat < 3; ++repeat) rig.decode(drafts);
    const auto stats = rig.graph_stats();
    REQUIRE((stats[static_cast<size_t>(tensor::GraphOutcome::kReplayed)] > 0) == graphs);
    drawn.push_back(rig.drawn());
    REQUIRE(graphs_less == std::vector<std::string>{});
  }
  REQUIRE(drawn[0][0].size() >= 15);
  for (size_t setting = 1; setting < drawn.size(); ++setting) test::require_same(drawn[setting], drawn[0]);
}

TEST_CASE("stages and chunks change no bit of models with indexers") {
  const auto& [name, kv_dtype] = GENERATE(std::pair{"deepseek-v32-sparse", tensor::KvDType::kAuto},
                                          std::pair{"glm-moe-dsa-sparse", tensor::KvDType::kInt8},
                                          std::pair{"deepseek-v32-sparse", tensor::KvDType::kFp8E4M3});
  const test::GoldenFamily family = test::read_golden_family(name);
  const auto checkpoint = model::Checkpoint::open(family.folder).value();
  const model::ModelConfig config = config_of(family);
  const auto backend = cuda::make_backend({.products = test::tested_gemm(), .kv_dtype = kv_dtype});
  const test::Sequences sequences = short_sequences(family, 2);
  test::TestPipeline whole(*checkpoint, config, *backend, {.stage_count = 1});
  const test::Logits wanted = run_alone(whole, sequences, SIZE_MAX / 2, 1);
  test::TestPipeline pipeline(*checkpoint, config, *backend, {.stage_count = 2, .page_size = 5, .page_count = 160});
  CAPTURE(family.name);
  REQUIRE(test::same_bits(run_alone(pipeline, sequences, 11, 2), wanted));
  REQUIRE(test::same_bits(run_batched(pipeline, sequences, 17, 3), wanted));
}

TEST_CASE("ranks change no bit of models with indexers") {
  const test::GoldenFamily family = test::read_golden_family("deepseek-v32-sparse");
  const auto checkpoint = model::Checkpoint::open(family.folder).value();
  const model::ModelConfig config = config_of(family);
  const test::Sequences sequences = short_sequences(family, 1);
  std::vector<std::unique_ptr<tensor::Backend>> backends;
  std::vector<tensor::Backend*> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    backends.push_back(
        cuda::make_backend({.products = test::tested_gemm(), .rank_exchange = cuda::RankExchange::kCopies}));
    ranks.push_back(backends.back().get());
  }
  test::TestPipeline whole(*checkpoint, config, *backends[0], {.stage_count = 1});
  const test::Logits wanted = run_alone(whole, sequences, SIZE_MAX / 2, 1);
  test::TestPipeline pipeline(*checkpoint, config, ranks, {.stage_count = 1});
  REQUIRE(test::same_bits(run_alone(pipeline, sequences, 15, 2), wanted));
}

TEST_CASE("indexers that drop tokens give logits near on a GPU") {
  constexpr size_t kMinDropped = 90;
  test::GoldenFamily family = test::read_golden_family(
      GENERATE(from_range(test::drawn_from<std::string>({"deepseek-v32-sparse", "glm-moe-dsa-sparse"}))));
  const auto checkpoint = model::Checkpoint::open(family.folder).value();
  const model::ModelConfig config = model::read_config(family.folder).value();
  const auto chosen = static_cast<size_t>(config.layers.back().attention.latent->indexer->chosen_count);
  std::erase_if(family.prompts, [&](const auto& prompt) { return prompt.ids.size() < chosen + kMinDropped; });
  REQUIRE_FALSE(family.prompts.empty());
  family.prompts.resize(1);
  family.prompts.front().greedy.resize(1);
  const auto backend = cuda::make_backend({.products = test::tested_gemm()});
  const auto agreement_of = [&](const model::ModelConfig& tested) {
    test::TestPipeline pipeline(*checkpoint, tested, *backend, {.stage_count = 2});
    return test::measure_agreement(pipeline, family, 2.0 * family.tolerance.bf16_max);
  };
  const test::Agreement agreement = agreement_of(config);
  CAPTURE(family.name, agreement.logits.max(), agreement.logprob_max, agreement.greedy_checked);
  test::require_near(agreement, family.tolerance);
  // Logits of attention to all tokens are others.
  const auto all_tokens = static_cast<int32_t>(family.prompts.front().sequence().size());
  const test::Agreement dense = agreement_of(config_of(family, all_tokens));
  CAPTURE(dense.logits.max(), dense.logits.rms(), dense.logprob_max);
  REQUIRE(dense.logits.max() > family.tolerance.bf16_max);
}
