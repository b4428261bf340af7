#include <catch2/catch.hpp>

#include "model/families/read_config.h"
#include "model/tensor_list.h"

using namespace millrace::model;

namespace {

/// The relevant fields of published checkpoints' config.json, and the parameter counts of their model cards.
struct KnownModel {
  const char* name;
  const char* config;
  uint64_t parameters;
  int32_t context_length;
};

const KnownModel kModels[] = {
    {"Llama-3.2-1B", R"({"architectures":["LlamaForCausalLM"],"attention_bias":false,"bos_token_id":128000,
      "eos_token_id":128001,"head_dim":64,"hidden_act":"silu","hidden_size":2048,"initializer_range":0.02,
      "intermediate_size":8192,"max_position_embeddings":131072,"mlp_bias":false,"model_type":"llama",
      "num_attention_heads":32,"num_hidden_layers":16,"num_key_value_heads":8,"pretraining_tp":1,"rms_norm_eps":1e-05,
      "rope_scaling":{"factor":32.0,"high_freq_factor":4.0,"low_freq_factor":1.0,
      "original_max_position_embeddings":8192,"rope_type":"llama3"},"rope_theta":500000.0,"tie_word_embeddings":true,
      "torch_dtype":"bfloat16","use_cache":true,"vocab_size":128256})",
     1235814400, 131072},
    {"Llama-3.1-8B", R"({"architectures":["LlamaForCausalLM"],"attention_bias":false,"attention_dropout":0.0,
      "eos_token_id":[128001,128008,128009],"hidden_act":"silu","hidden_size":4096,"intermediate_size":14336,
      "max_position_embeddings":131072,"mlp_bias":false,"num_attention_heads":32,"num_hidden_layers":32,
      "num_key_value_heads":8,"rms_norm_eps":1e-05,"rope_scaling":{"factor":8.0,"low_freq_factor":1.0,
      "high_freq_factor":4.0,"original_max_position_embeddings":8192,"rope_type":"llama3"},"rope_theta":500000.0,
      "tie_word_embeddings":false,"torch_dtype":"bfloat16","vocab_size":128256})",
     8030261248, 131072},
    {"Mistral-7B-v0.1", R"({"architectures":["MistralForCausalLM"],"bos_token_id":1,"eos_token_id":2,
      "hidden_act":"silu","hidden_size":4096,"intermediate_size":14336,"max_position_embeddings":32768,
      "num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":8,"rms_norm_eps":1e-05,
      "rope_theta":10000.0,"sliding_window":4096,"tie_word_embeddings":false,"torch_dtype":"bfloat16",
      "vocab_size":32000})",
     7241732096, 32768},
    {"Qwen2.5-0.5B", R"({"architectures":["Qwen2ForCausalLM"],"attention_dropout":0.0,"bos_token_id":151643,
      "eos_token_id":151643,"hidden_act":"silu","hidden_size":896,"intermediate_size":4864,
      "max_position_embeddings":32768,"max_window_layers":24,"num_attention_heads":14,"num_hidden_layers":24,
      "num_key_value_heads":2,"rms_norm_eps":1e-06,"rope_theta":1000000.0,"sliding_window":32768,
      "tie_word_embeddings":true,"torch_dtype":"bfloat16","use_mrope":false,"use_sliding_window":false,
      "vocab_size":151936})",
     494032768, 32768},
    {"Qwen2.5-7B with yarn", R"({"architectures":["Qwen2ForCausalLM"],"eos_token_id":151645,"hidden_act":"silu",
      "hidden_size":3584,"intermediate_size":18944,"max_position_embeddings":32768,"max_window_layers":28,
      "num_attention_heads":28,"num_hidden_layers":28,"num_key_value_heads":4,"rms_norm_eps":1e-06,
      "rope_theta":1000000.0,"rope_scaling":{"factor":4.0,"original_max_position_embeddings":32768,"type":"yarn"},
      "sliding_window":131072,"tie_word_embeddings":false,"torch_dtype":"bfloat16","use_sliding_window":false,
      "vocab_size":152064})",
     7615616512, 131072},
    {"Qwen3-0.6B", R"({"architectures":["Qwen3ForCausalLM"],"attention_bias":false,"bos_token_id":151643,
      "eos_token_id":151645,"head_dim":128,"hidden_act":"silu","hidden_size":1024,"intermediate_size":3072,
      "max_position_embeddings":40960,"max_window_layers":28,"num_attention_heads":16,"num_hidden_layers":28,
      "num_key_value_heads":8,"rms_norm_eps":1e-06,"rope_scaling":null,"rope_theta":1000000,"sliding_window":null,
      "tie_word_embeddings":true,"torch_dtype":"bfloat16","use_sliding_window":false,"vocab_size":151936})",
     596049920, 40960},
    {"Qwen3-30B-A3B", R"({"architectures":["Qwen3MoeForCausalLM"],"attention_bias":false,"bos_token_id":151643,
      "decoder_sparse_step":1,"eos_token_id":151645,"head_dim":128,"hidden_act":"silu","hidden_size":2048,
      "intermediate_size":6144,"max_position_embeddings":40960,"max_window_layers":48,"mlp_only_layers":[],
      "model_type":"qwen3_moe","moe_intermediate_size":768,"norm_topk_prob":true,"num_attention_heads":32,
      "num_experts":128,"num_experts_per_tok":8,"num_hidden_layers":48,"num_key_value_heads":4,
      "output_router_logits":false,"rms_norm_eps":1e-06,"rope_scaling":null,"rope_theta":1000000.0,
      "router_aux_loss_coef":0.001,"sliding_window":null,"tie_word_embeddings":false,"torch_dtype":"bfloat16",
      "use_sliding_window":false,"vocab_size":151936})",
     30532122624, 40960},
    {"Mixtral-8x7B-v0.1", R"({"architectures":["MixtralForCausalLM"],"attention_dropout":0.0,"bos_token_id":1,
      "eos_token_id":2,"hidden_act":"silu","hidden_size":4096,"intermediate_size":14336,
      "max_position_embeddings":32768,"model_type":"mixtral","num_attention_heads":32,"num_experts_per_tok":2,
      "num_hidden_layers":32,"num_key_value_heads":8,"num_local_experts":8,"output_router_logits":false,
      "rms_norm_eps":1e-05,"rope_theta":1000000.0,"router_aux_loss_coef":0.02,"sliding_window":null,
      "tie_word_embeddings":false,"torch_dtype":"bfloat16","vocab_size":32000})",
     46702792704, 32768},
    {"DeepSeek-V2-Lite", R"({"architectures":["DeepseekV2ForCausalLM"],"attention_bias":false,"bos_token_id":100000,
      "eos_token_id":100001,"first_k_dense_replace":1,"hidden_act":"silu","hidden_size":2048,"intermediate_size":10944,
      "kv_lora_rank":512,"max_position_embeddings":163840,"model_type":"deepseek_v2","moe_intermediate_size":1408,
      "moe_layer_freq":1,"n_group":1,"n_routed_experts":64,"n_shared_experts":2,"norm_topk_prob":false,
      "num_attention_heads":16,"num_experts_per_tok":6,"num_hidden_layers":27,"num_key_value_heads":16,
      "q_lora_rank":null,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"rms_norm_eps":1e-06,
      "rope_scaling":{"beta_fast":32,"beta_slow":1,"factor":40,"mscale":0.707,"mscale_all_dim":0.707,
      "original_max_position_embeddings":4096,"type":"yarn"},"rope_theta":10000,"routed_scaling_factor":1.0,
      "scoring_func":"softmax","seq_aux":true,"tie_word_embeddings":false,"topk_group":1,"topk_method":"greedy",
      "torch_dtype":"bfloat16","use_cache":true,"v_head_dim":128,"vocab_size":102400})",
     15706484224, 163840},
    {"DeepSeek-V3.1", R"({"architectures":["DeepseekV3ForCausalLM"],"attention_bias":false,"bos_token_id":0,
      "eos_token_id":1,"ep_size":1,"first_k_dense_replace":3,"hidden_act":"silu","hidden_size":7168,
      "intermediate_size":18432,"kv_lora_rank":512,"max_position_embeddings":163840,"model_type":"deepseek_v3",
      "moe_intermediate_size":2048,"moe_layer_freq":1,"n_group":8,"n_routed_experts":256,"n_shared_experts":1,
      "norm_topk_prob":true,"num_attention_heads":128,"num_experts_per_tok":8,"num_hidden_layers":61,
      "num_key_value_heads":128,"num_nextn_predict_layers":1,"q_lora_rank":1536,"qk_nope_head_dim":128,
      "qk_rope_head_dim":64,"quantization_config":{"activation_scheme":"dynamic","fmt":"e4m3","quant_method":"fp8",
      "weight_block_size":[128,128]},"rms_norm_eps":1e-06,"rope_scaling":{"beta_fast":32,"beta_slow":1,"factor":40,
      "mscale":1.0,"mscale_all_dim":1.0,"original_max_position_embeddings":4096,"type":"yarn"},"rope_theta":10000,
      "routed_scaling_factor":2.5,"scoring_func":"sigmoid","tie_word_embeddings":false,"topk_group":4,
      "topk_method":"noaux_tc","torch_dtype":"bfloat16","use_cache":true,"v_head_dim":128,"vocab_size":129280})",
     671026419200, 163840},
    {"Kimi-K2-Instruct", R"({"architectures":["DeepseekV3ForCausalLM"],"attention_bias":false,"aux_loss_alpha":0.001,
      "bos_token_id":163584,"eos_token_id":163585,"first_k_dense_replace":1,"hidden_act":"silu","hidden_size":7168,
      "intermediate_size":18432,"kv_lora_rank":512,"max_position_embeddings":131072,"model_type":"kimi_k2",
      "moe_intermediate_size":2048,"moe_layer_freq":1,"n_group":1,"n_routed_experts":384,"n_shared_experts":1,
      "norm_topk_prob":true,"num_attention_heads":64,"num_experts_per_tok":8,"num_hidden_layers":61,
      "num_key_value_heads":64,"num_nextn_predict_layers":0,"q_lora_rank":1536,"qk_nope_head_dim":128,
      "qk_rope_head_dim":64,"quantization_config":{"activation_scheme":"dynamic","fmt":"e4m3","quant_method":"fp8",
      "weight_block_size":[128,128]},"rms_norm_eps":1e-06,"rope_scaling":{"beta_fast":1.0,"beta_slow":1.0,
      "factor":32.0,"mscale":1.0,"mscale_all_dim":1.0,"original_max_position_embeddings":4096,"type":"yarn"},
      "rope_theta":50000.0,"routed_scaling_factor":2.827,"scoring_func":"sigmoid","tie_word_embeddings":false,
      "topk_group":1,"topk_method":"noaux_tc","torch_dtype":"bfloat16","v_head_dim":128,"vocab_size":163840})",
     1026408232448, 131072},
};

}  // namespace

TEST_CASE("published configs give the published parameter counts") {
  for (const KnownModel& known : kModels) {
    CAPTURE(known.name);
    const auto config = parse_config(known.config);
    if (!config) FAIL(config.error().message);
    REQUIRE(parameter_count(*config) == known.parameters);
    REQUIRE(config->context_length() == known.context_length);
    REQUIRE(config->dtype == millrace::tensor::DType::kBF16);
  }
}
