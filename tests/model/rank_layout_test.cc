#include "model/rank_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <set>

#include "cpu/cpu_backend.h"
#include "model/families/read_config.h"
#include "model/plain_model.h"
#include "model/random_model.h"
#include "model/stage_model.h"
#include "model/test_pipeline.h"
#include "model/weight_memory.h"
#include "support/mentions.h"

using namespace millrace;
using namespace millrace::model;
using millrace::test::Mentions;
using tensor::TermRange;
using test::TestPipeline;

namespace {

/// Returns a model with odd sizes: 33 tokens, 8 heads of 12 channels for 2 KV heads, biases and norms of heads.
ModelConfig odd_config() {
  ModelConfig config = test::plain_model({.architecture = "Qwen2ForCausalLM",
                                          .vocab_size = 33,
                                          .hidden_size = 24,
                                          .intermediate_size = 72,
                                          .layer_count = 3,
                                          .head_count = 8,
                                          .kv_head_count = 2,
                                          .head_dim = 12,
                                          .max_position = 64});
  test::set_biases_and_norms(config);
  return config;
}

/// Returns such a model with eleven experts in its last two layers.
ModelConfig odd_sparse_config() {
  ModelConfig config = odd_config();
  const MoeConfig moe{.expert_count = 11, .experts_per_token = 4, .intermediate_size = 20, .renormalize = true};
  test::set_experts(config, moe, {false, true, true});
  return config;
}

std::vector<std::unique_ptr<tensor::Backend>> make_backends(int32_t count, tensor::DType dtype) {
  std::vector<std::unique_ptr<tensor::Backend>> backends;
  for (int32_t rank = 0; rank < count; ++rank)
    backends.push_back(cpu::make_backend({.threads = 1, .compute_dtype = dtype}));
  return backends;
}

std::vector<tensor::Backend*> first_of(const std::vector<std::unique_ptr<tensor::Backend>>& backends, int32_t count) {
  std::vector<tensor::Backend*> some;
  for (int32_t rank = 0; rank < count; ++rank) some.push_back(backends[static_cast<size_t>(rank)].get());
  return some;
}

std::vector<TokenId> prompt_of(size_t count, int32_t vocab) {
  std::vector<TokenId> tokens;
  for (size_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<TokenId>((i * i + 7 * i + 3) % static_cast<size_t>(vocab)));
  return tokens;
}

}  // namespace

TEST_CASE("a rank has its heads and the tokens of its logits") {
  const ModelConfig config = odd_config();
  const RankLayout second = rank_layout(config, {1, 4});
  REQUIRE(second.layer(0).heads == TermRange{2, 4});
  REQUIRE(second.layer(0).kv_heads == TermRange{0, 1});  // shared by two ranks
  REQUIRE(second.logit_columns == 9);
  REQUIRE(second.vocabulary == TermRange{9, 18});
  const RankLayout last = rank_layout(config, {3, 4});
  REQUIRE(last.layer(0).kv_heads == TermRange{1, 2});
  REQUIRE(last.vocabulary == TermRange{27, 33});
  REQUIRE(last.layer(0).head_outputs.owned() == TermRange{72, 96});
  REQUIRE(last.layer(0).features.owned() == TermRange{48, 72});
  const RankLayout alone = rank_layout(config, {});
  REQUIRE(alone.layer(0).heads == TermRange{0, 8});
  REQUIRE(alone.layer(0).kv_heads == TermRange{0, 2});
  REQUIRE(alone.logit_columns == 33);
  // More ranks than tokens leave some without any.
  ModelConfig few_tokens = config;
  few_tokens.vocab_size = 9;
  REQUIRE(rank_layout(few_tokens, {3, 4}).vocabulary == TermRange{9, 9});
}

TEST_CASE("a model that cannot be divided is refused by its size") {
  const auto refuses = [](ModelConfig config, int32_t ranks, const auto& wanted) {
    const Result<void> checked = check_ranks(config, ranks);
    REQUIRE(checked.has_error());
    REQUIRE(checked.error().code == ErrorCode::kInvalidArgument);
    REQUIRE_THAT(checked.error().message, wanted);
  };
  ModelConfig config = odd_config();
  for (const int32_t ranks : {1, 2, 4, 8}) REQUIRE(check_ranks(config, ranks).has_value());
  refuses(config, 3, Mentions("3 tensor-parallel ranks", "1, 2, 4 or 8"));
  test::set_heads(config, 14, 2, 12);
  refuses(config, 4, Mentions("num_attention_heads 14", "that work: 1, 2"));
  config = odd_config();
  test::set_heads(config, 24, 3, 12);
  refuses(config, 2, Mentions("num_key_value_heads 3", "that work: 1"));
  config = odd_config();
  config.hidden_size = 20;
  refuses(config, 8, Mentions("hidden_size 20", "that work: 1, 2, 4"));
  config = odd_config();
  test::for_layers(config, [](LayerConfig& layer) { layer.feed_forward.width = 24; });
  refuses(config, 4, Mentions("intermediate_size 24", "that work: 1, 2"));
  config = odd_config();
  config.quantization = Quantization::kW8;
  refuses(config, 2, Mentions("o_proj's width 96", "group of 32", "w8", "that work: 1"));
  config.quantization = Quantization::kW8A8Int8;
  REQUIRE(check_ranks(config, 8).has_value());
  config = odd_sparse_config();
  test::for_experts(config, [](MoeConfig& moe) { moe.expert_count = 3; });
  refuses(config, 4, Mentions("3 experts", "4 ranks", "that work: 1, 2"));
}

TEST_CASE("ranks of a model with odd sizes compute the same bits") {
  const bool tied_embeddings = GENERATE(false, true);
  const bool sparse = GENERATE(false, true);
  const auto dtype = GENERATE(tensor::DType::kF32, tensor::DType::kBF16);
  ModelConfig config = sparse ? odd_sparse_config() : odd_config();
  config.tied_embeddings = tied_embeddings;
  const test::RandomModel random(config, 23);
  const test::TemporaryFolder folder;
  folder.write("model.safetensors", test::safetensors_text(random.tensors()));
  const auto checkpoint = Checkpoint::open(folder.path()).value();
  config.quantization = GENERATE(Quantization::kNone, Quantization::kW8A8Int8);
  const auto backends = make_backends(8, dtype);
  const std::vector<TokenId> tokens = prompt_of(30, config.vocab_size);
  std::vector<float> wanted;
  for (const int32_t ranks : {1, 2, 4, 8}) {
    for (const int32_t stages : {1, 2}) {
      CAPTURE(tied_embeddings, sparse, tensor::to_string(dtype), to_string(config.quantization), ranks, stages);
      TestPipeline pipeline(*checkpoint, config, first_of(backends, ranks), {.stage_count = stages});
      pipeline.start({30}, 3);
      const std::vector<float> got = pipeline.run({{.tokens = tokens}});
      if (wanted.empty()) wanted = got;
      REQUIRE(got.size() == wanted.size());
      REQUIRE(std::memcmp(got.data(), wanted.data(), got.size() * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("a rank loads its part and has a fingerprint of its own") {
  const ModelConfig config = odd_sparse_config();
  const test::RandomModel random(config, 29);
  const test::TemporaryFolder folder;
  folder.write("model.safetensors", test::safetensors_text(random.tensors()));
  const auto checkpoint = Checkpoint::open(folder.path()).value();
  const auto backends = make_backends(1, tensor::DType::kF32);
  const StageSpan whole{{0, 3}, true, true};
  const StageLimits limits{.max_batch_tokens = 1, .max_logit_rows = 1};
  std::set<StageFingerprint> fingerprints;
  const auto load = [&](tensor::RankPosition position) {
    return StageModel::load(*checkpoint, config, whole, *backends[0], limits,
                            {.with_fingerprint = true, .position = position})
        .value();
  };
  const auto alone = load({});
  fingerprints.insert(alone->fingerprint().value());
  for (const int32_t ranks : {2, 4}) {
    uint64_t bytes = 0;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      const auto model = load({rank, ranks});
      REQUIRE(fingerprints.insert(model->fingerprint().value()).second);
      REQUIRE(model->page_bytes(16) == alone->page_bytes(16) / 2);  // one of two KV heads
      bytes += model->checkpoint_bytes();
    }
    // All ranks have the embedding, the norms, the routers and the bias of o_proj; with 4 a KV head is on two.
    REQUIRE(bytes > alone->checkpoint_bytes());
    REQUIRE(bytes < alone->checkpoint_bytes() + alone->checkpoint_bytes() / 2);
  }
  const auto refused = StageModel::load(*checkpoint, config, whole, *backends[0], limits, {.position = {0, 3}});
  REQUIRE(refused.error().code == ErrorCode::kInvalidArgument);
}

TEST_CASE("experts are divided over the ranks of several rings") {
  const ModelConfig config = odd_sparse_config();
  const auto sparse = static_cast<int32_t>(
      std::ranges::find_if(config.layers, [](const LayerConfig& each) { return each.feed_forward.moe.has_value(); }) -
      config.layers.begin());
  int64_t end = 0;
  for (int32_t ring = 0; ring < 2; ++ring) {
    for (int32_t rank = 0; rank < 2; ++rank) {
      const RankLayout layout = rank_layout(config, {rank, 2}, tensor::RankPosition{2 * ring + rank, 4});
      REQUIRE(layout.shares_experts());
      REQUIRE(layout.layer(sparse).heads == rank_layout(config, {rank, 2}).layer(sparse).heads);
      REQUIRE(layout.layer(sparse).experts.owned().begin == end);
      end = layout.layer(sparse).experts.owned().end;
    }
  }
  REQUIRE(end == config.layer(sparse).feed_forward.moe->expert_count);
  REQUIRE_FALSE(rank_layout(config, {1, 2}).shares_experts());
  REQUIRE_FALSE(check_shared_experts(config, 2, 2).has_error());
  const auto refusal = [](const ModelConfig& of, int32_t rings, int32_t ranks) {
    const auto refused = check_shared_experts(of, rings, ranks);
    REQUIRE(refused.error().code == ErrorCode::kInvalidArgument);
    return refused.error().message;
  };
  REQUIRE_THAT(refusal(odd_config(), 2, 1), Mentions("no experts"));
  REQUIRE_THAT(refusal(config, 3, 2), Mentions("3 rings of 2 ranks", "6 groups"));
  ModelConfig few = config;
  few.layers[static_cast<size_t>(sparse)].feed_forward.moe->expert_count = 3;
  REQUIRE_THAT(refusal(few, 4, 2), Mentions("3 experts", "4 rings of 2 ranks"));
}

TEST_CASE("rings that share experts have the memory of each expert once") {
  const ModelConfig config = odd_sparse_config();
  const StageSpan whole{.layers = {0, config.layer_count()}, .first = true, .last = true};
  const WeightMemory alone = weight_memory(config, whole, rank_layout(config, {}), 8);
  REQUIRE(alone.expert_bytes > 0);
  double expert_bytes = 0;
  for (int32_t ring = 0; ring < 4; ++ring) {
    const RankLayout layout = rank_layout(config, {}, tensor::RankPosition{.rank = ring, .size = 4});
    const WeightMemory own = weight_memory(config, whole, layout, 8);
    REQUIRE(own.bytes - own.expert_bytes == alone.bytes - alone.expert_bytes);
    expert_bytes += own.expert_bytes;
  }
  REQUIRE(expert_bytes == alone.expert_bytes);
}

TEST_CASE("what a rank throws ends the pass on all ranks") {
  const ModelConfig config = odd_config();
  const test::RandomModel random(config, 31);
  const test::TemporaryFolder folder;
  folder.write("model.safetensors", test::safetensors_text(random.tensors()));
  const auto checkpoint = Checkpoint::open(folder.path()).value();
  const auto backends = make_backends(2, tensor::DType::kF32);
  TestPipeline pipeline(*checkpoint, config, first_of(backends, 2), {.stage_count = 1});
  pipeline.start({4}, 1);
  const auto fail = [](size_t, tensor::Matrix) { throw std::runtime_error("no room for logits"); };
  REQUIRE_THROWS_WITH(pipeline.run({{.tokens = {1, 2, 3, 4}}}, fail), "no room for logits");
  REQUIRE_THROWS_WITH(pipeline.run({{.tokens = {1, 2, 3, 4}}}, fail), Catch::Contains("a rank has failed"));
}
