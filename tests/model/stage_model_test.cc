#include "model/stage_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>

#include "cpu/cpu_backend.h"
#include "model/adapt_config.h"
#include "model/families/read_config.h"
#include "model/plain_model.h"
#include "model/random_model.h"
#include "model/tensor_list.h"
#include "support/captured_log.h"
#include "model/test_pipeline.h"
#include "support/mentions.h"

using namespace millrace;
using namespace millrace::model;
using millrace::test::Mentions;
using test::TestPipeline;

namespace {

std::unique_ptr<tensor::Backend> f32_backend() {
  return cpu::make_backend({.threads = 1, .compute_dtype = tensor::DType::kF32});
}

std::vector<float> pipeline_logits(const std::filesystem::path& folder, const ModelConfig& config,
                                   tensor::Backend& backend, int32_t stages, const std::vector<TokenId>& tokens) {
  const auto checkpoint = Checkpoint::open(folder).value();
  TestPipeline pipeline(*checkpoint, config, backend, {.stage_count = stages});
  pipeline.start({static_cast<int32_t>(tokens.size())}, 5);
  return pipeline.run({{.tokens = tokens}});
}

/// Writes each layer into a shard of its own, the embedding into shard 0 and the rest into the last.
void write_sharded(const test::TemporaryFolder& folder, const ModelConfig& config,
                   const std::vector<test::TensorToWrite>& tensors) {
  std::vector<std::vector<test::TensorToWrite>> shards(static_cast<size_t>(config.layer_count()) + 2);
  std::string map;
  for (const test::TensorToWrite& tensor : tensors) {
    size_t shard = shards.size() - 1;
    if (tensor.name == kEmbeddingName) shard = 0;
    for (int32_t layer = 0; layer < config.layer_count(); ++layer)
      if (tensor.name.find(layer_tensor_name(layer, "")) == 0) shard = static_cast<size_t>(layer) + 1;
    shards[shard].push_back(tensor);
    map += fmt::format("{}\"{}\":\"shard-{}.safetensors\"", map.empty() ? "" : ",", tensor.name, shard);
  }
  for (size_t shard = 0; shard < shards.size(); ++shard)
    folder.write(fmt::format("shard-{}.safetensors", shard), test::safetensors_text(shards[shard]));
  folder.write("model.safetensors.index.json", "{\"weight_map\":{" + map + "}}");
}

constexpr StageLimits kLimits{.max_batch_tokens = 8, .max_logit_rows = 4};

/// Copies a layer of pages when the forward pass waits for it, and no sooner.
class LazyGate final : public tensor::LayerGate {
 public:
  LazyGate(tensor::KvCache& cache, std::vector<tensor::PageTransfer> pages) : cache_(cache), pages_(std::move(pages)) {}
  void open(int32_t) override {}
  void fail() override {}
  void wait_for(int32_t layer) override {
    passed.push_back(layer);
    cache_.write_layer(layer, pages_);
  }
  std::vector<int32_t> passed;

 private:
  tensor::KvCache& cache_;
  const std::vector<tensor::PageTransfer> pages_;
};

}  // namespace

TEST_CASE("the attention of a layer waits only for copies of its layer") {
  ModelConfig config = test::five_layer_model();
  const test::RandomModel random(config, 17);
  const test::TemporaryFolder folder;
  folder.write("model.safetensors", test::safetensors_text(random.tensors()));
  const auto checkpoint = Checkpoint::open(folder.path()).value();
  const auto backend = f32_backend();
  const auto model = StageModel::load(*checkpoint, config, {.layers = {0, 5}, .last = true}, *backend, kLimits).value();
  model->allocate_cache(4, 4);
  const auto hidden = model->allocate_hidden();
  const auto tokens = test::spread_tokens(8, config.vocab_size);
  const auto forward = [&](std::vector<PageId> pages, int32_t prefix, ForwardInput input) {
    const std::vector<int32_t> row_begin{0, static_cast<int32_t>(input.tokens.size())};
    const std::vector<int32_t> page_begin{0, static_cast<int32_t>(pages.size())};
    const tensor::BatchLayout layout{
        .row_begin = row_begin, .prefix = std::span(&prefix, 1), .page_begin = page_begin, .pages = pages};
    const tensor::Matrix rows = model->hidden_view(hidden, layout.row_count());
    std::vector<float> out(static_cast<size_t>(rows.rows * rows.cols));
    backend->run_and_wait([&] {
      model->forward({input.tokens, layout, rows, input.loads});
      backend->copy_to_host(rows.data, std::as_writable_bytes(std::span(out)));
    });
    return out;
  };
  const tensor::BatchLayout none;
  const std::vector<TokenId> next{5, 6};
  (void)forward({PageId(0), PageId(1)}, 0, {tokens, none, {}});
  std::vector<std::byte> stored(2 * model->cache().page_bytes());
  const std::vector<tensor::PageTransfer> places{{PageId(0), stored.data()},
                                                 {PageId(1), stored.data() + model->cache().page_bytes()}};
  model->cache().read_pages(places);
  const auto wanted = forward({PageId(0), PageId(1), PageId(2)}, 8, {next, none, {}});

  const std::vector<TokenId> others{9, 9, 9, 9, 9, 9, 9, 9};
  (void)forward({PageId(0), PageId(1)}, 0, {others, none, {}});
  const auto gate = std::make_shared<LazyGate>(model->cache(), places);
  const std::vector<std::shared_ptr<tensor::LayerGate>> loads{gate};
  REQUIRE(forward({PageId(0), PageId(1), PageId(2)}, 8, {next, none, {}, loads}) == wanted);
  REQUIRE(gate->passed == std::vector<int32_t>{0, 1, 2, 3, 4});
}

TEST_CASE("logits follow the definition of a block under every switch") {
  ModelConfig config = test::five_layer_model();
  SECTION("plain") {}
  SECTION("tied") {
    config.tied_embeddings = true;
  }
  SECTION("biases of q, k, v") {
    test::for_layers(config, [](LayerConfig& layer) { layer.attention.qkv_bias = true; });
  }
  SECTION("biases of q, k, v and o") {
    test::for_layers(config, [](LayerConfig& layer) { layer.attention.qkv_bias = layer.attention.output_bias = true; });
  }
  SECTION("norms of q and k") {
    test::for_layers(config, [](LayerConfig& layer) { layer.attention.qk_norm = QkNorm::kPerHead; });
  }
  SECTION("sliding windows on some layers") {
    test::set_windows(config, {0, 4, 1, 0, 33});
  }
  SECTION("one key per query head, heads wider than hidden") {
    test::set_heads(config, 6, 6, 10);
  }
  SECTION("many query heads per key head") {
    test::set_heads(config, 70, 1, 4);
  }
  SECTION("yarn") {
    config.ropes.front() = {.kind = RopeKind::kYarn, .theta = 10000.0, .factor = 4.0, .original_max_position = 16};
  }
  SECTION("experts on some layers") {
    config = test::five_layer_mixture();
  }
  SECTION("experts whose weights are renormalize, by other names, on every layer") {
    config = test::five_layer_mixture();
    config.names = {.router = "block_sparse_moe.gate",
                    .experts = "block_sparse_moe.experts.",
                    .expert_gate = "w1",
                    .expert_up = "w3",
                    .expert_down = "w2"};
    const MoeConfig moe{.expert_count = 7, .experts_per_token = 3, .intermediate_size = 20, .renormalize = true};
    test::set_experts(config, moe, std::vector<bool>(5, true));
  }
  SECTION("one expert") {
    config = test::five_layer_mixture();
    test::for_experts(config, [](MoeConfig& moe) { moe.expert_count = moe.experts_per_token = 1; });
  }
  SECTION("all experts") {
    config = test::five_layer_mixture();
    test::for_experts(config, [](MoeConfig& moe) { moe.experts_per_token = 7; });
  }
  SECTION("linear") {
    config.ropes.front() = {.kind = RopeKind::kLinear, .theta = 10000.0, .factor = 4.0};
  }
  const test::RandomModel random(config, 11);
  const test::TemporaryFolder folder;
  folder.write("model.safetensors", test::safetensors_text(random.tensors()));
  const auto tokens = test::spread_tokens(40, config.vocab_size);
  const auto wanted = random.logits(tokens);
  const auto backend = f32_backend();
  for (const int32_t stages : {1, 3, 5}) {
    const auto found = pipeline_logits(folder.path(), config, *backend, stages, tokens);
    REQUIRE(found.size() == wanted.size());
    double worst = 0.0;
    for (size_t i = 0; i < found.size(); ++i) {
      const double difference = std::fabs(static_cast<double>(found[i]) - wanted[i]);
      if (std::isnan(difference) || difference > worst) worst = difference;
    }
    CAPTURE(stages);
    REQUIRE(worst < 5e-5);
  }
}

TEST_CASE("a sharded checkpoint computes what a single file does") {
  const ModelConfig config = test::five_layer_model();
  const test::RandomModel random(config, 12);
  const test::TemporaryFolder single;
  const test::TemporaryFolder sharded;
  single.write("model.safetensors", test::safetensors_text(random.tensors()));
  write_sharded(sharded, config, random.tensors());
  const auto backend = f32_backend();
  const auto tokens = test::spread_tokens(20, config.vocab_size);
  REQUIRE(pipeline_logits(single.path(), config, *backend, 1, tokens) ==
          pipeline_logits(sharded.path(), config, *backend, 2, tokens));
}

TEST_CASE("a stage needs the shards of its own layers only") {
  const ModelConfig config = test::five_layer_model();
  const test::RandomModel random(config, 13);
  const test::TemporaryFolder folder;
  write_sharded(folder, config, random.tensors());
  for (const int absent : {0, 1, 2, 5, 6})
    std::filesystem::remove(folder.path() / fmt::format("shard-{}.safetensors", absent));
  const auto checkpoint = Checkpoint::open(folder.path()).value();
  const auto backend = f32_backend();
  const StageSpan middle{.layers = {2, 4}, .first = false, .last = false};
  std::vector<LoadProgress> steps;
  const auto stage = StageModel::load(
      *checkpoint, config, middle, *backend, kLimits,
      {.progress = [&](const LoadProgress& step) { steps.push_back(step); }, .with_fingerprint = true});
  REQUIRE(stage.has_value());
  REQUIRE((*stage)->checkpoint_bytes() == parameter_count(config, middle) * 4);
  REQUIRE(steps.front().tensors_done == 0);
  REQUIRE(steps.front().tensors_total == 18);
  REQUIRE(steps.back().tensors_done == 18);
  REQUIRE(steps.back().bytes_done == steps.back().bytes_total);
  REQUIRE(steps.back().bytes_total == (*stage)->checkpoint_bytes());
  REQUIRE((*stage)->fingerprint().has_value());

  const auto wider =
      StageModel::load(*checkpoint, config, {.layers = {2, 5}, .first = false, .last = false}, *backend, kLimits);
  REQUIRE(wider.error().code == ErrorCode::kData);
  const std::string path = folder.path().string();
  REQUIRE(wider.error().message ==
          path +
              "/model.safetensors.index.json: puts tensor 'model.layers.4.input_layernorm.weight' into "
              "shard-5.safetensors, but " +
              path + "/shard-5.safetensors: cannot be opened: No such file or directory");
}

TEST_CASE("a checkpoint that contradicts its config is refused early") {
  const ModelConfig config = test::five_layer_model();
  std::vector<test::TensorToWrite> tensors = test::RandomModel(config, 14).tensors();
  const test::TemporaryFolder folder;
  const std::string path = folder.path().string();
  const auto backend = f32_backend();
  const auto message = [&](const ModelConfig& claimed) {
    folder.write("model.safetensors", test::safetensors_text(tensors));
    const auto checkpoint = Checkpoint::open(folder.path()).value();
    size_t done = 0;
    const auto stage = StageModel::load(*checkpoint, claimed, {.layers = {0, claimed.layer_count()}}, *backend, kLimits,
                                        {.progress = [&](const LoadProgress& step) { done = step.tensors_done; }});
    REQUIRE(done == 0);
    return stage.error().message;
  };
  ModelConfig wider = config;
  test::for_layers(wider, [](LayerConfig& layer) { layer.feed_forward.width = 48; });
  REQUIRE_THAT(message(wider),
               Mentions(path, "'model.layers.0.mlp.gate_proj.weight'", "[40, 24]", "config.json", "[48, 24]"));
  ModelConfig biased = config;
  test::for_layers(biased, [](LayerConfig& layer) { layer.attention.qkv_bias = true; });
  REQUIRE_THAT(message(biased), Mentions(path, "/model.safetensors", "'model.layers.0.self_attn.q_proj.bias'"));
  ModelConfig deeper = config;
  deeper.layers.push_back(deeper.layers.back());
  REQUIRE_THAT(message(deeper), Mentions(path, "/model.safetensors", "'model.layers.5.input_layernorm.weight'"));
  std::erase_if(tensors, [](const auto& tensor) { return tensor.name == "lm_head.weight"; });
  REQUIRE_THAT(message(config), Mentions(path, "/model.safetensors", "'lm_head.weight'"));
}

TEST_CASE("a head counts unless it equals its tied embedding") {
  const ModelConfig untied = test::five_layer_model();
  ModelConfig tied = untied;
  tied.tied_embeddings = true;
  std::vector<test::TensorToWrite> tensors = test::RandomModel(untied, 19).tensors();
  const auto find = [&](std::string_view name) { return std::ranges::find(tensors, name, &test::TensorToWrite::name); };
  const auto resolved = [&](bool sharded) {
    const test::TemporaryFolder folder;
    if (sharded)
      write_sharded(folder, untied, tensors);
    else
      folder.write("model.safetensors", test::safetensors_text(tensors));
    const auto checkpoint = Checkpoint::open(folder.path()).value();
    ModelConfig config = tied;
    const test::CapturedLog log;
    REQUIRE(untie_separate_head(*checkpoint, config).has_value());
    REQUIRE(log.count("lm_head.weight differs from model.embed_tokens.weight") == (config == tied ? 0 : 1));
    ModelConfig same = untied;
    REQUIRE(untie_separate_head(*checkpoint, same).has_value());
    REQUIRE(same == untied);
    return config;
  };
  for (const bool sharded : {false, true}) REQUIRE(resolved(sharded) == untied);
  SECTION("the last element") {
    find(kHeadName)->values = find(kEmbeddingName)->values;
    REQUIRE(resolved(false) == tied);
    REQUIRE(resolved(true) == tied);
    find(kHeadName)->values.back() += 1.0f;
    REQUIRE(resolved(false) == untied);
  }
  SECTION("the shape") {
    find(kHeadName)->values = find(kEmbeddingName)->values;
    std::ranges::reverse(find(kHeadName)->shape);
    REQUIRE(resolved(false) == untied);
  }
  SECTION("none") {
    tensors.erase(find(kHeadName));
    REQUIRE(resolved(false) == tied);
  }
}

TEST_CASE("parameters are counted from the config") {
  ModelConfig config = test::five_layer_model();
  const uint64_t layer = 24 + (48 + 2 * 16) * 24 + 24 * 48 + 24 + 3 * 40 * 24;
  REQUIRE(parameter_count(config) == 5 * layer + 24 + 2 * 50 * 24);
  REQUIRE(parameter_count(config, {.layers = {1, 3}, .first = false, .last = false}) == 2 * layer);
  config.tied_embeddings = true;
  REQUIRE(parameter_count(config) == 5 * layer + 24 + 50 * 24);
  REQUIRE(parameter_count(config, {.layers = {4, 5}, .first = false, .last = true}) == layer + 24 + 50 * 24);
  test::set_biases_and_norms(config);
  REQUIRE(parameter_count(config) == 5 * (layer + 80 + 24 + 16) + 24 + 50 * 24);
}

TEST_CASE("experts count as parameters and tensors and progress") {
  const ModelConfig config = test::five_layer_mixture();
  const uint64_t shared = 24 + (48 + 2 * 16) * 24 + 24 * 48 + 24;
  const uint64_t sparse = shared + 7 * 24 + 7 * 3 * 20 * 24;
  REQUIRE(parameter_count(config, {.layers = {2, 3}, .first = false, .last = false}) == sparse);
  REQUIRE(parameter_count(config) == 3 * sparse + 2 * (shared + 3 * 40 * 24) + 24 + 2 * 50 * 24);
  const test::RandomModel random(config, 20);
  const test::TemporaryFolder folder;
  folder.write("model.safetensors", test::safetensors_text(random.tensors()));
  const auto checkpoint = Checkpoint::open(folder.path()).value();
  const auto backend = f32_backend();
  const StageSpan middle{.layers = {1, 3}, .first = false, .last = false};
  LoadProgress last;
  const auto stage = StageModel::load(*checkpoint, config, middle, *backend, kLimits,
                                      {.progress = [&](const LoadProgress& step) { last = step; }});
  REQUIRE(stage.has_value());
  REQUIRE(last.tensors_total == 9 + 6 + 1 + 21);
  REQUIRE(last.tensors_done == last.tensors_total);
  REQUIRE(last.bytes_done == parameter_count(config, middle) * 4);
  REQUIRE((*stage)->checkpoint_bytes() == last.bytes_done);
}

TEST_CASE("missing and extra and misshapen experts are named") {
  const ModelConfig config = test::five_layer_mixture();
  const test::RandomModel random(config, 21);
  const auto backend = f32_backend();
  const auto message = [&](const ModelConfig& claimed, const std::function<void(test::TensorToWrite&)>& change) {
    auto tensors = random.tensors();
    for (test::TensorToWrite& tensor : tensors) change(tensor);
    const test::TemporaryFolder folder;
    folder.write("model.safetensors", test::safetensors_text(tensors));
    const auto checkpoint = Checkpoint::open(folder.path()).value();
    const auto stage = StageModel::load(*checkpoint, claimed, {.layers = {0, 5}}, *backend, kLimits);
    return stage ? std::string("loaded") : stage.error().message.substr(folder.path().string().size());
  };
  const auto as_it_is = [](test::TensorToWrite&) {};
  REQUIRE(message(config, as_it_is) == "loaded");
  ModelConfig more = config;
  test::for_experts(more, [](MoeConfig& moe) { moe.expert_count = 8; });
  REQUIRE_THAT(message(more, as_it_is),
               Mentions("'model.layers.0.mlp.gate.weight'", "[7, 24]", "config.json", "[8, 24]"));
  ModelConfig wider = config;
  test::for_experts(wider, [](MoeConfig& moe) { moe.intermediate_size = 21; });
  REQUIRE_THAT(message(wider, as_it_is),
               Mentions("'model.layers.0.mlp.experts.0.gate_proj.weight'", "[20, 24]", "config.json", "[21, 24]"));
  const auto rename = [&](std::string_view from, std::string_view to) {
    return message(config, [=](test::TensorToWrite& tensor) {
      if (tensor.name == from) tensor.name = to;
    });
  };
  REQUIRE(rename("model.layers.2.mlp.experts.6.down_proj.weight", "model.layers.2.mlp.experts.7.down_proj.weight") ==
          "/model.safetensors: has no tensor 'model.layers.2.mlp.experts.6.down_proj.weight'");
  ModelConfig dense = config;
  dense.layers[4].feed_forward.moe.reset();
  REQUIRE_THAT(message(dense, as_it_is), Mentions("/model.safetensors", "'model.layers.4.mlp.gate_proj.weight'"));
}

TEST_CASE("a model knows the size of a page with padded heads") {
  ModelConfig config = test::five_layer_model();
  const test::RandomModel random(config, 18);
  const test::TemporaryFolder folder;
  folder.write("model.safetensors", test::safetensors_text(random.tensors()));
  const auto checkpoint = Checkpoint::open(folder.path()).value();
  const auto backend = f32_backend();
  const auto model = StageModel::load(*checkpoint, config, {.layers = {1, 3}}, *backend, kLimits).value();
  const uint64_t bytes = model->page_bytes(4);
  model->allocate_cache(4, 3);
  REQUIRE(model->cache().page_bytes() == bytes);
  REQUIRE(bytes > uint64_t{2} * 2 * 2 * 8 * 4 * sizeof(float));
}

TEST_CASE("scales of inputs and attention in 8 bits are ignored") {
  const ModelConfig plain = test::five_layer_model();
  ModelConfig decoded = plain;
  decoded.weight_format.method = weights::QuantMethod::kCompressedTensors;
  ModelConfig w8 = plain;
  w8.quantization = Quantization::kW8A8Int8;
  for (const char* name : {"q_scale", "k_scale", "attn.v_scale", "attn.prob_scale", "k_proj.output_scale",
                           "v_zero_point", "qkv_proj.kv_scale", "experts.0.w1.input_scale"}) {
    CAPTURE(name);
    const std::string tensor = std::string("model.layers.2.self_attn.") + name;
    const test::TemporaryFolder folder;
    folder.write("model.safetensors", test::safetensors_text({{tensor, {1}, {1}}}));
    const auto checkpoint = Checkpoint::open(folder.path()).value();
    const StageSpan span{.layers = {0, 3}, .first = true, .last = false};
    REQUIRE(reject_unknown_tensors(*checkpoint, decoded, span).has_value());
    REQUIRE(reject_unknown_tensors(*checkpoint, w8, span).has_value());
    REQUIRE_THAT(reject_unknown_tensors(*checkpoint, plain, span).error().message, Catch::Contains(tensor));
  }
}

TEST_CASE("extra tensors of a layer are refused by name") {
  const ModelConfig config = test::five_layer_model();
  const auto message = [&](const std::string& name, StageSpan span) {
    std::vector<test::TensorToWrite> tensors = test::RandomModel(config, 15).tensors();
    tensors.push_back({name, {2}, {1, 2}});
    const test::TemporaryFolder folder;
    folder.write("model.safetensors", test::safetensors_text(tensors));
    const auto checkpoint = Checkpoint::open(folder.path()).value();
    const auto backend = f32_backend();
    const auto model = StageModel::load(*checkpoint, config, span, *backend, kLimits);
    return model ? std::string("loaded") : model.error().message.substr(folder.path().string().size());
  };
  const StageSpan first{.layers = {0, 3}, .first = true, .last = false};
  const StageSpan last{.layers = {3, 5}, .first = false, .last = true};
  const std::string bias = "model.layers.2.self_attn.q_proj.bias";
  REQUIRE(message(bias, first) ==
          ": tensor '" + bias + "' is unknown to LlamaForCausalLM, the architecture in config.json");
  REQUIRE(message(bias, last) == "loaded");
  const auto refusal = [](const std::string& name) { return fmt::format(": tensor '{}' is unknown to", name); };
  for (const char* other : {"lm_head.bias", "model.norm.bias", "model.layers.4.self_attn.o_proj.bias"})
    REQUIRE(message(other, last).starts_with(refusal(other)));
  for (const char* other :
       {"model.embed_tokens.bias", "model.layers.2.mlp.up_proj.bias", "model.layers.2.self_attn.masked_bias",
        "model.layers.2.self_attn.k_scale", "model.layers.2.self_attn.rotary_emb.scaling",
        "model.layers.2.self_attn.q_norm.weight", "model.layers.2.input_layernorm.bias"})
    REQUIRE(message(other, first).starts_with(refusal(other)));
  REQUIRE(message("model.embed_tokens.bias", last) == "loaded");
  for (const char* harmless :
       {"model.layers.2.self_attn.rotary_emb.inv_freq", "model.layers.2.self_attn.rotary_emb.cos_cached",
        "model.layers.2.self_attn.rotary_emb.sin_cached", "model.layers.5.mlp.gate_proj.weight", "model.norm.bias",
        "lm_head.bias", "model.rotary_emb.inv_freq", "vision.layers.0.weight"})
    REQUIRE(message(harmless, first) == "loaded");
}
