#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <string>

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

using Members = std::map<std::string, std::string>;

const Members kQwen3Next = {{"architectures", R"(["Qwen3NextForCausalLM"])"},
                            {"vocab_size", "151936"},
                            {"hidden_size", "2048"},
                            {"intermediate_size", "5120"},
                            {"num_hidden_layers", "48"},
                            {"num_attention_heads", "16"},
                            {"num_key_value_heads", "2"},
                            {"head_dim", "256"},
                            {"max_position_embeddings", "262144"},
                            {"full_attention_interval", "4"},
                            {"linear_conv_kernel_dim", "4"},
                            {"linear_key_head_dim", "128"},
                            {"linear_num_key_heads", "16"},
                            {"linear_num_value_heads", "32"},
                            {"linear_value_head_dim", "128"},
                            {"moe_intermediate_size", "512"},
                            {"num_experts", "512"},
                            {"num_experts_per_tok", "10"},
                            {"partial_rotary_factor", "0.25"},
                            {"rope_theta", "10000000"},
                            {"shared_expert_intermediate_size", "512"},
                            {"torch_dtype", "\"bfloat16\""}};

const Members kGranite4 = {{"architectures", R"(["GraniteMoeHybridForCausalLM"])"},
                           {"vocab_size", "100352"},
                           {"hidden_size", "4096"},
                           {"intermediate_size", "768"},
                           {"num_hidden_layers", "40"},
                           {"num_attention_heads", "32"},
                           {"num_key_value_heads", "8"},
                           {"max_position_embeddings", "131072"},
                           {"mamba_n_heads", "128"},
                           {"mamba_d_head", "64"},
                           {"mamba_d_state", "128"},
                           {"mamba_n_groups", "1"},
                           {"num_local_experts", "72"},
                           {"num_experts_per_tok", "10"},
                           {"shared_intermediate_size", "1536"},
                           {"tie_word_embeddings", "true"},
                           {"position_embedding_type", "\"nope\""},
                           {"torch_dtype", "\"bfloat16\""}};

const Members kLfm2 = {{"architectures", R"(["Lfm2ForCausalLM"])"},
                       {"vocab_size", "65536"},
                       {"hidden_size", "2048"},
                       {"num_hidden_layers", "16"},
                       {"num_attention_heads", "32"},
                       {"num_key_value_heads", "8"},
                       {"max_position_embeddings", "128000"},
                       {"block_ff_dim", "12288"},
                       {"block_multiple_of", "256"},
                       {"block_auto_adjust_ff_dim", "true"},
                       {"full_attn_idxs", "[2,5,8,10,12,14]"},
                       {"conv_L_cache", "3"},
                       {"tie_embedding", "true"},
                       {"torch_dtype", "\"bfloat16\""}};

const Members kNemotronNano2 = {
    {"architectures", R"(["NemotronHForCausalLM"])"},
    {"attention_bias", "false"},
    {"chunk_size", "128"},
    {"conv_kernel", "4"},
    {"expand", "2"},
    {"head_dim", "128"},
    {"hidden_size", "4480"},
    {"hybrid_override_pattern", R"("M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-")"},
    {"intermediate_size", "15680"},
    {"layer_norm_epsilon", "1e-05"},
    {"mamba_head_dim", "80"},
    {"mamba_hidden_act", "\"silu\""},
    {"mamba_num_groups", "8"},
    {"mamba_num_heads", "128"},
    {"mamba_proj_bias", "false"},
    {"mamba_state_dim", "128"},
    {"max_position_embeddings", "131072"},
    {"mlp_bias", "false"},
    {"mlp_hidden_act", "\"relu2\""},
    {"n_groups", "8"},
    {"num_attention_heads", "40"},
    {"num_hidden_layers", "56"},
    {"num_key_value_heads", "8"},
    {"rescale_prenorm_residual", "true"},
    {"residual_in_fp32", "false"},
    {"sliding_window", "null"},
    {"ssm_state_size", "128"},
    {"time_step_floor", "0.0001"},
    {"time_step_limit", "[0.0, Infinity]"},
    {"time_step_max", "0.1"},
    {"time_step_min", "0.001"},
    {"tie_word_embeddings", "false"},
    {"torch_dtype", "\"bfloat16\""},
    {"use_bias", "false"},
    {"use_conv_bias", "true"},
    {"vocab_size", "131072"}};

/// What makes Nemotron 3 Nano of the former.
const Members kNemotronNano3 = {
    {"hidden_size", "2688"},
    {"hybrid_override_pattern", R"("MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME")"},
    {"intermediate_size", "1856"},
    {"mamba_head_dim", "64"},
    {"mamba_num_heads", "64"},
    {"max_position_embeddings", "262144"},
    {"moe_intermediate_size", "1856"},
    {"moe_shared_expert_intermediate_size", "3712"},
    {"n_group", "1"},
    {"n_routed_experts", "128"},
    {"n_shared_experts", "1"},
    {"norm_eps", "1e-05"},
    {"norm_topk_prob", "true"},
    {"num_attention_heads", "32"},
    {"num_experts_per_tok", "6"},
    {"num_hidden_layers", "52"},
    {"num_key_value_heads", "2"},
    {"partial_rotary_factor", "1.0"},
    {"rope_theta", "10000"},
    {"routed_scaling_factor", "2.5"},
    {"topk_group", "1"},
};

const Members kFalconH1 = {
    {"architectures", R"(["FalconH1ForCausalLM"])"},
    {"attention_bias", "false"},
    {"attention_in_multiplier", "1.0"},
    {"attention_out_multiplier", "0.9375"},
    {"attn_layer_indices", "null"},
    {"embedding_multiplier", "5.656854249492381"},
    {"head_dim", "64"},
    {"hidden_act", "\"silu\""},
    {"hidden_size", "1024"},
    {"intermediate_size", "2048"},
    {"key_multiplier", "0.39062499999999994"},
    {"lm_head_multiplier", "0.0390625"},
    {"mamba_chunk_size", "128"},
    {"mamba_conv_bias", "true"},
    {"mamba_d_conv", "4"},
    {"mamba_d_head", "64"},
    {"mamba_d_ssm", "1536"},
    {"mamba_d_state", "128"},
    {"mamba_expand", "2"},
    {"mamba_n_groups", "1"},
    {"mamba_n_heads", "24"},
    {"mamba_norm_before_gate", "false"},
    {"mamba_proj_bias", "false"},
    {"mamba_rms_norm", "false"},
    {"mamba_use_mlp", "true"},
    {"max_position_embeddings", "16384"},
    {"mlp_bias", "false"},
    {"mlp_multipliers", "[0.8838834764831844, 0.5859375]"},
    {"num_attention_heads", "8"},
    {"num_hidden_layers", "36"},
    {"num_key_value_heads", "2"},
    {"projectors_bias", "false"},
    {"rms_norm_eps", "1e-05"},
    {"rope_scaling", "null"},
    {"rope_theta", "100000000000.0"},
    {"ssm_in_multiplier", "1.25"},
    {"ssm_multipliers", "[0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738]"},
    {"ssm_out_multiplier", "0.23570226039551587"},
    {"tie_word_embeddings", "false"},
    {"torch_dtype", "\"bfloat16\""},
    {"vocab_size", "32784"},
};

/// Returns a config.json with members replaced, or removed where the text is empty.
std::string json_of(Members members, const Members& changes) {
  for (const auto& [key, value] : changes) members[key] = value;
  std::string text = "{";
  for (const auto& [key, value] : members)
    if (!value.empty()) text += (text.size() > 1 ? ",\"" : "\"") + key + "\":" + value;
  return text + "}";
}

ModelConfig hybrid(const Members& members, const Members& changes = {}) {
  const auto config = parse_config(json_of(members, changes));
  if (!config) FAIL(config.error().message);
  return *config;
}

std::string refused(const Members& members, const Members& changes) {
  const auto config = parse_config(json_of(members, changes));
  if (config) return "accepted";
  REQUIRE(config.error().code == ErrorCode::kData);
  return config.error().message;
}

std::string layer_types(size_t count, std::string_view kind, std::initializer_list<size_t> attending) {
  std::string text = "[";
  for (size_t layer = 0; layer < count; ++layer) {
    const bool attends = std::ranges::find(attending, layer) != attending.end();
    text += fmt::format("{}\"{}\"", layer > 0 ? "," : "", attends ? "attention" : kind);
  }
  return text + "]";
}

/// Returns the layers that have attention.
std::vector<int32_t> attending(const ModelConfig& config) {
  std::vector<int32_t> layers;
  for (int32_t layer = 0; layer < config.layer_count(); ++layer) {
    if (config.layer(layer).attends) layers.push_back(layer);
  }
  return layers;
}

/// Returns the parameters in thousand millions.
double billions(const ModelConfig& config) {
  return static_cast<double>(parameter_count(config)) / 1e9;
}

}  // namespace

TEST_CASE("a state weighs as many tokens as its bytes are") {
  // 36 layers of three inputs of a convolution over 8192 channels and 32 matrices of 128 x 128, in f32. A token has two
  // keys and values of 256 in twelve layers, in 16 bits.
  const CacheGroups groups(hybrid(kQwen3Next));
  REQUIRE(groups.windows().size() == 1);
  REQUIRE(groups.windows()[0].kind == GroupKind::kState);
  REQUIRE(groups.windows()[0].state_tokens == 36 * 4 * (3 * 8192 + 32 * 128 * 128) / (12 * 2 * 2 * 2 * 256));
}

TEST_CASE("Qwen3-Next has attention in every fourth layer") {
  const ModelConfig config = hybrid(kQwen3Next);
  REQUIRE(attending(config) == std::vector{3, 7, 11, 15, 19, 23, 27, 31, 35, 39, 43, 47});
  REQUIRE(billions(config) == Approx(79.67).margin(0.1));
  REQUIRE(config.norm == NormKind::kRmsPlusOne);
  const AttentionConfig& attention = config.layer(3).attention;
  REQUIRE(attention.output_gate);
  REQUIRE(rotary_dim(config, attention) == 64);
  // 2 MiB of S, and three inputs of 8192 channels.
  REQUIRE(state_values(config.layer(0)) == 32 * 128 * 128 + 3 * 8192);
  REQUIRE(state_values(config.layer(3)) == 0);
  REQUIRE(state_values(config.layer(0), 4) * 4 == state_values(config.layer(0)));
  REQUIRE(needs(config, Feature::kRecurrence));
  REQUIRE(needs(config, Feature::kAttentionGates));
  const std::string types = layer_types(48, "linear_attention", {0, 47});
  REQUIRE(attending(hybrid(kQwen3Next, {{"layer_types", types}})) == std::vector{0, 47});
}

TEST_CASE("Qwen3.5 nests its config and stores parts apart") {
  const Members text = [] {
    Members members = kQwen3Next;
    for (const char* gone : {"architectures", "intermediate_size", "partial_rotary_factor", "rope_theta"})
      members.erase(gone);
    members["rope_parameters"] =
        R"({"mrope_interleaved":true,"mrope_section":[11,11,10],"partial_rotary_factor":0.25,"rope_theta":1e7,)"
        R"("rope_type":"default"})";
    return members;
  }();
  const std::string json = R"({"architectures":["Qwen3_5MoeForConditionalGeneration"],"tie_word_embeddings":false,)"
                           R"("text_config":)" +
                           json_of(text, {}) + "}";
  const auto config = parse_config(json);
  REQUIRE(config.has_value());
  REQUIRE(config->names.fused_delta_qkvz.empty());
  REQUIRE(rotary_dim(*config, config->layer(3).attention) == 64);
  REQUIRE(config->is_sparse(0));
  REQUIRE(state_values(config->layer(0)) == state_values(hybrid(kQwen3Next).layer(0)));
}

TEST_CASE("other gates than those of Qwen3.5 are refused") {
  const ModelConfig config = hybrid(kQwen3Next);
  REQUIRE(hybrid(kQwen3Next, {{"output_gate_type", "\"swish\""}, {"attn_output_gate", "true"}}) == config);
  REQUIRE_THAT(refused(kQwen3Next, {{"output_gate_type", "\"sigmoid\""}}),
               Mentions("output_gate_type 'sigmoid'", "'swish'"));
  REQUIRE_THAT(refused(kQwen3Next, {{"attn_output_gate", "false"}}), Mentions("attn_output_gate false"));
}

TEST_CASE("Granite 4 has Mamba-2 with and without experts") {
  const std::string types = layer_types(40, "mamba", {5, 15, 25, 35});
  const ModelConfig config = hybrid(kGranite4, {{"layer_types", types}});
  REQUIRE(attending(config) == std::vector{5, 15, 25, 35});
  REQUIRE(billions(config) == Approx(32.2).margin(0.2));
  REQUIRE_FALSE(config.layer(5).attention.rope);
  REQUIRE(state_values(config.layer(0)) == 128 * 64 * 128 + 3 * (8192 + 2 * 128));
  const ModelConfig dense = hybrid(kGranite4, {{"num_local_experts", "0"}, {"num_experts_per_tok", "0"}});
  REQUIRE_FALSE(dense.is_sparse(0));
  REQUIRE(dense.layer(0).feed_forward.width == 1536);
  REQUIRE(attending(dense).empty());
  REQUIRE(hybrid(kGranite4, {{"position_embedding_type", "\"rope\""}}).layer(0).attention.rope);
}

TEST_CASE("Nemotron-H has one part in each layer") {
  const ModelConfig config = hybrid(kNemotronNano2);
  REQUIRE(attending(config) == std::vector{14, 21, 30, 39});
  REQUIRE(parameter_count(config) == 17776454656 / 2);  // of the published files, in bf16
  REQUIRE_FALSE(config.layer(14).attention.rope);
  REQUIRE(config.layer(0).recurrent);
  REQUIRE_FALSE(config.layer(0).has_feed_forward());
  REQUIRE_FALSE(config.layer(1).mixes());
  REQUIRE(config.layer(1).feed_forward.width == 15680);
  REQUIRE(needs(config, Feature::kReluSquared));
  REQUIRE_FALSE(needs(config, Feature::kConversion));
  const CacheGroups groups(config);
  REQUIRE(groups.count() == 2);
  REQUIRE(groups.attention_group(14) == 0);
  REQUIRE(groups.state_group(0) == 1);
  REQUIRE_FALSE(groups.attention_group(1).has_value());
  REQUIRE_FALSE(groups.state_group(1).has_value());
  REQUIRE(check_ranks(config, 8).has_value());
}

TEST_CASE("Nemotron 3 has experts without gates") {
  const ModelConfig config = hybrid(kNemotronNano2, kNemotronNano3);
  REQUIRE(attending(config) == std::vector{5, 12, 19, 26, 33, 42});
  REQUIRE(billions(config) == Approx(31.58).margin(0.01));
  REQUIRE(config.is_sparse(1));
  REQUIRE_FALSE(config.layer(1).feed_forward.gated);
  REQUIRE(config.layer(1).feed_forward.inner_width() == 3712);
  REQUIRE(expert_parts(config.layer(1).feed_forward).size() == 2);
  // Transformers 5 writes a list of layers, and infinity as an object.
  Members listed = kNemotronNano2;
  listed.erase("num_hidden_layers");
  listed.erase("hybrid_override_pattern");
  listed["layers_block_type"] = R"(["linear_attention","mlp","full_attention"])";
  listed["n_routed_experts"] = "8";  // of no meaning without experts
  const ModelConfig short_model = hybrid(listed, {{"time_step_limit", R"([0.0,{"__float__":"Infinity"}])"}});
  REQUIRE(short_model.layer_count() == 3);
  REQUIRE(attending(short_model) == std::vector{2});
}

TEST_CASE("Falcon-H1 has attention and a mixer in every layer") {
  const ModelConfig config = hybrid(kFalconH1);
  REQUIRE(parameter_count(config) == 521411104);
  const LayerConfig& layer = config.layer(35);
  REQUIRE(layer.attends);
  REQUIRE(layer.attention.scale == Approx(0.125 * 0.390625));
  REQUIRE(layer.attention.output_factor == Approx(0.9375));
  const auto& mamba = std::get<MambaConfig>(layer.recurrent.value());
  REQUIRE(mamba.norm == MambaNorm::kNone);
  REQUIRE(mamba.factors.gate == Approx(1.25 * 0.3535533905932738));
  REQUIRE(mamba.factors.x == Approx(1.25 * 0.25));
  REQUIRE(mamba.factors.c == Approx(1.25 * 0.5));
  REQUIRE(output_factor(mamba) == Approx(0.23570226039551587));
  REQUIRE(layer.feed_forward.gate_factor == Approx(0.8838834764831844));
  for (const Feature feature : {Feature::kScaledGates, Feature::kScaledSums, Feature::kScaling, Feature::kRecurrence})
    REQUIRE(needs(config, feature));
  const CacheGroups groups(config);
  REQUIRE(groups.attention_group(3) == 0);
  REQUIRE(groups.state_group(3) == 1);
  // An input's factor counts for queries and keys, and for values.
  const AttentionConfig scaled = hybrid(kFalconH1, {{"attention_in_multiplier", "2.0"}}).layer(0).attention;
  REQUIRE(scaled.scale == Approx(4 * layer.attention.scale));
  REQUIRE(scaled.output_factor == Approx(2 * 0.9375));
}

TEST_CASE("LFM2 adjusts the width of its feed-forward block") {
  const ModelConfig config = hybrid(kLfm2);
  REQUIRE(attending(config) == std::vector{2, 5, 8, 10, 12, 14});
  REQUIRE(config.layer(0).feed_forward.width == 8192);
  REQUIRE(config.tied_embeddings);
  REQUIRE(billions(config) == Approx(1.17).margin(0.01));
  REQUIRE(state_values(config.layer(0)) == 2 * 2048);
  REQUIRE(hybrid(kLfm2, {{"block_auto_adjust_ff_dim", "false"}}).layer(0).feed_forward.width == 12288);
}

TEST_CASE("ranks divide recurrent layers by heads or say why not") {
  REQUIRE(check_ranks(hybrid(kQwen3Next), 2).has_value());
  REQUIRE_THAT(check_ranks(hybrid(kQwen3Next, {{"linear_num_key_heads", "1"}}), 2).error().message,
               Mentions("linear_num_key_heads", "1", "2"));
  REQUIRE_THAT(check_ranks(hybrid(kGranite4), 2).error().message, Mentions("Mamba-2 group count", "1", "2"));
  REQUIRE(check_ranks(hybrid(kGranite4, {{"mamba_n_groups", "4"}}), 4).has_value());
  REQUIRE(check_ranks(hybrid(kLfm2), 8).has_value());
}

TEST_CASE("Falcon-H1 reads each of its biases alone") {
  const auto biased = [](const char* key) {
    return hybrid(kFalconH1, {{key, "true"}, {"attention_in_multiplier", "0.5"}, {"ssm_in_multiplier", "4.0"}});
  };
  const auto mamba = [](const ModelConfig& config) { return std::get<MambaConfig>(*config.layer(0).recurrent); };
  const ModelConfig attention = biased("attention_bias");
  REQUIRE(attention.layer(0).attention.qkv_bias);
  REQUIRE(attention.layer(0).attention.output_bias);
  REQUIRE(attention.layer(0).attention.bias_factor == 2.0f);
  REQUIRE_FALSE(mamba(attention).input_bias);
  const ModelConfig input = biased("mamba_proj_bias");
  REQUIRE(mamba(input).input_bias);
  REQUIRE(mamba(input).input_bias_factor == 0.25f);
  REQUIRE_FALSE(mamba(input).output_bias);
  const ModelConfig output = biased("projectors_bias");
  REQUIRE(mamba(output).output_bias);
  REQUIRE_FALSE(mamba(output).input_bias);
  REQUIRE(fingerprint(output) != fingerprint(hybrid(kFalconH1, {{"ssm_in_multiplier", "4.0"}})));
  const ModelConfig mlp = biased("mlp_bias");
  REQUIRE(mlp.layer(0).feed_forward.bias);
  REQUIRE_FALSE(mlp.layer(0).feed_forward.fuses_activation());
  REQUIRE_FALSE(mlp.layer(0).attention.qkv_bias);
  REQUIRE(mlp.layer(0).attention.bias_factor == 1.0f);
  REQUIRE(mamba(mlp).input_bias_factor == 1.0f);
  FeedForwardConfig plain;
  REQUIRE(plain.fuses_activation());
  plain.bias = true;
  REQUIRE_FALSE(plain.fuses_activation());
}

TEST_CASE("hybrids refuse what they do not compute") {
  REQUIRE_THAT(refused(kQwen3Next, {{"linear_num_value_heads", "24"}}),
               Mentions("linear_num_value_heads", "24", "linear_num_key_heads", "16"));
  REQUIRE_THAT(refused(kQwen3Next, {{"linear_conv_kernel_dim", "9"}}), Mentions("linear_conv_kernel_dim", "9"));
  REQUIRE_THAT(refused(kQwen3Next, {{"attention_bias", "true"}}), Mentions("attention_bias"));
  REQUIRE_THAT(refused(kQwen3Next, {{"layer_types", R"(["full_attention"])"}}), Mentions("layer_types", "1", "48"));
  REQUIRE_THAT(refused(kGranite4, {{"layer_types", layer_types(40, "conv", {})}}), Mentions("layer_types", "'conv'"));
  REQUIRE_THAT(refused(kGranite4, {{"mamba_n_heads", "100"}}), Mentions("8192", "mamba_n_heads", "100"));
  REQUIRE_THAT(refused(kGranite4, {{"mamba_n_groups", "3"}}), Mentions("128", "mamba_n_groups", "3"));
  REQUIRE_THAT(refused(kGranite4, {{"time_step_limit", "[0.5, 0.1]"}}), Mentions("time_step_limit"));
  for (const char* limit : {"[0.0, Infinity]", "[0.0, \"Infinity\"]", "[0.0, 1e30]"})
    REQUIRE(std::get<MambaConfig>(*hybrid(kGranite4, {{"time_step_limit", limit}}).layer(0).recurrent).max_step >=
            1e30f);
  for (const char* limit : {"[0.0, NaN]", "[-Infinity, 1.0]", "[0.0, \"most\"]", "[0.0]"})
    REQUIRE_THAT(refused(kGranite4, {{"time_step_limit", limit}}), Mentions("time_step_limit"));
  REQUIRE_THAT(refused(kNemotronNano2, {{"hybrid_override_pattern", "\"M-X\""}}),
               Mentions("hybrid_override_pattern", "'X'", "2"));
  REQUIRE_THAT(refused(kNemotronNano2, {{"num_hidden_layers", "55"}}), Mentions("num_hidden_layers", "55", "56"));
  REQUIRE_THAT(refused(kNemotronNano2, {{"mlp_hidden_act", "\"silu\""}}), Mentions("mlp_hidden_act", "'silu'"));
  Members super = kNemotronNano3;
  super["moe_latent_size"] = "1024";
  const ModelConfig latent = hybrid(kNemotronNano2, super);
  const auto sparse =
      std::ranges::find_if(latent.layers, [](const LayerConfig& layer) { return layer.feed_forward.moe.has_value(); });
  REQUIRE(sparse->feed_forward.moe->input_size(latent.hidden_size) == 1024);
  REQUIRE(fingerprint(latent) != fingerprint(hybrid(kNemotronNano2, kNemotronNano3)));
  REQUIRE_THAT(refused(kFalconH1, {{"ssm_multipliers", "[1.0, 2.0]"}}), Mentions("ssm_multipliers", "2", "5"));
  REQUIRE(hybrid(kFalconH1, {{"mamba_expand", "1.5"}}) == hybrid(kFalconH1));
  REQUIRE_THAT(refused(kFalconH1, {{"mamba_d_ssm", "1000"}}), Mentions("mamba_d_ssm", "1000", "24"));
  REQUIRE_THAT(refused(kGranite4, {{"position_embedding_type", "\"alibi\""}}),
               Mentions("position_embedding_type", "'alibi'"));
}
