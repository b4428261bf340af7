// Families with experts: what their published config.json files describe, and what is refused.

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "cpu/cpu_backend.h"
#include "model/families/read_config.h"
#include "model/needed_features.h"
#include "model/sized_config.h"
#include "model/tensor_list.h"
#include "model/weights.h"
#include "support/mentions.h"
#include "support/paths.h"

using namespace millrace;
using namespace millrace::model;
using millrace::test::check_sizes;
using millrace::test::Mentions;
using millrace::test::SizedConfig;
using tensor::Feature;

namespace {

/// The relevant fields of published config.json files.
const SizedConfig kMixtures[] = {
    {"Qwen1.5-MoE-A2.7B", R"({"architectures":["Qwen2MoeForCausalLM"],"bos_token_id":151643,"decoder_sparse_step":1,
      "eos_token_id":151643,"hidden_act":"silu","hidden_size":2048,"intermediate_size":5632,
      "max_position_embeddings":8192,"max_window_layers":21,"model_type":"qwen2_moe","moe_intermediate_size":1408,
      "norm_topk_prob":false,"num_attention_heads":16,"num_experts":60,"num_experts_per_tok":4,
      "num_hidden_layers":24,"num_key_value_heads":16,"output_router_logits":false,"rms_norm_eps":1e-06,
      "rope_theta":1000000.0,"router_aux_loss_coef":0.001,"shared_expert_intermediate_size":5632,
      "sliding_window":32768,"tie_word_embeddings":false,"torch_dtype":"bfloat16","use_sliding_window":false,
      "vocab_size":151936})",
     14.3, 8192},
    {"granite-3.1-3b-a800m", R"({"architectures":["GraniteMoeForCausalLM"],"attention_bias":false,
      "attention_multiplier":0.015625,"bos_token_id":0,"embedding_multiplier":12.0,"eos_token_id":0,
      "hidden_act":"silu","hidden_size":1536,"intermediate_size":512,"logits_scaling":6.0,
      "max_position_embeddings":131072,"model_type":"granitemoe","num_attention_heads":24,"num_experts_per_tok":8,
      "num_hidden_layers":32,"num_key_value_heads":8,"num_local_experts":40,"residual_multiplier":0.22,
      "rms_norm_eps":1e-06,"rope_scaling":null,"rope_theta":10000000.0,"tie_word_embeddings":true,
      "torch_dtype":"bfloat16","vocab_size":49155})",
     3.3, 131072},
    {"ERNIE-4.5-21B-A3B", R"({"architectures":["Ernie4_5_MoeForCausalLM"],"bos_token_id":1,"eos_token_id":2,
      "hidden_act":"silu","hidden_size":2560,"intermediate_size":12288,"max_position_embeddings":131072,
      "model_type":"ernie4_5_moe","moe_capacity":[64,64,64],"moe_gate":"topk","moe_intermediate_size":1536,"moe_k":6,
      "moe_layer_end_index":27,"moe_layer_interval":1,"moe_layer_start_index":1,"moe_num_experts":64,
      "moe_num_shared_experts":2,"moe_use_aux_free":true,"num_attention_heads":20,"num_hidden_layers":28,
      "num_key_value_heads":4,"num_nextn_predict_layers":1,"rms_norm_eps":1e-05,"rope_scaling":null,
      "rope_theta":500000.0,"tie_word_embeddings":true,"torch_dtype":"bfloat16","use_bias":false,
      "vocab_size":103424})",
     21.8, 131072},
    {"GLM-4.5-Air", R"({"architectures":["Glm4MoeForCausalLM"],"attention_bias":true,
      "eos_token_id":[151329,151336,151338],"first_k_dense_replace":1,"head_dim":128,"hidden_act":"silu",
      "hidden_size":4096,"intermediate_size":10944,"max_position_embeddings":131072,"model_type":"glm4_moe",
      "moe_intermediate_size":1408,"n_group":1,"n_routed_experts":128,"n_shared_experts":1,"norm_topk_prob":true,
      "num_attention_heads":96,"num_experts_per_tok":8,"num_hidden_layers":46,"num_key_value_heads":8,
      "num_nextn_predict_layers":1,"partial_rotary_factor":0.5,"rms_norm_eps":1e-05,"rope_scaling":null,
      "rope_theta":1000000,"routed_scaling_factor":1.0,"tie_word_embeddings":false,"topk_group":1,
      "torch_dtype":"bfloat16","use_qk_norm":false,"vocab_size":151552})",
     106.0, 131072},
    {"Hy3", R"({"architectures":["HYV3ForCausalLM"],"attention_bias":false,"first_k_dense_replace":1,"head_dim":128,
      "hidden_act":"silu","hidden_size":4096,"intermediate_size":13312,"max_position_embeddings":131072,
      "model_type":"hy_v3","moe_intermediate_size":1536,"moe_router_enable_expert_bias":true,
      "moe_router_use_sigmoid":true,"num_attention_heads":64,"num_experts":192,"num_experts_per_tok":8,
      "num_hidden_layers":80,"num_key_value_heads":8,"num_shared_experts":1,"qk_norm":true,"rms_norm_eps":1e-05,
      "rope_parameters":{"rope_theta":11158840.0,"rope_type":"default"},"route_norm":true,
      "router_scaling_factor":2.826,"tie_word_embeddings":false,"dtype":"bfloat16","vocab_size":120832})",
     295.0, 131072},
    {"MiniMax-M2", R"({"architectures":["MiniMaxM2ForCausalLM"],"attn_type_list":[1,1,1],"bos_token_id":200034,
      "eos_token_id":200020,"head_dim":128,"hidden_act":"silu","hidden_size":3072,"intermediate_size":1536,
      "max_position_embeddings":196608,"model_type":"minimax_m2","mtp_transformer_layers":1,
      "num_attention_heads":48,"num_experts_per_tok":8,"num_hidden_layers":62,"num_key_value_heads":8,
      "num_local_experts":256,"num_mtp_modules":3,"qk_norm_type":"per_layer","rms_norm_eps":1e-06,
      "rope_theta":5000000,"rotary_dim":64,"scoring_func":"sigmoid","shared_intermediate_size":0,
      "tie_word_embeddings":false,"torch_dtype":"bfloat16","use_qk_norm":true,"use_routing_bias":true,
      "vocab_size":200064,"quantization_config":{"activation_scheme":"dynamic","fmt":"float8_e4m3fn",
      "quant_method":"fp8","weight_block_size":[128,128],
      "modules_to_not_convert":["gate","e_score_correction_bias","lm_head"]}})",
     229.0, 196608},
    {"gpt-oss-120b", R"({"architectures":["GptOssForCausalLM"],"attention_bias":true,"attention_dropout":0.0,
      "eos_token_id":200002,"experts_per_token":4,"head_dim":64,"hidden_act":"silu","hidden_size":2880,
      "initial_context_length":4096,"intermediate_size":2880,"max_position_embeddings":131072,
      "model_type":"gpt_oss","num_attention_heads":64,"num_experts_per_tok":4,"num_hidden_layers":36,
      "num_key_value_heads":8,"num_local_experts":128,"output_router_logits":false,"rms_norm_eps":1e-05,
      "rope_scaling":{"beta_fast":32.0,"beta_slow":1.0,"factor":32.0,"original_max_position_embeddings":4096,
      "rope_type":"yarn","truncate":false},"rope_theta":150000,"router_aux_loss_coef":0.9,"sliding_window":128,
      "swiglu_limit":7.0,"tie_word_embeddings":false,"torch_dtype":"bfloat16","vocab_size":201088,
      "quantization_config":{"modules_to_not_convert":["model.layers.*.self_attn","model.layers.*.mlp.router",
      "model.embed_tokens","lm_head"],"quant_method":"mxfp4"}})",
     116.8, 131072},
};

ModelConfig known(std::string_view name) {
  const auto found = std::ranges::find(kMixtures, name, &SizedConfig::name);
  return parse_config(found->config).value();
}

/// Returns the message for a published config.json in which `from` is replaced; "accepted" if there is none.
std::string refusal(std::string_view name, std::string_view from, std::string_view to) {
  std::string text = std::ranges::find(kMixtures, name, &SizedConfig::name)->config;
  const size_t at = text.find(from);
  if (at == std::string::npos) return "nothing to replace";
  const auto config = parse_config(text.replace(at, from.size(), to));
  return config ? "accepted" : config.error().message;
}

bool has_tensor(const ModelConfig& config, std::string_view name, const tensor::Shape& shape) {
  const auto specs = stage_tensors(config, {.layers = {0, config.layer_count()}, .first = true, .last = true});
  return std::ranges::any_of(
      specs, [&](const TensorSpec& spec) { return spec.stored_name() == name && spec.stored_shape() == shape; });
}

}  // namespace

TEST_CASE("published mixtures have their parameters and contexts") {
  for (const SizedConfig& mixture : kMixtures) {
    CAPTURE(mixture.name);
    const auto config = parse_config(mixture.config);
    if (!config) FAIL(config.error().message);
    check_sizes(mixture, *config);
  }
}

TEST_CASE("published mixtures route as their papers say") {
  const MoeConfig glm = *known("GLM-4.5-Air").layer(1).feed_forward.moe;
  REQUIRE(glm.routing() == tensor::Routing{.experts_per_row = 8,
                                           .renormalize = true,
                                           .score = tensor::RouterScore::kSigmoid,
                                           .sum_epsilon = 1e-20,
                                           .group_score = tensor::GroupScore::kSumOfTwo});
  REQUIRE(glm.choice_bias);
  REQUIRE(glm.f32_router);
  REQUIRE(glm.shared == SharedExpertConfig{.width = 1408});
  const MoeConfig hy = *known("Hy3").layer(1).feed_forward.moe;
  REQUIRE(hy.weight_scale == 2.826f);
  const MoeConfig ernie = *known("ERNIE-4.5-21B-A3B").layer(1).feed_forward.moe;
  REQUIRE(ernie.routing() == tensor::Routing{.experts_per_row = 6, .renormalize = true, .min_sum = 1e-12});
  REQUIRE(ernie.shared == SharedExpertConfig{.width = 3072});
  const MoeConfig qwen = *known("Qwen1.5-MoE-A2.7B").layer(0).feed_forward.moe;
  REQUIRE(qwen.routing().is_plain_softmax());
  REQUIRE(qwen.shared == SharedExpertConfig{.width = 5632, .has_gate = true});
  const MoeConfig oss = *known("gpt-oss-120b").layer(0).feed_forward.moe;
  REQUIRE(oss.router_bias);
  REQUIRE(oss.biases);
  REQUIRE(oss.activation == tensor::GatedActivation{.function = tensor::GatedFunction::kClampedSwiglu});
  REQUIRE_FALSE(oss.shared);
}

TEST_CASE("published mixtures have their dense layers and windows") {
  for (const char* name : {"GLM-4.5-Air", "Hy3", "ERNIE-4.5-21B-A3B"}) {
    CAPTURE(name);
    const ModelConfig config = known(name);
    for (int32_t layer = 0; layer < config.layer_count(); ++layer) REQUIRE(config.is_sparse(layer) == (layer > 0));
  }
  const ModelConfig oss = known("gpt-oss-120b");
  for (int32_t layer = 0; layer < oss.layer_count(); ++layer) {
    REQUIRE(oss.is_sparse(layer));
    REQUIRE(oss.layer(layer).attention.window == (layer % 2 == 0 ? 128 : 0));
    REQUIRE(oss.layer(layer).attention.sinks);
  }
  const ModelConfig minimax = known("MiniMax-M2");
  REQUIRE(rotary_dim(minimax, minimax.layer(0).attention) == 64);
  REQUIRE(minimax.layer(0).attention.qk_norm == QkNorm::kAllHeads);
}

TEST_CASE("tensors of mixtures are found under their published names") {
  REQUIRE(has_tensor(known("gpt-oss-120b"), "model.layers.0.mlp.experts.gate_up_proj_blocks", {128, 5760, 2880}));
  REQUIRE(has_tensor(known("gpt-oss-120b"), "model.layers.35.mlp.experts.down_proj_bias", {128, 2880}));
  REQUIRE(has_tensor(known("gpt-oss-120b"), "model.layers.0.mlp.router.bias", {128}));
  ModelConfig plain = known("gpt-oss-120b");
  plain.names.expert_storage = ExpertStorage::kColumns;
  REQUIRE(has_tensor(plain, "model.layers.0.mlp.experts.gate_up_proj", {128, 2880, 5760}));
  REQUIRE(has_tensor(known("granite-3.1-3b-a800m"), "model.layers.3.block_sparse_moe.input_linear.weight",
                     {40, 1024, 1536}));
  REQUIRE(has_tensor(known("GLM-4.5-Air"), "model.layers.1.mlp.gate.e_score_correction_bias", {128}));
  REQUIRE(has_tensor(known("ERNIE-4.5-21B-A3B"), "model.layers.1.mlp.moe_statics.e_score_correction_bias", {1, 64}));
  REQUIRE(has_tensor(known("Hy3"), "model.layers.1.mlp.shared_mlp.down_proj.weight", {4096, 1536}));
  REQUIRE(has_tensor(known("MiniMax-M2"), "model.layers.0.block_sparse_moe.experts.255.w2.weight", {3072, 1536}));
  REQUIRE(has_tensor(known("Qwen1.5-MoE-A2.7B"), "model.layers.0.mlp.shared_expert_gate.weight", {1, 2048}));
}

TEST_CASE("routers and what mixtures lack stay unquantized") {
  for (const SizedConfig& mixture : kMixtures) {
    CAPTURE(mixture.name);
    const ModelConfig config = parse_config(mixture.config).value();
    const auto specs = stage_tensors(config, {.layers = {1, 2}, .first = false, .last = false});
    for (const TensorSpec& spec : specs) {
      const bool of_router = spec.name.find("router") != std::string::npos || spec.name.ends_with("gate.weight") ||
                             spec.name.find("bias") != std::string::npos;
      if (of_router) REQUIRE_FALSE(spec.projection);
    }
  }
}

TEST_CASE("mixtures name the features that they need") {
  const auto needed = [](std::string_view name, Feature feature) { return needs(known(name), feature); };
  REQUIRE(needed("GLM-4.5-Air", Feature::kRouting));
  REQUIRE(needed("GLM-4.5-Air", Feature::kF32Weights));
  REQUIRE_FALSE(needed("GLM-4.5-Air", Feature::kGatedSums));
  REQUIRE(needed("Qwen1.5-MoE-A2.7B", Feature::kGatedSums));
  REQUIRE_FALSE(needed("Qwen1.5-MoE-A2.7B", Feature::kRouting));
  REQUIRE(needed("gpt-oss-120b", Feature::kExpertActivation));
  REQUIRE(needed("gpt-oss-120b", Feature::kExpertBiases));
  REQUIRE_FALSE(needed("granite-3.1-3b-a800m", Feature::kRouting));
}

TEST_CASE("switches that a mixture does not compute are refused") {
  REQUIRE_THAT(refusal("Qwen1.5-MoE-A2.7B", R"("use_sliding_window":false)", R"("use_sliding_window":true)"),
               Mentions("use_sliding_window"));
  REQUIRE_THAT(refusal("ERNIE-4.5-21B-A3B", R"("use_bias":false)", R"("use_bias":true)"), Mentions("use_bias"));
  REQUIRE_THAT(refusal("MiniMax-M2", R"("scoring_func":"sigmoid")", R"("scoring_func":"softmax")"),
               Mentions("scoring_func", "softmax", "sigmoid"));
  REQUIRE_THAT(refusal("MiniMax-M2", R"("shared_intermediate_size":0)", R"("shared_intermediate_size":8)"),
               Mentions("shared_intermediate_size", "8"));
  REQUIRE_THAT(refusal("MiniMax-M2", "[1,1,1]", "[1,0,1]"), Mentions("attn_type_list"));
  REQUIRE_THAT(refusal("MiniMax-M2", R"("per_layer")", R"("per_head")"), Mentions("qk_norm_type", "per_head"));
  REQUIRE_THAT(refusal("Hy3", R"("moe_router_use_sigmoid":true)", R"("moe_router_use_sigmoid":false)"),
               Mentions("moe_router_use_sigmoid"));
  REQUIRE_THAT(refusal("GLM-4.5-Air", R"("n_group":1)", R"("n_group":3)"), Mentions("128", "n_group", "3"));
  REQUIRE_THAT(refusal("GLM-4.5-Air", R"("topk_group":1)", R"("topk_group":2)"), Mentions("topk_group", "2"));
  REQUIRE_THAT(refusal("gpt-oss-120b", R"("num_experts_per_tok":4)", R"("num_experts_per_tok":129)"),
               Mentions("num_experts_per_tok", "129", "128"));
}

TEST_CASE("members that repeat what a mixture has are taken") {
  const std::string glm = R"("n_group":1)";
  for (const std::string count : {"num_experts", "num_local_experts"}) {
    const auto with_count = [&](const std::string& value) {
      return refusal("GLM-4.5-Air", glm, glm + ",\"" + count + "\":" + value);
    };
    REQUIRE(with_count("128") == "accepted");
    REQUIRE_THAT(with_count("64"), Mentions(count, "64"));
  }
  const std::string qwen = R"("architectures":["Qwen2MoeForCausalLM"])";
  REQUIRE_THAT(refusal("Qwen1.5-MoE-A2.7B", qwen, qwen + R"(,"use_qk_norm":true)"), Mentions("use_qk_norm"));
  // A config of Qwen3-Coder.
  const std::string normed = R"("architectures":["Qwen3MoeForCausalLM"],"use_qk_norm":true)";
  REQUIRE(refusal("Qwen1.5-MoE-A2.7B", qwen, normed) == "accepted");
  const std::string granite = R"("num_local_experts":40)";
  REQUIRE(refusal("granite-3.1-3b-a800m", granite, granite + R"(,"moe_intermediate_size":512)") == "accepted");
  REQUIRE_THAT(refusal("granite-3.1-3b-a800m", granite, granite + R"(,"moe_intermediate_size":256)"),
               Mentions("moe_intermediate_size", "256"));
}

TEST_CASE("weights of fused experts are counted and hashed one by one") {
  const auto backend = cpu::make_backend({.threads = 1, .compute_dtype = tensor::DType::kBF16});
  for (const char* name : {"qwen2moe", "granitemoe", "gpt_oss", "gpt_oss-mxfp4", "qwen3next", "granitemoehybrid",
                           "nemotronh-moe", "falcon-h1"}) {
    CAPTURE(name);
    const auto folder = test::source_dir() / "tests/golden" / name;
    const auto checkpoint = Checkpoint::open(folder).value();
    const ModelConfig config = read_config(folder).value();
    LoadProgress last;
    LoadOptions options{.progress = [&last](const LoadProgress& progress) { last = progress; }};
    options.with_fingerprint = true;
    const StageSpan span{.layers = {0, config.layer_count()}, .first = true, .last = true};
    const auto weights = load_weights(*checkpoint, config, span, *backend, options);
    if (!weights) FAIL(weights.error().message);
    REQUIRE(last.tensors_total == stage_tensors(config, span).size());
    REQUIRE(last.tensors_done == last.tensors_total);
    REQUIRE(last.bytes_done == last.bytes_total);
    REQUIRE(weights->fingerprint);
  }
}
