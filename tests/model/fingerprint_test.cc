#include "model/fingerprint.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <set>

#include "cpu/cpu_backend.h"
#include "model/plain_model.h"
#include "model/random_model.h"
#include "model/stage_model.h"
#include "model/tensor_list.h"

using namespace millrace;
using namespace millrace::model;

namespace {

ModelConfig small_config(bool tied_embeddings) {
  ModelConfig config = test::plain_model({.architecture = "Qwen2ForCausalLM",
                                          .vocab_size = 20,
                                          .hidden_size = 16,
                                          .intermediate_size = 24,
                                          .layer_count = 3,
                                          .head_count = 2,
                                          .kv_head_count = 1,
                                          .head_dim = 8,
                                          .max_position = 64});
  config.tied_embeddings = tied_embeddings;
  test::set_biases_and_norms(config);
  return config;
}

StageFingerprint loaded(const std::vector<test::TensorToWrite>& tensors, const ModelConfig& config, StageSpan span,
                        tensor::DType dtype = tensor::DType::kF32, std::optional<tensor::RankPosition> experts = {}) {
  const test::TemporaryFolder folder;
  folder.write("model.safetensors", test::safetensors_text(tensors));
  const auto checkpoint = Checkpoint::open(folder.path()).value();
  const auto backend = cpu::make_backend({.threads = 1, .compute_dtype = dtype});
  const StageLimits limits{.max_batch_tokens = 1, .max_logit_rows = 1};
  const auto stage =
      StageModel::load(*checkpoint, config, span, *backend, limits, {.with_fingerprint = true, .experts = experts})
          .value();
  return stage->fingerprint().value();
}

constexpr StageSpan kWhole{{0, 3}, true, true};

}  // namespace

TEST_CASE("the fingerprint of a stage changes with each of its tensors") {
  for (const bool tied_embeddings : {true, false}) {
    const ModelConfig config = small_config(tied_embeddings);
    const auto tensors = test::RandomModel(config, 1).tensors();
    for (const StageSpan& span : {kWhole, StageSpan{{0, 1}, true, false}, StageSpan{{1, 3}, false, true}}) {
      CAPTURE(tied_embeddings, span.layers.begin, span.layers.end);
      const StageFingerprint wanted = loaded(tensors, config, span);
      std::set<std::string> own;
      for (const TensorSpec& spec : stage_tensors(config, span)) own.insert(spec.name);
      for (size_t i = 0; i < tensors.size(); ++i) {
        auto changed = tensors;
        changed[i].values.back() += 1;
        CAPTURE(tensors[i].name);
        REQUIRE((loaded(changed, config, span) != wanted) == own.contains(tensors[i].name));
      }
    }
  }
}

TEST_CASE("a fingerprint covers tensors and arithmetic but no kernels") {
  const ModelConfig config = small_config(false);
  const auto tensors = test::RandomModel(config, 2).tensors();
  const StageFingerprint wanted = loaded(tensors, config, kWhole);
  REQUIRE(loaded(tensors, config, kWhole, tensor::DType::kBF16) == wanted);
  REQUIRE(wanted.common.to_string().size() == 32);
  const auto named = [](std::vector<test::TensorToWrite>& all, const std::string& name) {
    return std::ranges::find(all, name, &test::TensorToWrite::name);
  };
  auto swapped = tensors;
  std::swap(named(swapped, "model.layers.0.mlp.gate_proj.weight")->values,
            named(swapped, "model.layers.0.mlp.up_proj.weight")->values);
  REQUIRE(loaded(swapped, config, kWhole) != wanted);
  // One number is enough, wherever it lies.
  for (const size_t part : {1, 2, 3, 5, 7}) {
    auto changed = tensors;
    std::vector<float>& values = named(changed, std::string(kEmbeddingName))->values;
    values[values.size() / part - 1] += 1;
    REQUIRE(loaded(changed, config, kWhole) != wanted);
  }
  ModelConfig other = config;
  other.norm_epsilon = 1e-6f;
  REQUIRE(loaded(tensors, other, kWhole) != wanted);
  REQUIRE(fingerprint(other) != fingerprint(config));
  other = config;
  other.ropes.front().theta *= 2;
  REQUIRE(loaded(tensors, other, kWhole) != wanted);
  REQUIRE(fingerprint(other) != fingerprint(config));
  other = config;
  other.layers[1].attention.window = 8;
  REQUIRE(loaded(tensors, other, kWhole) != wanted);
}

TEST_CASE("a fingerprint covers experts under any arithmetic") {
  ModelConfig config = small_config(false);
  const MoeConfig moe{.expert_count = 4, .experts_per_token = 2, .intermediate_size = 12};
  test::set_experts(config, moe, {true, false, true});
  const auto tensors = test::RandomModel(config, 3).tensors();
  const StageFingerprint wanted = loaded(tensors, config, kWhole);
  const auto differs = [&](const std::function<void(MoeConfig&)>& change) {
    ModelConfig other = config;
    test::for_experts(other, change);
    return fingerprint(other) != fingerprint(config);
  };
  REQUIRE(differs([](MoeConfig& other) { other.expert_count = 5; }));
  REQUIRE(differs([](MoeConfig& other) { other.experts_per_token = 3; }));
  REQUIRE(differs([](MoeConfig& other) { other.intermediate_size = 13; }));
  REQUIRE(differs([](MoeConfig& other) { other.renormalize = true; }));
  for (const std::vector<bool>& sparse : {std::vector{true, true, true}, std::vector{false, false, false}}) {
    ModelConfig other = config;
    test::set_experts(other, moe, sparse);
    REQUIRE(fingerprint(other) != fingerprint(config));
  }
  ModelConfig fewer = config;
  test::for_experts(fewer, [](MoeConfig& other) { other.experts_per_token = 1; });
  REQUIRE(loaded(tensors, fewer, kWhole) != wanted);
  auto swapped = tensors;
  const auto named = [&](const std::string& name) {
    return std::ranges::find(swapped, name, &test::TensorToWrite::name);
  };
  std::swap(named("model.layers.0.mlp.experts.1.up_proj.weight")->values,
            named("model.layers.0.mlp.experts.2.up_proj.weight")->values);
  REQUIRE(loaded(swapped, config, kWhole) != wanted);
}

TEST_CASE("a fingerprint covers how integers are read") {
  const ModelConfig config = small_config(true);
  const auto print = [&config](const weights::StoredWeight& weight) {
    WeightsFingerprint contents;
    contents.add(weight, false);
    return contents.finish(config, kWhole, {}).common;
  };
  const test::TemporaryFolder folder;
  const std::vector<std::byte> words(512, std::byte{0x5A});
  folder.write("model.safetensors", test::raw_safetensors_text({
                                        {"a.weight", "I32", {64, 2}, words},
                                        {"a.weight_zero_point", "I32", {2, 2}, {words.begin(), words.begin() + 16}},
                                        {"a.weight_scale", "BF16", {2, 16}, {words.begin(), words.begin() + 64}},
                                    }));
  const auto checkpoint = Checkpoint::open(folder.path()).value();
  weights::WeightFormat format{.method = weights::QuantMethod::kQuark, .bits = 4, .group_size = 32};
  std::set<std::string> found;
  weights::StoredWeight stored;
  for (const bool is_signed : {false, true}) {
    for (const bool is_in_order : {false, true}) {
      format.has_signed_codes = is_signed;
      format.is_in_order = is_in_order;
      stored = checkpoint->find_weight("a.weight", {16, 64}, format).value().value();
      found.insert(print(stored).to_string());
    }
  }
  REQUIRE(found.size() == 4);
  stored.zeros.sign_bit = 0;
  found.insert(print(stored).to_string());
  stored.zeros.order = weights::ZeroArray::Order::kAlongGroups;
  found.insert(print(stored).to_string());
  REQUIRE(found.size() == 6);
}

TEST_CASE("names of pages do not depend on how rings divide experts") {
  ModelConfig config = small_config(false);
  test::set_experts(config, {.expert_count = 8, .experts_per_token = 2, .intermediate_size = 12}, {true, false, true});
  auto tensors = test::RandomModel(config, 3).tensors();
  const auto contents = [](const StageFingerprint& stage) {
    return ring_contents({.ranks = {stage.common.to_string()}, .experts = stage.experts});
  };
  const auto name_of = [&](int32_t groups) {
    std::vector<RingContents> rings;
    for (int32_t group = 0; group < groups; ++group) {
      rings.push_back(contents(
          loaded(tensors, config, kWhole, tensor::DType::kF32, tensor::RankPosition{.rank = group, .size = groups})));
      REQUIRE(RingContents::from_words(rings.back().words()) == rings.back());
    }
    return page_fingerprint(rings);
  };
  const RingContents whole = contents(loaded(tensors, config, kWhole));
  const Fingerprint wanted = page_fingerprint({&whole, 1});
  REQUIRE(name_of(2) == wanted);
  REQUIRE(name_of(4) == wanted);
  // Each ring without its experts has the name of a model that lacks them.
  REQUIRE(wanted != whole.common);
  const RingContents dense{.common = whole.common, .experts = {}};
  REQUIRE(page_fingerprint({&dense, 1}) == whole.common);
  RingContents others = whole;
  others.common.low ^= 1;
  REQUIRE(page_fingerprint(std::vector{whole, others}) != page_fingerprint(std::vector{whole, whole}));
  REQUIRE(page_fingerprint(std::vector{whole, others}, 0) != page_fingerprint(std::vector{whole, others}, 1));
  const auto changed =
      std::ranges::find(tensors, "model.layers.2.mlp.experts.7.down_proj.weight", &test::TensorToWrite::name);
  changed->values.back() += 1;
  REQUIRE(name_of(2) != wanted);
}

TEST_CASE("the fingerprint of a ring follows from its stages in order") {
  const auto print = [](std::vector<std::string> stages) { return fingerprint(stages); };
  const Fingerprint first = print({"a", "b"});
  REQUIRE(print({"a", "b"}) == first);
  const std::vector<std::vector<std::string>> others{{"b", "a"}, {"ab"}, {"a", "b", ""}, {"a", "c"}, {"a"}, {}};
  for (const auto& other : others) REQUIRE(print(other) != first);
}
