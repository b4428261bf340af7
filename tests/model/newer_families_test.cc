// Families of 2025 and 2026: what their published config.json files describe, and what is refused.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <string>

#include "model/checkpoint.h"
#include "model/checkpoint_files.h"
#include "model/families/mistral_params.h"
#include "model/families/read_config.h"
#include "model/needed_features.h"
#include "model/rope.h"
#include "model/sized_config.h"
#include "model/tensor_list.h"
#include "support/mentions.h"

using namespace millrace;
using namespace millrace::model;
using millrace::test::check_sizes;
using millrace::test::Mentions;
using millrace::test::SizedConfig;
using tensor::Feature;

namespace {

/// Written from the families' code and documents, since the published files were not at hand.
const SizedConfig kModels[] = {
    {"Mistral-Small-4-119B", R"({"architectures":["Mistral3ForConditionalGeneration"],"dtype":"bfloat16",
      "tie_word_embeddings":false,"text_config":{"attention_bias":false,"bos_token_id":1,"eos_token_id":2,
      "first_k_dense_replace":0,"head_dim":128,"hidden_act":"silu","hidden_size":4096,"intermediate_size":12288,
      "kv_lora_rank":256,"max_position_embeddings":1048576,"mlp_bias":false,"model_type":"mistral4",
      "moe_intermediate_size":2048,"n_group":1,"n_routed_experts":128,"n_shared_experts":1,"norm_topk_prob":true,
      "num_attention_heads":32,"num_experts_per_tok":4,"num_hidden_layers":36,"num_key_value_heads":32,
      "q_lora_rank":1024,"qk_head_dim":128,"qk_nope_head_dim":64,"qk_rope_head_dim":64,"rms_norm_eps":1e-06,
      "rope_interleave":true,"rope_parameters":{"beta_fast":32.0,"beta_slow":1.0,"factor":128.0,
      "llama_4_scaling_beta":0.1,"mscale":1.0,"mscale_all_dim":1.0,"original_max_position_embeddings":8192,
      "rope_theta":10000.0,"rope_type":"yarn","type":"yarn"},"routed_scaling_factor":1.0,"sliding_window":null,
      "tie_word_embeddings":false,"topk_group":1,"v_head_dim":128,"vocab_size":131072},
      "vision_config":{"model_type":"pixtral"}})",
     119.0, 1048576},
    {"Seed-OSS-36B", R"({"architectures":["SeedOssForCausalLM"],"attention_bias":true,"attention_out_bias":false,
      "bos_token_id":0,"eos_token_id":2,"head_dim":128,"hidden_act":"silu","hidden_size":5120,
      "intermediate_size":27648,"max_position_embeddings":524288,"mlp_bias":false,"model_type":"seed_oss",
      "num_attention_heads":80,"num_hidden_layers":64,"num_key_value_heads":8,"rms_norm_eps":1e-06,
      "rope_scaling":{"rope_type":"default"},"rope_theta":10000000.0,"tie_word_embeddings":false,
      "torch_dtype":"bfloat16","vocab_size":155136})",
     36.15, 524288},
    {"EXAONE-4.0-32B", R"({"architectures":["Exaone4ForCausalLM"],"bos_token_id":1,"eos_token_id":361,
      "head_dim":128,"hidden_act":"silu","hidden_size":5120,"intermediate_size":27392,
      "max_position_embeddings":131072,"model_type":"exaone4","num_attention_heads":40,"num_hidden_layers":64,
      "num_key_value_heads":8,"rms_norm_eps":1e-05,"rope_scaling":{"factor":16.0,"high_freq_factor":4.0,
      "low_freq_factor":1.0,"original_max_position_embeddings":8192,"rope_type":"llama3"},"rope_theta":1000000,
      "sliding_window":4096,"sliding_window_pattern":"LLLG","tie_word_embeddings":false,"torch_dtype":"bfloat16",
      "vocab_size":102400})",
     32.0, 131072},
    {"K-EXAONE-236B-A23B", R"({"architectures":["ExaoneMoeForCausalLM"],"bos_token_id":1,"dtype":"bfloat16",
      "eos_token_id":53,"first_k_dense_replace":1,"head_dim":128,"hidden_act":"silu","hidden_size":6144,
      "intermediate_size":18432,"max_position_embeddings":262144,"model_type":"exaone_moe",
      "moe_intermediate_size":2048,"n_group":1,"norm_topk_prob":true,"num_attention_heads":64,"num_experts":128,
      "num_experts_per_tok":8,"num_hidden_layers":48,"num_key_value_heads":8,"num_nextn_predict_layers":1,
      "num_shared_experts":1,"rms_norm_eps":1e-05,"rope_parameters":{"rope_theta":1000000,"rope_type":"default"},
      "routed_scaling_factor":2.5,"scoring_func":"sigmoid","sliding_window":128,"sliding_window_pattern":"LLLG",
      "tie_word_embeddings":false,"topk_group":1,"vocab_size":153600})",
     236.0, 262144},
    {"Trinity-Mini", R"({"architectures":["AfmoeForCausalLM"],"attention_dropout":0.0,"dtype":"bfloat16",
      "global_attn_every_n_layers":4,"head_dim":128,"hidden_act":"silu","hidden_size":2048,"intermediate_size":6144,
      "load_balance_coeff":0.001,"max_position_embeddings":131072,"model_type":"afmoe","moe_intermediate_size":1024,
      "mup_enabled":true,"n_group":1,"num_attention_heads":32,"num_dense_layers":2,"num_expert_groups":1,
      "num_experts":128,"num_experts_per_tok":8,"num_hidden_layers":32,"num_key_value_heads":4,
      "num_limited_groups":1,"num_shared_experts":1,"rms_norm_eps":1e-05,"rope_scaling":null,"rope_theta":10000,
      "route_norm":true,"route_scale":2.826,"score_func":"sigmoid","sliding_window":2048,
      "tie_word_embeddings":false,"topk_group":1,"vocab_size":200192})",
     26.1, 131072},
    {"Ling-1T", R"({"architectures":["BailingMoeV2ForCausalLM"],"attention_dropout":0.0,"eos_token_id":156892,
      "first_k_dense_replace":4,"head_dim":128,"hidden_act":"silu","hidden_size":8192,"intermediate_size":18432,
      "max_position_embeddings":32768,"model_type":"bailing_moe","moe_intermediate_size":2048,
      "moe_router_enable_expert_bias":true,"n_group":8,"norm_head":false,"norm_softmax":false,"norm_topk_prob":true,
      "num_attention_heads":64,"num_experts":256,"num_experts_per_tok":8,"num_hidden_layers":80,
      "num_key_value_heads":8,"num_nextn_predict_layers":0,"num_shared_experts":1,"partial_rotary_factor":0.5,
      "rms_norm_eps":1e-06,"rope_scaling":null,"rope_theta":600000,"routed_scaling_factor":2.5,"router_dtype":"fp32",
      "score_function":"sigmoid","tie_word_embeddings":false,"topk_group":4,"torch_dtype":"bfloat16",
      "use_bias":false,"use_qk_norm":true,"use_qkv_bias":false,"vocab_size":157184})",
     1000.0, 32768},
    {"dots.llm1", R"({"architectures":["Dots1ForCausalLM"],"attention_bias":false,"first_k_dense_replace":1,
      "head_dim":128,"hidden_act":"silu","hidden_size":4096,"intermediate_size":10944,"max_position_embeddings":32768,
      "max_window_layers":62,"model_type":"dots1","moe_intermediate_size":1408,"moe_layer_freq":1,
      "n_routed_experts":128,"n_shared_experts":2,"norm_topk_prob":true,"num_attention_heads":32,
      "num_experts_per_tok":6,"num_hidden_layers":62,"num_key_value_heads":32,"rms_norm_eps":1e-05,
      "rope_scaling":null,"rope_theta":10000000,"routed_scaling_factor":2.5,"scoring_func":"noaux_tc",
      "sliding_window":null,"tie_word_embeddings":false,"torch_dtype":"bfloat16","use_sliding_window":false,
      "vocab_size":152064})",
     142.8, 32768},
    {"Solar-Open-100B", R"({"architectures":["SolarOpenForCausalLM"],"attention_bias":false,"dtype":"bfloat16",
      "first_k_dense_replace":0,"head_dim":128,"hidden_act":"silu","hidden_size":4096,"intermediate_size":10240,
      "max_position_embeddings":131072,"model_type":"solar_open","moe_intermediate_size":1280,"n_group":1,
      "n_routed_experts":128,"n_shared_experts":1,"norm_topk_prob":true,"num_attention_heads":64,
      "num_experts_per_tok":8,"num_hidden_layers":48,"num_key_value_heads":8,"partial_rotary_factor":1.0,
      "rms_norm_eps":1e-05,"rope_scaling":{"factor":2.0,"original_max_position_embeddings":65536,"type":"yarn"},
      "rope_theta":1000000,"routed_scaling_factor":1.0,"tie_word_embeddings":false,"topk_group":1,
      "use_qk_norm":false,"vocab_size":196608})",
     102.6, 131072},
    {"GLM-4.5V", R"({"architectures":["Glm4vMoeForConditionalGeneration"],"dtype":"bfloat16",
      "tie_word_embeddings":false,"text_config":{"attention_bias":true,"eos_token_id":[151329,151336,151338],
      "first_k_dense_replace":1,"head_dim":128,"hidden_act":"silu","hidden_size":4096,"intermediate_size":10944,
      "max_position_embeddings":65536,"model_type":"glm4v_moe_text","moe_intermediate_size":1408,"n_group":1,
      "n_routed_experts":128,"n_shared_experts":1,"norm_topk_prob":true,"num_attention_heads":96,
      "num_experts_per_tok":8,"num_hidden_layers":46,"num_key_value_heads":8,"partial_rotary_factor":0.5,
      "rms_norm_eps":1e-05,"rope_scaling":{"mrope_section":[8,12,12],"rope_type":"default"},"rope_theta":10000.0,
      "routed_scaling_factor":1.0,"topk_group":1,"use_qk_norm":false,"vocab_size":151552},
      "vision_config":{"model_type":"glm4v_moe"}})",
     106.0, 65536},
    {"Qwen3-VL-235B-A22B", R"({"architectures":["Qwen3VLMoeForConditionalGeneration"],"dtype":"bfloat16",
      "tie_word_embeddings":false,"text_config":{"attention_bias":false,"bos_token_id":151643,
      "decoder_sparse_step":1,"eos_token_id":151645,"head_dim":128,"hidden_act":"silu","hidden_size":4096,
      "intermediate_size":12288,"max_position_embeddings":262144,"mlp_only_layers":[],
      "model_type":"qwen3_vl_moe_text","moe_intermediate_size":1536,"norm_topk_prob":true,"num_attention_heads":64,
      "num_experts":128,"num_experts_per_tok":8,"num_hidden_layers":94,"num_key_value_heads":4,
      "rms_norm_eps":1e-06,"rope_scaling":{"mrope_interleaved":true,"mrope_section":[24,20,20],
      "rope_type":"default"},"rope_theta":5000000,"vocab_size":151936},"vision_config":{"depth":27}})",
     235.0, 262144},
    {"Qwen2.5-VL-72B", R"({"architectures":["Qwen2_5_VLForConditionalGeneration"],"bos_token_id":151643,
      "eos_token_id":151645,"hidden_act":"silu","hidden_size":8192,"intermediate_size":29568,
      "max_position_embeddings":128000,"max_window_layers":80,"model_type":"qwen2_5_vl","num_attention_heads":64,
      "num_hidden_layers":80,"num_key_value_heads":8,"rms_norm_eps":1e-06,"rope_scaling":{
      "mrope_section":[16,24,24],"type":"mrope"},"rope_theta":1000000.0,"sliding_window":32768,
      "tie_word_embeddings":false,"torch_dtype":"bfloat16","use_sliding_window":false,
      "vision_config":{"depth":32},"vocab_size":152064})",
     72.7, 128000},
    {"Command R", R"({"architectures":["CohereForCausalLM"],"attention_bias":false,"bos_token_id":5,
      "eos_token_id":255001,"hidden_act":"silu","hidden_size":8192,"intermediate_size":22528,"layer_norm_eps":1e-05,
      "logit_scale":0.0625,"max_position_embeddings":8192,"model_max_length":131072,"model_type":"cohere",
      "num_attention_heads":64,"num_hidden_layers":40,"num_key_value_heads":64,"pad_token_id":0,
      "rope_theta":8000000.0,"torch_dtype":"bfloat16","vocab_size":256000})",
     34.98, 131072},
    {"Command R+", R"({"architectures":["CohereForCausalLM"],"attention_bias":false,"bos_token_id":5,
      "eos_token_id":255001,"hidden_act":"silu","hidden_size":12288,"intermediate_size":33792,"layer_norm_eps":1e-05,
      "logit_scale":0.8333333333333334,"max_position_embeddings":8192,"model_max_length":131072,"model_type":"cohere",
      "num_attention_heads":96,"num_hidden_layers":64,"num_key_value_heads":8,"pad_token_id":0,
      "rope_theta":75000000.0,"torch_dtype":"bfloat16","use_qk_norm":true,"vocab_size":256000})",
     103.81, 131072},
    {"AFM-4.5B", R"({"architectures":["ArceeForCausalLM"],"attention_bias":false,"bos_token_id":128000,
      "eos_token_id":[128001,128003],"head_dim":128,"hidden_act":"relu2","hidden_size":2560,"intermediate_size":18432,
      "max_position_embeddings":65536,"mlp_bias":false,"model_type":"arcee","num_attention_heads":20,
      "num_hidden_layers":36,"num_key_value_heads":4,"rms_norm_eps":1e-05,"rope_scaling":{"beta_fast":32.0,
      "beta_slow":1.0,"factor":20.0,"mscale":1.0,"original_max_position_embeddings":4096,"rope_type":"yarn",
      "type":"yarn"},"rope_theta":10000.0,"tie_word_embeddings":false,"torch_dtype":"bfloat16","vocab_size":128004})",
     4.62, 81920},
    {"Hunyuan-7B", R"({"architectures":["HunYuanDenseV1ForCausalLM"],"attention_bias":false,"attention_head_dim":128,
      "bos_token_id":1,"eos_token_id":127960,"head_dim":128,"hidden_act":"silu","hidden_size":4096,
      "intermediate_size":14336,"max_position_embeddings":32768,"mlp_bias":false,"model_type":"hunyuan_v1_dense",
      "norm_type":"rms","num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":8,"rms_norm_eps":1e-05,
      "rope_scaling":{"alpha":1000.0,"beta_fast":32,"beta_slow":1,"factor":1.0,"mscale":1.0,"mscale_all_dim":1.0,
      "type":"dynamic"},"rope_theta":10000.0,"tie_word_embeddings":true,"torch_dtype":"bfloat16","use_cla":false,
      "use_qk_norm":true,"vocab_size":128167})",
     7.505, 32768},
    {"Hunyuan-A13B", R"({"architectures":["HunYuanMoEV1ForCausalLM"],"attention_bias":false,"attention_head_dim":128,
      "bos_token_id":1,"cla_share_factor":2,"eos_token_id":127960,"group_limited_greedy":false,"hidden_act":"silu",
      "hidden_size":4096,"intermediate_size":3072,"kv_lora_rank":null,"max_position_embeddings":32768,"mlp_bias":false,
      "model_type":"hunyuan_v1_moe","moe_drop_tokens":false,"moe_intermediate_size":[3072,3072],
      "moe_layer_num_skipped":0,"moe_topk":[8,8],"n_group":false,"norm_topk_prob":true,"norm_type":"rms",
      "num_attention_heads":32,"num_experts":64,"num_hidden_layers":32,"num_key_value_heads":8,
      "num_shared_expert":[1,1],"position_embedding_xdrope":false,"q_lora_rank":null,"rms_norm_eps":1e-05,
      "rope_scaling":{"alpha":1000.0,"beta_fast":32,"beta_slow":1,"factor":1.0,"mscale":1.0,"mscale_all_dim":1.0,
      "type":"dynamic"},"rope_theta":10000.0,"routed_scaling_factor":false,"tie_word_embeddings":true,
      "topk_group":false,"torch_dtype":"bfloat16","use_cla":false,"use_mixed_mlp_moe":true,"use_mla":false,
      "use_qk_norm":true,"vocab_size":128167})",
     80.39, 32768},
    {"SmolLM3-3B", R"({"architectures":["SmolLM3ForCausalLM"],"attention_bias":false,"bos_token_id":128000,
      "eos_token_id":128012,"hidden_act":"silu","hidden_size":2048,"intermediate_size":11008,
      "max_position_embeddings":65536,"max_window_layers":28,"mlp_bias":false,"model_type":"smollm3",
      "no_rope_layer_interval":4,"num_attention_heads":16,"num_hidden_layers":36,"num_key_value_heads":4,
      "rms_norm_eps":1e-06,"rope_scaling":null,"rope_theta":5000000.0,"sliding_window":null,
      "tie_word_embeddings":true,"torch_dtype":"bfloat16","use_cache":false,"use_sliding_window":false,
      "vocab_size":128256})",
     3.08, 65536},
};

/// The params.json of Mistral Large 3, without what says nothing about its text model.
const std::string kLargeParams = R"({"dim":7168,"n_layers":61,"head_dim":192,"hidden_dim":16384,"n_heads":128,
    "n_kv_heads":128,"rope_theta":10000.0,"norm_eps":1e-06,"vocab_size":131072,"tied_embeddings":false,
    "max_position_embeddings":294912,"max_seq_len":294912,"q_lora_rank":1536,"qk_rope_head_dim":64,
    "qk_nope_head_dim":128,"kv_lora_rank":512,"v_head_dim":128,
    "quantization_config":{"config_groups":{"group_0":{"input_activations":{"dynamic":true,"num_bits":8,
    "type":"float"},"targets":["Linear"],"weights":{"block_structure":[128,128],"num_bits":8,"strategy":"block",
    "type":"float"}}},"format":"float-quantized","ignore":["model.embed_tokens","lm_head"],
    "quant_method":"compressed-tensors"},
    "yarn":{"original_max_position_embeddings":8192,"factor":36,"apply_scale":false,"beta":32,"alpha":1},
    "moe":{"expert_parallel":1,"expert_model_parallel":1,"route_every_n":1,"first_k_dense_replace":3,
    "num_experts":128,"num_experts_per_tok":4,"num_expert_groups":1,"num_expert_groups_per_tok":1,
    "routed_scale":1.0,"expert_hidden_dim":4096,"num_shared_experts":1},
    "llama_4_scaling":{"original_max_position_embeddings":8192,"beta":0.1},
    "vision_encoder":{"hidden_size":1664}})";

std::string text_of(std::string_view name) {
  return std::ranges::find(kModels, name, &SizedConfig::name)->config;
}

ModelConfig known(std::string_view name) {
  const auto config = parse_config(text_of(name));
  if (!config) FAIL(config.error().message);
  return *config;
}

/// Returns a published config.json in which `from` is replaced.
std::string changed(std::string_view name, std::string_view from, std::string_view to) {
  std::string text = text_of(name);
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

/// Returns the message for it; "accepted" if there is none.
std::string refusal(std::string_view name, std::string_view from, std::string_view to) {
  const auto config = parse_config(changed(name, from, to));
  return config ? "accepted" : config.error().message;
}

bool has_tensor(const ModelConfig& config, std::string_view name, const tensor::Shape& shape) {
  const auto specs = stage_tensors(config, {.layers = {0, config.layer_count()}, .first = true, .last = true});
  return std::ranges::any_of(
      specs, [&](const TensorSpec& spec) { return spec.stored_name() == name && spec.stored_shape() == shape; });
}

/// Returns a letter for each of a model's first layers: L slides, G sees everything, and r or n for its rotation.
std::string layers_of(const ModelConfig& config, int32_t count) {
  std::string letters;
  for (int32_t index = 0; index < count; ++index) {
    const AttentionConfig& attention = config.layer(index).attention;
    letters += attention.window > 0 ? 'L' : 'G';
    letters += attention.rope ? 'r' : 'n';
  }
  return letters;
}

}  // namespace

TEST_CASE("newer models have their parameters and contexts") {
  for (const SizedConfig& model : kModels) check_sizes(model, known(model.name));
}

TEST_CASE("Mistral Small 4 scales queries and not scores") {
  const ModelConfig config = known("Mistral-Small-4-119B");
  const AttentionConfig& attention = config.layer(35).attention;
  REQUIRE(attention.scale == Approx(1.0 / std::sqrt(128.0)));
  REQUIRE(attention.query_scaling == QueryScaling{.beta = 0.1, .original_max_position = 8192});
  REQUIRE(rotary_frequencies(config.ropes[0], 64).attention_factor == Approx(1.0));
  REQUIRE(config.is_sparse(0));
  const MoeConfig& moe = *config.layer(0).feed_forward.moe;
  REQUIRE(moe.routing().is_plain_softmax());
  REQUIRE_FALSE(moe.choice_bias);
  REQUIRE_FALSE(needs(config, Feature::kF32Weights));
  REQUIRE(config.names.skipped_parts.find("vision_tower.") != std::string_view::npos);
  const std::string same =
      changed("Mistral-Small-4-119B", R"("llama_4_scaling_beta":0.1)", R"("llama_4_scaling_beta":0.0)");
  REQUIRE_FALSE(parse_config(same)->layer(0).attention.query_scaling);
  REQUIRE_THAT(refusal("Mistral-Small-4-119B", R"("model_type":"mistral4")", R"("model_type":"mistral5")"),
               Mentions("model_type", "mistral5", "mistral4"));
}

TEST_CASE("layers that slide and rotate are those of the papers") {
  REQUIRE(layers_of(known("EXAONE-4.0-32B"), 8) == "LrLrLrGnLrLrLrGn");
  REQUIRE(layers_of(known("K-EXAONE-236B-A23B"), 4) == "LrLrLrGn");
  REQUIRE(layers_of(known("Trinity-Mini"), 8) == "LrLrLrGnLrLrLrGn");
  REQUIRE(layers_of(known("SmolLM3-3B"), 8) == "GrGrGrGnGrGrGrGn");
  // The 1.2B of Exaone 4 has no windows, and rotates all.
  const std::string whole = changed("EXAONE-4.0-32B", R"("sliding_window":4096)", R"("sliding_window":null)");
  REQUIRE(layers_of(*parse_config(whole), 4) == "GrGrGrGr");
  // A model's last layer sees everything where a pattern has letters.
  const std::string odd = changed("EXAONE-4.0-32B", R"("num_hidden_layers":64)", R"("num_hidden_layers":6)");
  REQUIRE(layers_of(*parse_config(odd), 6) == "LrLrLrGnLrGn");
  REQUIRE_THAT(refusal("EXAONE-4.0-32B", R"("LLLG")", R"("LLXG")"), Mentions("sliding_window_pattern", "LLXG"));
  REQUIRE_THAT(refusal("SmolLM3-3B", R"("no_rope_layer_interval":4)", R"("no_rope_layers":[1,0])"),
               Mentions("no_rope_layers", "2", "36"));
}

TEST_CASE("heads of Command R+ and Hunyuan have norms of other kinds") {
  const ModelConfig command = known("Command R+");
  REQUIRE(needs(command, Feature::kHeadNorms));
  REQUIRE(needs(command, Feature::kLayerNorm));
  REQUIRE(command.layer(0).parallel);
  REQUIRE(command.ropes[0].interleaved);
  REQUIRE(has_tensor(command, "model.layers.0.self_attn.q_norm.weight", {96, 128}));
  REQUIRE(has_tensor(command, "model.layers.0.self_attn.k_norm.weight", {8, 128}));
  REQUIRE_FALSE(needs(known("Command R"), Feature::kHeadNorms));
  const ModelConfig hunyuan = known("Hunyuan-7B");
  REQUIRE(needs(hunyuan, Feature::kHeadNorms));
  REQUIRE(hunyuan.layer(0).attention.qk_norm == QkNorm::kRotatedPerHead);
  REQUIRE(has_tensor(hunyuan, "model.layers.0.self_attn.query_layernorm.weight", {128}));
  REQUIRE(has_tensor(hunyuan, "model.layers.31.self_attn.key_layernorm.weight", {128}));
  REQUIRE(hunyuan.ropes[0].theta == Approx(10000.0 * std::pow(1000.0, 128.0 / 126.0)));
  REQUIRE_THAT(refusal("Hunyuan-7B", R"("alpha":1000.0,)", ""), Mentions("alpha"));
  REQUIRE_THAT(refusal("Hunyuan-7B", R"("factor":1.0)", R"("factor":2.0)"), Mentions("factor", "alpha"));
  REQUIRE_THAT(refusal("Hunyuan-7B", R"("use_cla":false)", R"("use_cla":true)"), Mentions("use_cla"));
}

TEST_CASE("Hunyuan A13B reads lists with a number for each layer") {
  const ModelConfig config = known("Hunyuan-A13B");
  const MoeConfig& moe = *config.layer(0).feed_forward.moe;
  REQUIRE(moe.expert_count == 64);
  REQUIRE(moe.experts_per_token == 8);
  REQUIRE(moe.shared->width == 3072);
  REQUIRE(moe.routing().is_plain_softmax());
  REQUIRE(has_tensor(config, "model.layers.0.mlp.gate.wg.weight", {64, 4096}));
  REQUIRE(has_tensor(config, "model.layers.0.mlp.shared_mlp.up_proj.weight", {3072, 4096}));
  REQUIRE(has_tensor(config, "model.layers.31.mlp.experts.63.down_proj.weight", {4096, 3072}));
  REQUIRE(parse_config(changed("Hunyuan-A13B", R"("moe_topk":[8,8])", R"("moe_topk":4)"))
              ->layer(0)
              .feed_forward.moe->experts_per_token == 4);
  REQUIRE_THAT(refusal("Hunyuan-A13B", R"("moe_topk":[8,8])", R"("moe_topk":[8,4])"), Mentions("moe_topk", "8", "4"));
  REQUIRE_THAT(refusal("Hunyuan-A13B", R"("moe_layer_num_skipped":0)", R"("moe_layer_num_skipped":1)"),
               Mentions("moe_layer_num_skipped"));
}

TEST_CASE("AFM squares what its feed-forward blocks let through") {
  const ModelConfig config = known("AFM-4.5B");
  REQUIRE(needs(config, Feature::kReluSquared));
  REQUIRE_FALSE(config.layer(0).feed_forward.gated);
  REQUIRE(config.ropes[0].kind == RopeKind::kYarn);
  REQUIRE(has_tensor(config, "model.layers.0.mlp.up_proj.weight", {18432, 2560}));
  REQUIRE_FALSE(has_tensor(config, "model.layers.0.mlp.gate_proj.weight", {18432, 2560}));
  REQUIRE_THAT(refusal("AFM-4.5B", R"("hidden_act":"relu2")", R"("hidden_act":"silu")"),
               Mentions("hidden_act", "silu"));
}

TEST_CASE("newer mixtures route as their papers say") {
  for (const char* name : {"K-EXAONE-236B-A23B", "Trinity-Mini", "Ling-1T", "dots.llm1", "Solar-Open-100B"}) {
    CAPTURE(name);
    const ModelConfig config = known(name);
    const MoeConfig& moe = *config.layer(config.layer_count() - 1).feed_forward.moe;
    REQUIRE(moe.score == tensor::RouterScore::kSigmoid);
    REQUIRE(moe.choice_bias);
    REQUIRE(moe.renormalize);
    REQUIRE(moe.shared);
  }
  REQUIRE_FALSE(known("Trinity-Mini").is_sparse(1));
  REQUIRE(known("Trinity-Mini").is_sparse(2));
  REQUIRE(known("Trinity-Mini").layer(2).feed_forward.moe->weight_scale == 2.826f);
  REQUIRE(known("Trinity-Mini").embedding_scale == Approx(std::sqrt(2048.0)));
  REQUIRE_FALSE(known("Ling-1T").is_sparse(3));
  REQUIRE(known("Ling-1T").layer(4).feed_forward.moe->groups_per_token == 4);
  REQUIRE(known("Solar-Open-100B").is_sparse(0));
  REQUIRE(known("dots.llm1").layer(1).feed_forward.moe->shared->width == 2816);
  const ModelConfig ling = known("Ling-1T");
  REQUIRE(rotary_dim(ling, ling.layer(0).attention) == 64);
  REQUIRE_THAT(refusal("Trinity-Mini", R"("score_func":"sigmoid")", R"("score_func":"softmax")"),
               Mentions("score_func", "softmax", "sigmoid"));
  REQUIRE_THAT(refusal("Ling-1T", R"("norm_head":false)", R"("norm_head":true)"), Mentions("norm_head"));
  REQUIRE_THAT(refusal("K-EXAONE-236B-A23B", R"("first_k_dense_replace":1)", R"("mlp_layer_types":["dense"])"),
               Mentions("mlp_layer_types", "1", "48"));
}

TEST_CASE("tensors of newer models have their published names") {
  const ModelConfig trinity = known("Trinity-Mini");
  REQUIRE(has_tensor(trinity, "model.layers.0.self_attn.q_proj.weight", {4096, 2048}));
  REQUIRE(has_tensor(trinity, "model.layers.0.self_attn.gate_proj.weight", {4096, 2048}));
  REQUIRE(has_tensor(trinity, "model.layers.0.pre_mlp_layernorm.weight", {2048}));
  REQUIRE(has_tensor(trinity, "model.layers.2.mlp.router.gate.weight", {128, 2048}));
  REQUIRE(has_tensor(trinity, "model.layers.2.mlp.expert_bias", {128}));
  REQUIRE(has_tensor(known("K-EXAONE-236B-A23B"), "model.layers.1.mlp.e_score_correction_bias", {128}));
  REQUIRE(has_tensor(known("Ling-1T"), "model.word_embeddings.weight", {157184, 8192}));
  REQUIRE(has_tensor(known("Ling-1T"), "model.layers.0.attention.query_key_value.weight", {10240, 8192}));
  REQUIRE(has_tensor(known("Ling-1T"), "model.layers.4.mlp.gate.expert_bias", {256}));
  REQUIRE(has_tensor(known("Qwen3-VL-235B-A22B"), "model.layers.0.mlp.experts.gate_up_proj", {128, 4096, 3072}));
  REQUIRE(has_tensor(known("Seed-OSS-36B"), "model.layers.0.self_attn.k_proj.bias", {1024}));
  REQUIRE_FALSE(has_tensor(known("Seed-OSS-36B"), "model.layers.0.self_attn.o_proj.bias", {5120}));
}

TEST_CASE("models with images are their text models") {
  const ModelConfig config = known("Qwen2.5-VL-72B");
  REQUIRE(config.layer(0).attention.qkv_bias);
  REQUIRE(config.layer(0).attention.window == 0);
  REQUIRE(config.names.skipped_parts == "model.visual. visual.");
  const ModelConfig moe = known("Qwen3-VL-235B-A22B");
  REQUIRE(moe.layer(0).attention.qk_norm == QkNorm::kPerHead);
  REQUIRE(moe.ropes[0].rotary_dim == 0);
  REQUIRE(moe.eos_token_ids == std::vector<TokenId>{TokenId{151645}});
  REQUIRE(rotary_dim(known("GLM-4.5V"), known("GLM-4.5V").layer(0).attention) == 64);
  REQUIRE_THAT(refusal("Qwen2.5-VL-72B", R"("hidden_size":8192,)", ""), Mentions("text_config"));
}

TEST_CASE("Mistral Large 3 is read from its own format") {
  const test::TemporaryFolder folder;
  folder.write("params.json", kLargeParams);
  const auto config = read_config(folder.path());
  if (!config) FAIL(config.error().message);
  REQUIRE(std::abs(static_cast<double>(parameter_count(*config)) / 1e9 - 673.0) < 6.0);
  REQUIRE(config->context_length() == 294912);
  REQUIRE(config->layer(0).attention.query_scaling == QueryScaling{.beta = 0.1, .original_max_position = 8192});
  REQUIRE(config->weight_format.block_rows == 128);
  REQUIRE_FALSE(config->is_sparse(2));
  REQUIRE(config->is_sparse(3));
  REQUIRE(has_tensor(*config, "layers.3.experts.127.w2.weight", {7168, 4096}));
  REQUIRE(has_tensor(*config, "layers.0.attention.wkv_a_with_mqa.weight", {576, 7168}));
  REQUIRE(has_tensor(*config, "output.weight", {131072, 7168}));
  // Another description in the folder goes before it.
  folder.write("config.json", text_of("Seed-OSS-36B"));
  REQUIRE(read_config(folder.path())->architecture == "SeedOssForCausalLM");
}

TEST_CASE("weights in the format of Mistral count without others") {
  const test::TemporaryFolder folder;
  folder.write("consolidated.safetensors", test::safetensors_text({{"output.weight", {1, 2}, {1, 2}}}));
  REQUIRE(Checkpoint::open(folder.path()).value()->contains("output.weight"));
  folder.write("model.safetensors", test::safetensors_text({{"lm_head.weight", {1, 2}, {1, 2}}}));
  REQUIRE_FALSE(Checkpoint::open(folder.path()).value()->contains("output.weight"));
}

TEST_CASE("what else the format of Mistral has is refused") {
  const auto message = [](std::string_view from, std::string_view to) {
    std::string text = kLargeParams;
    text.replace(text.find(from), from.size(), to);
    const auto config = config_of_params(text, "params.json");
    return config ? "accepted" : config.error().message;
  };
  REQUIRE_THAT(message(R"("apply_scale":false)", R"("apply_scale":true)"),
               Mentions("params.json: yarn", "apply_scale"));
  REQUIRE_THAT(message(R"("qk_nope_head_dim":128,)", ""), Mentions("qk_nope_head_dim", "moe"));
  REQUIRE_THAT(message(R"("n_layers":61)", R"("n_layers":"many")"), Mentions("n_layers", "many"));
  REQUIRE_THAT(message(R"("routed_scale":1.0)", R"("use_load_balancing_bias":true)"),
               Mentions("use_load_balancing_bias"));
}
