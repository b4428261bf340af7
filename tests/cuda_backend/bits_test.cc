// Over the ops themselves, emulated or on a GPU.

#include <algorithm>
#include <catch2/catch.hpp>

#include "cuda/cuda_backend.h"
#include "cuda_backend/decode_rig.h"
#include "cuda_backend/same_draws.h"
#include "cuda_backend/tested_gemm.h"
#include "golden_test/feeding.h"
#include "golden_test/golden_file.h"
#include "model/families/read_config.h"
#include "model/rank_layout.h"
#include "support/effort.h"

using namespace millrace;

TEST_CASE("stages and graphs and links and padding change no bit") {
  const auto& [family, kv_dtype] = GENERATE(from_range(test::drawn_from<std::pair<std::string, tensor::KvDType>>({
      {"qwen2", tensor::KvDType::kAuto},
      {"qwen2", tensor::KvDType::kInt8},
      {"qwen3moe", tensor::KvDType::kFp8E4M3},
      {"qwen3moe", tensor::KvDType::kAuto},
      {"gpt_oss", tensor::KvDType::kInt8},
      {"deepseek-v2-lite", tensor::KvDType::kAuto},
      {"qwen3next", tensor::KvDType::kInt8},
      {"kimi-linear", tensor::KvDType::kAuto},
      {"gemma4", tensor::KvDType::kFp8E4M3},
      {"gemma4-moe", tensor::KvDType::kAuto},
      {"gemma4-e", tensor::KvDType::kAuto},
      {"nemotronh-moe", tensor::KvDType::kAuto},
      {"falcon-h1", tensor::KvDType::kAuto},
      {"llama4", tensor::KvDType::kAuto},
      {"lfm2", tensor::KvDType::kAuto},
      {"gpt_oss-mxfp4", tensor::KvDType::kAuto},
      {"gguf-llama", tensor::KvDType::kAuto},
      {"gguf-mixtral", tensor::KvDType::kAuto},
      {"gguf-qwen3moe", tensor::KvDType::kAuto},
      {"gguf-k", tensor::KvDType::kInt8},
      {"deepseek-v2-lite", tensor::KvDType::kFp8E4M3},
      {"deepseek-v2-lite", tensor::KvDType::kInt8},
  })));
  constexpr size_t kSequences = 3;  // a graph has four rows
  constexpr uint32_t kHostPages = 2 * kSequences * test::DecodeRig::kPagesEach;
  std::vector<test::DecodeRig::Drawn> drawn;
  std::vector<std::vector<std::byte>> pages;
  for (const auto& [stages, graphs] : {std::pair{1, false}, std::pair{1, true}, std::pair{2, true}}) {
    const bool to_host = stages == 2;
    std::vector<std::unique_ptr<tensor::Backend>> backends;
    std::vector<std::string> graphs_less;
    const auto warn = [&](const std::string& what) { graphs_less.push_back(what); };
    for (int s = 0; s < stages; ++s) {
      backends.push_back(
          cuda::make_backend({.products = test::tested_gemm(), .kv_dtype = kv_dtype, .graphs = graphs, .warn = warn}));
    }
    test::DecodeRig rig(std::move(backends), {.family = family,
                                              .host_page_count = kHostPages,
                                              .activations_to_host = to_host,
                                              .sequence_count = kSequences});
    rig.prefill();
    for (const size_t count : {3, 3, 3, 2, 3, 1}) rig.decode(count);
    drawn.push_back(rig.drawn());
    pages.push_back(rig.pages());
    REQUIRE(graphs_less == std::vector<std::string>{});
  }
  REQUIRE(drawn[0][0].size() == 7);
  REQUIRE(pages[1] == pages[0]);
  for (size_t setting = 1; setting < drawn.size(); ++setting) {
    CAPTURE(family, enum_name(kv_dtype), setting);
    test::require_same(drawn[setting], drawn[0]);
  }
}

TEST_CASE("drafts and graphs of draft steps change no bit") {
  // The last sequence's answer begins a second split of keys, or the prompts are short.
  const auto& [family, growth] =
      GENERATE(from_range(test::drawn_from<std::pair<std::string, size_t>>({{"qwen2", 121},
                                                                            {"qwen3moe", 6},
                                                                            {"llama4", 26},
                                                                            {"deepseek-v2-lite", 121},
                                                                            {"qwen3next", 6},
                                                                            {"kimi-linear", 6},
                                                                            {"lfm2", 7},
                                                                            {"gguf-llama", 6},
                                                                            {"gguf-qwen3moe", 6},
                                                                            {"granite4-dense", 6}})));
  constexpr size_t kSequences = 3;
  constexpr size_t kDraws = 20;
  constexpr uint32_t kHostPages = 2 * kSequences * test::DecodeRig::kPagesEach;
  const auto make_rig = [&](int stages, bool graphs) {
    std::vector<std::unique_ptr<tensor::Backend>> backends;
    for (int s = 0; s < stages; ++s) backends.push_back(cuda::make_backend({.device = 0, .graphs = graphs}));
    return test::DecodeRig(std::move(backends), {.family = family,
                                                 .host_page_count = kHostPages,
                                                 .sequence_count = kSequences,
                                                 .first_prompt = 3,
                                                 .prompt_growth = growth,
                                                 .draft_rows = 18});
  };
  test::DecodeRig without = make_rig(1, false);
  without.prefill();
  for (size_t i = 0; i < kDraws; ++i) without.decode();
  std::vector<std::vector<std::byte>> pages;
  for (const auto& [stages, graphs] : {std::pair{1, false}, std::pair{1, true}, std::pair{2, true}}) {
    CAPTURE(family, stages, graphs);
    test::DecodeRig rig = make_rig(stages, graphs);
    rig.prefill();
    std::minstd_rand random(3);
    for (int i = 0; i < 12; ++i) {
      const size_t count = i % 4 == 3 ? 2 : kSequences;
      rig.decode(test::random_drafts(without.drawn(), rig.drawn(), count, 6, random));
    }
    REQUIRE((rig.graph_stats()[static_cast<size_t>(tensor::GraphOutcome::kReplayed)] > 0) == graphs);
    for (size_t s = 0; s < kSequences; ++s) {
      const auto& own = rig.drawn()[s];
      REQUIRE(own.size() > 10);
      for (size_t i = 0; i < std::min(own.size(), without.drawn()[s].size()); ++i)
        test::require_same(own[i], without.drawn()[s][i]);
    }
    pages.push_back(rig.pages());
  }
  REQUIRE(pages[1] == pages[0]);
}

TEST_CASE("stages and chunks and company change no bit of CUDA logits") {
  const test::GoldenFamily family = test::read_golden_family(GENERATE(from_range(test::drawn_from<std::string>(
      {"qwen2",         "qwen3moe",         "mixtral",    "gpt_oss",         "gemma2",
       "glm4moe",       "deepseek-v3",      "qwen3next",  "kimi-linear",     "granite4-dense",
       "lfm2",          "gemma4",           "gemma4-moe", "gemma4-e",        "llama4",
       "nemotronh-moe", "nemotronh-latent", "falcon-h1",  "falcon-h1-plain", "falcon-h1-biases",
       "gpt_oss-mxfp4", "gguf-llama",       "gguf-qwen2", "gguf-mixtral",    "gguf-qwen3moe",
       "gguf-k",        "gguf-k-low"}))));
  const auto checkpoint = model::Checkpoint::open(family.folder).value();
  const model::ModelConfig config = model::read_config(family.folder).value();
  const auto backend = cuda::make_backend({.products = test::tested_gemm()});
  const size_t max_tokens = family.name == "llama4" ? 70 : 40;  // beyond a chunk of 64 that attention sees
  test::Sequences sequences;
  for (const test::GoldenPrompt& prompt : family.prompts) {
    std::vector<TokenId>& tokens = sequences.emplace_back(prompt.sequence());
    tokens.resize(std::min(tokens.size(), max_tokens));
  }
  test::TestPipeline whole(*checkpoint, config, *backend, {.stage_count = 1});
  const test::Logits wanted = run_alone(whole, sequences, SIZE_MAX / 2, 1);
  test::TestPipeline pipeline(*checkpoint, config, *backend, {.stage_count = 2, .page_size = 5, .page_count = 160});
  for (const size_t chunk : {SIZE_MAX / 2, size_t{13}}) {
    CAPTURE(family.name, chunk);
    REQUIRE(test::same_bits(run_alone(pipeline, sequences, chunk, 2), wanted));
    REQUIRE(test::same_bits(run_batched(pipeline, sequences, chunk, 3), wanted));
  }
}

TEST_CASE("ranks that share a GPU change no bit of CUDA logits") {
  constexpr size_t kMaxTokens = 24;
  constexpr size_t kPrompts = 2;
  const test::GoldenFamily family = test::read_golden_family(GENERATE(from_range(test::drawn_from<std::string>(
      {"qwen2",        "qwen3moe",         "mixtral",          "llama-untied", "gpt_oss",
       "qwen2moe",     "gemma2",           "deepseek-v2-lite", "qwen3next",    "kimi-linear",
       "lfm2",         "gemma4",           "gemma4-moe",       "llama4",       "nemotronh-moe",
       "falcon-h1",    "falcon-h1-biases", "gpt_oss-mxfp4",    "gguf-llama",   "gguf-qwen2",
       "gguf-mixtral", "gguf-qwen3moe",    "gguf-k",           "gguf-k-low"}))));
  const auto checkpoint = model::Checkpoint::open(family.folder).value();
  const model::ModelConfig config = model::read_config(family.folder).value();
  test::Sequences sequences;
  for (size_t i = 0; i < kPrompts; ++i) {
    std::vector<TokenId>& tokens = sequences.emplace_back(family.prompts.at(i).sequence());
    tokens.resize(std::min(tokens.size(), kMaxTokens));
  }
  std::vector<std::unique_ptr<tensor::Backend>> backends;
  for (int rank = 0; rank < 4; ++rank) {
    backends.push_back(
        cuda::make_backend({.products = test::tested_gemm(), .rank_exchange = cuda::RankExchange::kCopies}));
  }
  test::TestPipeline whole(*checkpoint, config, *backends[0], {.stage_count = 1});
  const test::Logits wanted = run_alone(whole, sequences, SIZE_MAX / 2, 1);
  for (const size_t count : {2, 4}) {
    if (model::check_ranks(config, static_cast<int32_t>(count)).has_error()) continue;
    CAPTURE(family.name, count);
    std::vector<tensor::Backend*> ranks;
    for (size_t rank = 0; rank < count; ++rank) ranks.push_back(backends[rank].get());
    const int32_t stages = count == 2 ? 1 : 2;
    test::TestPipeline pipeline(*checkpoint, config, ranks, {.stage_count = stages});
    REQUIRE(test::same_bits(run_alone(pipeline, sequences, SIZE_MAX / 2, 2), wanted));
    REQUIRE(test::same_bits(run_batched(pipeline, sequences, 13, 3), wanted));
  }
}
