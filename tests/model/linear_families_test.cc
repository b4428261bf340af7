// Families with linear attention: what their published config.json files describe, and what is refused.

#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "model/cache_groups.h"
#include "model/families/read_config.h"
#include "model/fingerprint.h"
#include "model/layer_state.h"
#include "model/needed_features.h"
#include "model/rank_layout.h"
#include "model/tensor_list.h"
#include "support/mentions.h"

using namespace millrace;
using namespace millrace::model;
using millrace::test::Mentions;
using tensor::Feature;

namespace {

/// Written from the family's code and documents, since the published file was not at hand.
constexpr std::string_view kKimiLinear = R"({"architectures":["KimiLinearForCausalLM"],"bos_token_id":163584,
  "dtype":"bfloat16","eos_token_id":163586,"first_k_dense_replace":1,"head_dim":72,"hidden_act":"silu",
  "hidden_size":2304,"initializer_range":0.02,"intermediate_size":9216,"kv_lora_rank":512,
  "linear_attn_config":{"full_attn_layers":[4,8,12,16,20,24,27],"head_dim":128,
  "kda_layers":[1,2,3,5,6,7,9,10,11,13,14,15,17,18,19,21,22,23,25,26],"num_heads":32,"short_conv_kernel_size":4},
  "mla_use_nope":true,"model_max_length":1048576,"model_type":"kimi_linear","moe_intermediate_size":1024,
  "moe_layer_freq":1,"moe_renormalize":true,"moe_router_activation_func":"sigmoid","num_attention_heads":32,
  "num_expert_group":1,"num_experts":256,"num_experts_per_token":8,"num_hidden_layers":27,"num_key_value_heads":32,
  "num_nextn_predict_layers":0,"num_shared_experts":1,"pad_token_id":163839,"q_lora_rank":null,"qk_nope_head_dim":128,
  "qk_rope_head_dim":64,"rms_norm_eps":1e-05,"rope_scaling":null,"rope_theta":10000.0,"routed_scaling_factor":2.446,
  "tie_word_embeddings":false,"topk_group":1,"use_cache":true,"use_grouped_topk":true,"v_head_dim":128,
  "vocab_size":163840})";

/// The members that the two spellings of a config name otherwise, as transformers writes them.
constexpr std::pair<std::string_view, std::string_view> kSavedNames[] = {
    {"model_max_length", "max_position_embeddings"},
    {"moe_renormalize", "norm_topk_prob"},
    {"num_expert_group", "n_group"},
    {"\"num_experts\"", "\"num_local_experts\""},
    {"num_experts_per_token", "num_experts_per_tok"},
    {"num_shared_experts", "n_shared_experts"},
};

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

ModelConfig parsed(const std::string& text) {
  const auto config = parse_config(text);
  if (!config) FAIL(config.error().message);
  return *config;
}

std::string refused(std::string_view from, std::string_view to) {
  const auto config = parse_config(replaced(std::string(kKimiLinear), from, to));
  return config ? "accepted" : config.error().message;
}

bool has_tensor(const ModelConfig& config, std::string_view name, const tensor::Shape& shape) {
  const StageSpan whole{.layers = {0, config.layer_count()}, .first = true, .last = true};
  for (const TensorSpec& spec : stage_tensors(config, whole)) {
    if (spec.stored_name() == name) return spec.stored_shape() == shape;
  }
  return false;
}

}  // namespace

TEST_CASE("Kimi Linear has decays per channel and unrotated latents") {
  const ModelConfig config = parsed(std::string(kKimiLinear));
  REQUIRE(static_cast<double>(parameter_count(config)) / 1e9 == Approx(49.1).margin(0.3));
  REQUIRE(config.context_length() == 1048576);
  REQUIRE(config.ropes.empty());
  for (int32_t layer = 0; layer < config.layer_count(); ++layer) {
    REQUIRE(config.layer(layer).attends == (layer % 4 == 3 || layer == 26));
    REQUIRE(config.layer(layer).attends != config.layer(layer).recurrent.has_value());
    REQUIRE(config.is_sparse(layer) == (layer > 0));
  }
  const AttentionConfig& attention = config.layer(3).attention;
  REQUIRE(attention.latent->query_rank == 0);
  REQUIRE_FALSE(attention.rope);
  REQUIRE(attention.scale == Approx(1.0 / std::sqrt(192.0)));
  const auto& net = std::get<DeltaNetConfig>(*config.layer(0).recurrent);
  REQUIRE(net.channel_decay);
  REQUIRE(net.gate_rank == 128);
  REQUIRE(state_values(config.layer(0)) == 32 * 128 * 128 + 3 * 3 * 4096);
  const MoeConfig& moe = *config.layer(1).feed_forward.moe;
  REQUIRE(moe.experts_per_token == 8);
  REQUIRE(moe.shared->width == 1024);
  REQUIRE(moe.weight_scale == Approx(2.446));
  REQUIRE(needs(config, Feature::kConversion));
  REQUIRE(needs(config, Feature::kRecurrence));
  REQUIRE(CacheGroups(config).count() == 2);
  REQUIRE(check_ranks(config, 8).has_value());
}

TEST_CASE("Kimi Linear has its published tensors") {
  const ModelConfig config = parsed(std::string(kKimiLinear));
  REQUIRE(has_tensor(config, "model.layers.0.self_attn.A_log", {1, 1, 32, 1}));
  REQUIRE(has_tensor(config, "model.layers.0.self_attn.dt_bias", {4096}));
  REQUIRE(has_tensor(config, "model.layers.0.self_attn.q_conv1d.weight", {4096, 1, 4}));
  REQUIRE(has_tensor(config, "model.layers.0.self_attn.f_b_proj.weight", {4096, 128}));
  REQUIRE(has_tensor(config, "model.layers.0.self_attn.g_a_proj.weight", {128, 2304}));
  REQUIRE(has_tensor(config, "model.layers.0.self_attn.b_proj.weight", {32, 2304}));
  REQUIRE(has_tensor(config, "model.layers.0.mlp.gate_proj.weight", {9216, 2304}));
  REQUIRE(has_tensor(config, "model.layers.3.self_attn.kv_a_proj_with_mqa.weight", {576, 2304}));
  REQUIRE(has_tensor(config, "model.layers.26.block_sparse_moe.experts.255.w2.weight", {2304, 1024}));
  REQUIRE(has_tensor(config, "model.layers.1.block_sparse_moe.shared_experts.up_proj.weight", {1024, 2304}));
}

TEST_CASE("Kimi Linear is read in both spellings") {
  const ModelConfig config = parsed(std::string(kKimiLinear));
  std::string saved(kKimiLinear);
  for (const auto& [published, name] : kSavedNames) saved = replaced(saved, published, name);
  REQUIRE(parsed(saved) == config);
  const size_t begin = saved.find("\"linear_attn_config\"");
  std::string types;
  for (int32_t layer = 0; layer < 27; ++layer)
    types += std::string(layer > 0 ? "," : "") +
             (config.layer(layer).attends ? "\"full_attention\"" : "\"linear_attention\"");
  saved.replace(
      begin, saved.find("},", begin) + 2 - begin,
      "\"linear_num_heads\":32,\"linear_head_dim\":128,\"linear_conv_kernel_dim\":4,\"layer_types\":[" + types + "],");
  REQUIRE(parsed(saved) == config);
  const ModelConfig other = parsed(replaced(std::string(kKimiLinear), "[4,8,12", "[4,12,8"));
  REQUIRE(fingerprint(other) == fingerprint(config));
  REQUIRE(fingerprint(parsed(replaced(saved, "linear_head_dim\":128", "linear_head_dim\":64"))) != fingerprint(config));
}

TEST_CASE("other forms of Kimi Linear are refused") {
  REQUIRE_THAT(refused(R"("mla_use_nope":true)", R"("mla_use_nope":false)"), Mentions("mla_use_nope false"));
  REQUIRE_THAT(refused("[4,8,12", "[8,12"), Mentions("linear_attn_config", "layer 4", "0 times"));
  REQUIRE_THAT(refused("[4,8,12", "[3,4,8,12"), Mentions("layer 3", "2 times"));
  REQUIRE_THAT(refused("24,27]", "24,28]"), Mentions("full_attn_layers", "28"));
  REQUIRE_THAT(refused(R"("sigmoid")", R"("softmax")"), Mentions("moe_router_activation_func", "'softmax'"));
  REQUIRE_THAT(refused(R"("moe_layer_freq":1)", R"("moe_layer_freq":2)"), Mentions("moe_layer_freq", "2"));
  REQUIRE_THAT(refused(R"("num_experts_per_token":8,)", ""), Mentions("num_experts_per_tok"));
}
