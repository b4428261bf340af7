// What published models need of described devices. Expected numbers follow from the shapes in their config.json.

#include "app/model_capacity.h"

#include <catch2/catch.hpp>

#include "app/model_report.h"
#include "base/text_file.h"
#include "model/families/read_config.h"
#include "model/known_models.h"
#include "support/mentions.h"
#include "support/temporary_folder.h"

using namespace millrace;
using namespace millrace::app;
using test::Mentions;
using Ranges = std::vector<model::LayerRange>;

namespace {

constexpr const char* kDeepSeek = test::known_config("DeepSeek-V3.1");
constexpr const char* kKimi = test::known_config("Kimi-K2-Instruct");
constexpr const char* kGptOss = R"({"architectures":["GptOssForCausalLM"],"attention_bias":true,
  "attention_dropout":0.0,"eos_token_id":200002,"head_dim":64,"hidden_act":"silu","hidden_size":2880,
  "intermediate_size":2880,"max_position_embeddings":131072,"model_type":"gpt_oss","num_attention_heads":64,
  "num_experts_per_tok":4,"num_hidden_layers":36,"num_key_value_heads":8,"num_local_experts":128,
  "output_router_logits":false,"rms_norm_eps":1e-05,"rope_scaling":{"beta_fast":32.0,"beta_slow":1.0,"factor":32.0,
  "original_max_position_embeddings":4096,"rope_type":"yarn","truncate":false},"rope_theta":150000,
  "sliding_window":128,"swiglu_limit":7.0,"tie_word_embeddings":false,"torch_dtype":"bfloat16","vocab_size":201088,
  "quantization_config":{"modules_to_not_convert":["model.layers.*.self_attn","model.layers.*.mlp.router",
  "model.embed_tokens","lm_head"],"quant_method":"mxfp4"}})";

constexpr const char* kQwen3Next = R"({"architectures":["Qwen3NextForCausalLM"],"vocab_size":151936,
  "hidden_size":2048,"intermediate_size":5120,"num_hidden_layers":48,"num_attention_heads":16,"num_key_value_heads":2,
  "head_dim":256,"max_position_embeddings":262144,"full_attention_interval":4,"linear_conv_kernel_dim":4,
  "linear_key_head_dim":128,"linear_num_key_heads":16,"linear_num_value_heads":32,"linear_value_head_dim":128,
  "moe_intermediate_size":512,"num_experts":512,"num_experts_per_tok":10,"partial_rotary_factor":0.25,
  "rope_theta":10000000,"shared_expert_intermediate_size":512,"torch_dtype":"bfloat16"})";

// DeepSeek-V3.1, per layer.
constexpr double kAttention = 7168 * 1536 + 1536 * 128.0 * 192 + 7168 * 576 + 512 * 128.0 * 256 + 128 * 128.0 * 7168;
constexpr double kNorms = 1536 + 512 + 2 * 7168;
constexpr double kExpert = 3.0 * 7168 * 2048;
constexpr double kRouter = 256 * 7168;
constexpr double kSparseLayer = kAttention + kNorms + 257 * kExpert + kRouter + 256;
constexpr double kTable = 129280.0 * 7168;

sim::Device device_of(double memory_gb, int32_t kept_bits) {
  return {.name = "tested",
          .memory_bytes = memory_gb * 1e9,
          .bytes_per_second = 4e12,
          .flops = 989e12,
          .kept_bits = kept_bits};
}

Ranges even(const model::ModelConfig& config, int32_t stages) {
  return model::divide_layers(config.layer_count(), stages).value();
}

std::vector<int32_t> sizes(const std::optional<Ranges>& ranges) {
  std::vector<int32_t> found;
  for (const model::LayerRange& range : ranges.value_or(Ranges())) found.push_back(range.size());
  return found;
}

/// Writes a config.json and a cluster file, and returns the report's outcome.
Result<void> report(const test::TemporaryFolder& folder, const std::string& config, const std::string& cluster,
                    tensor::KvDType kv_dtype = tensor::KvDType::kAuto) {
  folder.write("config.json", config);
  folder.write("cluster.json", cluster);
  SimulateFlags flags;
  flags.cluster = folder.path() / "cluster.json";
  flags.model_path = folder.path();
  flags.kv_dtype = kv_dtype;
  flags.result_file = folder.path() / "report.json";
  return report_model(flags);
}

}  // namespace

TEST_CASE("a sequence of Qwen3-Next has two states in 36 layers") {
  const model::ModelConfig config = model::parse_config(kQwen3Next).value();
  const ModelCapacity capacity(config, device_of(141, 4), {.page_size = 64});
  const model::StageSpan whole{.layers = {0, 48}, .first = true, .last = true};
  // Three inputs of a convolution over q, k and v, and a matrix per value head, in f32.
  constexpr double kState = 4.0 * (3 * (2 * 16 * 128 + 32 * 128) + 32 * 128 * 128);
  constexpr double kToken = 12 * 2.0 * 2 * 2 * 256;  // K and V of two heads in twelve layers
  REQUIRE(capacity.sequence_bytes(whole, 64) == Approx(36 * 2 * kState + 64 * kToken));
  REQUIRE(capacity.sequence_bytes(whole, 6400) == Approx(36 * 2 * kState + 6400 * kToken));
  // 80 billion parameters in 16 bits need two devices of 141 GB.
  REQUIRE(capacity.weights(whole).bytes == Approx(2 * 79.7e9).epsilon(0.01));
  REQUIRE(sizes(capacity.fewest_even({})) == std::vector<int32_t>{24, 24});
}

TEST_CASE("the weights of DeepSeek are those of its shapes") {
  const model::ModelConfig config = model::parse_config(kDeepSeek).value();
  const model::StageSpan sparse{.layers = {10, 11}, .first = false, .last = false};
  const ModelCapacity decoded(config, device_of(141, 4), {});
  REQUIRE(decoded.weights(sparse).bytes == Approx(2 * kSparseLayer));
  REQUIRE(decoded.weights(sparse).expert_bytes == Approx(2 * 256 * kExpert));
  REQUIRE(decoded.weights(sparse).active_parameters == Approx(kAttention + 9 * kExpert + kRouter));
  const model::StageSpan whole{.layers = {0, 61}, .first = true, .last = true};
  REQUIRE(decoded.weights(whole).bytes == Approx(2.0 * 671026419200));
  // FP8 with a scale of 32 bits per 128 inputs of a feature; norms, the router and the tables have 16 bits.
  const ModelCapacity kept(config, device_of(141, 8), {});
  REQUIRE(kept.weights(sparse).bytes ==
          Approx((kAttention + 257 * kExpert) * (8 + 32.0 / 128) / 8 + 2 * (kNorms + kRouter + 256)).epsilon(0.002));
  // Each of 8 ranks has an eighth of the experts, and the router whole.
  const ModelCapacity ranks(config, device_of(141, 4), {.rank_count = 8});
  REQUIRE(ranks.weights(sparse).expert_bytes == Approx(2 * 32 * kExpert));
  REQUIRE(ranks.weights(whole).embedding_bytes == Approx(2 * kTable));
}

TEST_CASE("the stages that DeepSeek needs follow from memory") {
  const model::ModelConfig config = model::parse_config(kDeepSeek).value();
  const ModelCapacity capacity(config, device_of(141, 4), {});
  // 139 GB hold six sparse layers of 23.0 GB, but not the head or much of a cache with them.
  REQUIRE(capacity.fewest_even({})->size() == 13);
  const ModelCapacity::Load one{.sequences = 1, .tokens = 163840};
  REQUIRE(capacity.fewest_even(one)->size() == 13);
  REQUIRE(capacity.fewest_by_memory({.sequences = 1, .tokens = 64})->size() == 10);
  REQUIRE(capacity.fewest_by_memory(one)->size() == 12);
  REQUIRE_FALSE(ModelCapacity(config, device_of(20, 4), {}).fewest_even({}));
  // The last stage has five layers and the head; a token takes 576 values of 16 bits in each.
  const Ranges ranges = even(config, 13);
  const double room = 0.9 * (139e9 - 2 * (5 * kSparseLayer + kTable + 7168));
  const model::StageSpan last{.layers = {56, 61}, .first = false, .last = true};
  REQUIRE(capacity.room(last) == Approx(room));
  REQUIRE(capacity.max_tokens(ranges, 64) == 64 * static_cast<uint32_t>(room / (64 * 5 * 1152.0) / 64));
  REQUIRE(capacity.max_tokens(ranges, 64) == 53888);
  REQUIRE(capacity.max_tokens(ranges, 1) == 163840);
  REQUIRE(capacity.max_tokens(ranges, 1 << 20) == 0);
  REQUIRE(capacity.prompt_tokens_per_second(ranges) == Approx(989e12 / (2 * 5 * (kAttention + 9 * kExpert + kRouter))));
  const double dense = kAttention + kNorms + 3.0 * 7168 * 18432;
  const double read = 3 * dense + 58 * (kAttention + kNorms + 9 * kExpert + kRouter + 256) + kTable + 7168;
  REQUIRE(capacity.token_seconds(ranges) == Approx(2 * read / 4e12));
}

TEST_CASE("caches of 8 bits count in the needs of a model") {
  const model::StageSpan whole{.layers = {0, 36}, .first = true, .last = true};
  const auto bytes_of = [&](const model::ModelConfig& config, model::StageSpan span, tensor::KvDType stored,
                            uint32_t tokens) {
    return ModelCapacity(config, device_of(141, 4), {.kv_dtype = stored}).sequence_bytes(span, tokens);
  };
  // Heads of 64 channels; windows keep three pages of 64 tokens.
  const model::ModelConfig heads = model::parse_config(kGptOss).value();
  REQUIRE(bytes_of(heads, whole, tensor::KvDType::kInt8, 640) == Approx(18 * 2 * 8 * (64 + 4.0) * (640 + 192)));
  REQUIRE(bytes_of(heads, whole, tensor::KvDType::kFp8E4M3, 640) == Approx(18 * 2 * 8 * (64 + 2.0) * (640 + 192)));
  // Rotated keys of latents have 16 bits.
  const model::ModelConfig latents = model::parse_config(kDeepSeek).value();
  const model::StageSpan layer{.layers = {10, 11}, .first = false, .last = false};
  REQUIRE(bytes_of(latents, layer, tensor::KvDType::kInt8, 64) == Approx(64 * (512 + 32 + 128.0)));
  REQUIRE(bytes_of(latents, layer, tensor::KvDType::kFp8E4M3, 64) == Approx(64 * (512 + 8 + 128.0)));
  // States have 32 bits.
  const model::ModelConfig states = model::parse_config(kQwen3Next).value();
  const model::StageSpan mixer{.layers = {0, 1}, .first = false, .last = false};
  const double state = bytes_of(states, mixer, tensor::KvDType::kAuto, 64);
  REQUIRE(state > 0);
  REQUIRE(bytes_of(states, mixer, tensor::KvDType::kInt8, 64) == state);
  // More tokens fit the same devices.
  const ModelCapacity plain(latents, device_of(141, 4), {});
  const ModelCapacity coded(latents, device_of(141, 4), {.kv_dtype = tensor::KvDType::kInt8});
  const Ranges ranges = even(latents, 13);
  REQUIRE(coded.max_tokens(ranges, 64) == Approx(plain.max_tokens(ranges, 64) * 1152.0 / 672).epsilon(0.001));
  REQUIRE(coded.fewest_by_memory({.sequences = 64, .tokens = 80000})->size() <
          plain.fewest_by_memory({.sequences = 64, .tokens = 80000})->size());
}

TEST_CASE("Kimi K2 needs more than DeepSeek and ranks divide it") {
  const model::ModelConfig config = model::parse_config(kKimi).value();
  const model::StageSpan whole{.layers = {0, 61}, .first = true, .last = true};
  REQUIRE(ModelCapacity(config, device_of(141, 4), {}).weights(whole).bytes == Approx(2.0 * 1026408232448));
  const ModelCapacity eight(config, device_of(141, 4), {.rank_count = 8});
  // 2053 GB over two stages of 8 devices are 128 GB each, with the tables and routers that are not divided.
  REQUIRE(sizes(eight.fewest_even(ModelCapacity::Load{.sequences = 1, .tokens = 131072})) ==
          std::vector<int32_t>{30, 31});
}

TEST_CASE("gpt-oss fits one device in the bits that it is stored in") {
  const model::ModelConfig config = model::parse_config(kGptOss).value();
  const ModelCapacity kept(config, device_of(80, 4), {});
  const model::StageSpan layer{.layers = {1, 2}, .first = false, .last = false};
  REQUIRE(kept.weights(layer).expert_bytes == Approx(128 * 3.0 * 2880 * 2880 * 4.5 / 8));
  const ModelCapacity::Load one{.sequences = 1, .tokens = 131072};
  REQUIRE(kept.fewest_even(one)->size() == 1);
  REQUIRE(ModelCapacity(config, device_of(80, 0), {}).fewest_even(one)->size() == 4);
  // Every second layer keeps three pages of 64 tokens of its window of 128. A token takes 2 KiB in a layer.
  const model::StageSpan whole{.layers = {0, 36}, .first = true, .last = true};
  REQUIRE(kept.sequence_bytes(whole, 131072) == Approx(18 * 2048.0 * 131072 + 18 * 2048.0 * 192));
}

TEST_CASE("quantization counts in the needs of a model") {
  model::ModelConfig config = model::parse_config(kGptOss).value();
  config.weight_format = {};
  const model::StageSpan head{.layers = {0, 1}, .first = false, .last = true};
  const model::StageSpan layer{.layers = {0, 1}, .first = false, .last = false};
  const auto head_bits = [&](model::Quantization quantization) {
    config.quantization = quantization;
    const ModelCapacity capacity(config, device_of(80, 4), {});
    return 8 * (capacity.weights(head).bytes - capacity.weights(layer).bytes) / (201088.0 * 2880 + 2880);
  };
  REQUIRE(head_bits(model::Quantization::kNone) == Approx(16));
  REQUIRE(head_bits(model::Quantization::kW8) == Approx(8.5).epsilon(0.001));
  REQUIRE(head_bits(model::Quantization::kW4) == Approx(4.5).epsilon(0.001));
}

TEST_CASE("a report needs a known model and a described device") {
  const test::TemporaryFolder folder;
  const std::string device = R"({"name":"big","device":{"memory_gb":2000,"memory_gb_per_s":1000}})";
  REQUIRE_FALSE(report(folder, kDeepSeek, device).has_error());
  REQUIRE_THAT(read_text_file(folder.path() / "report.json").value(),
               Mentions(R"("parameters":671026419200)", R"("cache_bytes_per_token":70272)", R"("stages_for_weights":1)",
                        R"("tokens":163840)"));
  REQUIRE_FALSE(report(folder, kDeepSeek, device, tensor::KvDType::kFp8E4M3).has_error());
  REQUIRE_THAT(read_text_file(folder.path() / "report.json").value(), Mentions(R"("cache_bytes_per_token":39528)"));
  const auto message = [&](const std::string& config, const std::string& cluster) {
    const auto reported = report(folder, config, cluster);
    return reported.has_error() ? reported.error().message : "accepted";
  };
  REQUIRE_THAT(message(R"({"architectures":["NextyForCausalLM"]})", device), Mentions("NextyForCausalLM"));
  REQUIRE_THAT(message(kDeepSeek, R"({"layers":3})"), Mentions("cluster.json", "device", "memory_gb"));
  REQUIRE_THAT(message(kDeepSeek, R"({"device":{"memory_gb":1,"memory_gb_per_s":1}})"),
               Mentions("device", "reserved_gb"));
  REQUIRE_THAT(message(kDeepSeek, R"({"device":{"memory":80}})"), Mentions("device.memory", "unknown"));
  REQUIRE_THAT(message(kDeepSeek, R"({"device":{"memory_gb":80,"memory_gb_per_s":1},"ranks":{"size":16}})"),
               Mentions("--tp-size 16", "1, 2, 4, 8"));
}

TEST_CASE("stages of Gemma 4 E2B have the embedding each") {
  const model::ModelConfig config =
      model::parse_config(
          R"({"architectures":["Gemma4ForCausalLM"],"vocab_size":512,"hidden_size":64,"intermediate_size":128,)"
          R"("num_hidden_layers":4,"num_attention_heads":4,"num_key_value_heads":2,"max_position_embeddings":256,)"
          R"("head_dim":16,"sliding_window":24,"hidden_size_per_layer_input":32,"vocab_size_per_layer_input":512,)"
          R"("torch_dtype":"bfloat16","layer_types":["sliding_attention","full_attention","sliding_attention",)"
          R"("full_attention"],"num_kv_shared_layers":1})")
          .value();
  const ModelCapacity capacity(config, device_of(141, 4), {});
  for (const model::StageSpan& span : model::stage_spans({{0, 1}, {1, 4}}))
    REQUIRE(capacity.weights(span).bytes == Approx(model::weight_memory(config, span, 1, 4).bytes).epsilon(0.001));
  REQUIRE(capacity.weights({.layers = {1, 4}, .first = false, .last = true}).embedding_bytes ==
          Approx(2.0 * 512 * (64 + 3 * 32)));
  // One device holds the whole model.
  REQUIRE(sizes(capacity.fewest_even({})) == std::vector<int32_t>{4});
}
