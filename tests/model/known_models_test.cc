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
    {"Phi-4", R"({"architectures":["Phi3ForCausalLM"],"attention_bias":false,"bos_token_id":100257,
      "eos_token_id":100265,"hidden_act":"silu","hidden_size":5120,"intermediate_size":17920,
      "max_position_embeddings":16384,"model_type":"phi3","num_attention_heads":40,"num_hidden_layers":40,
      "num_key_value_heads":10,"original_max_position_embeddings":16384,"rms_norm_eps":1e-05,"rope_scaling":null,
      "rope_theta":250000,"sliding_window":null,"tie_word_embeddings":false,"torch_dtype":"bfloat16",
      "vocab_size":100352})",
     14659507200, 16384},
    {"Granite-3.1-8B", R"({"architectures":["GraniteForCausalLM"],"attention_bias":false,
      "attention_multiplier":0.0078125,"bos_token_id":0,"embedding_multiplier":12.0,"eos_token_id":0,
      "hidden_act":"silu","hidden_size":4096,"intermediate_size":12800,"logits_scaling":16.0,
      "max_position_embeddings":131072,"mlp_bias":false,"model_type":"granite","num_attention_heads":32,
      "num_hidden_layers":40,"num_key_value_heads":8,"residual_multiplier":0.22,"rms_norm_eps":1e-05,
      "rope_scaling":null,"rope_theta":10000000.0,"tie_word_embeddings":true,"torch_dtype":"bfloat16",
      "vocab_size":49155})",
     8170848256, 131072},
    {"OLMo-2-7B", R"({"architectures":["Olmo2ForCausalLM"],"attention_bias":false,"eos_token_id":100257,
      "hidden_act":"silu","hidden_size":4096,"intermediate_size":11008,"max_position_embeddings":4096,
      "model_type":"olmo2","num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":32,
      "rms_norm_eps":1e-06,"rope_scaling":null,"rope_theta":500000,"tie_word_embeddings":false,
      "torch_dtype":"bfloat16","vocab_size":100352})",
     7298617344, 4096},
    {"Gemma-2-2B", R"({"architectures":["Gemma2ForCausalLM"],"attention_bias":false,"attn_logit_softcapping":50.0,
      "bos_token_id":2,"cache_implementation":"hybrid","eos_token_id":[1,107],"final_logit_softcapping":30.0,
      "head_dim":256,"hidden_act":"gelu_pytorch_tanh","hidden_activation":"gelu_pytorch_tanh","hidden_size":2304,
      "intermediate_size":9216,"max_position_embeddings":8192,"model_type":"gemma2","num_attention_heads":8,
      "num_hidden_layers":26,"num_key_value_heads":4,"query_pre_attn_scalar":256,"rms_norm_eps":1e-06,
      "rope_theta":10000.0,"sliding_window":4096,"torch_dtype":"bfloat16","use_cache":true,"vocab_size":256000})",
     2614341888, 8192},
    {"Gemma-3-1B", R"({"architectures":["Gemma3ForCausalLM"],"attention_bias":false,"attn_logit_softcapping":null,
      "bos_token_id":2,"eos_token_id":[1,106],"final_logit_softcapping":null,"head_dim":256,
      "hidden_activation":"gelu_pytorch_tanh","hidden_size":1152,"intermediate_size":6912,
      "max_position_embeddings":32768,"model_type":"gemma3_text","num_attention_heads":4,"num_hidden_layers":26,
      "num_key_value_heads":1,"query_pre_attn_scalar":256,"rms_norm_eps":1e-06,"rope_local_base_freq":10000,
      "rope_scaling":null,"rope_theta":1000000,"sliding_window":512,"sliding_window_pattern":6,
      "torch_dtype":"bfloat16","vocab_size":262144})",
     999885952, 32768},
    {"Gemma-3-12B", R"({"architectures":["Gemma3ForConditionalGeneration"],"boi_token_index":255999,
      "eos_token_id":[1,106],"mm_tokens_per_image":256,"model_type":"gemma3","text_config":{"hidden_size":3840,
      "intermediate_size":15360,"model_type":"gemma3_text","num_attention_heads":16,"num_hidden_layers":48,
      "num_key_value_heads":8,"rope_scaling":{"factor":8.0,"rope_type":"linear"},"sliding_window":1024},
      "torch_dtype":"bfloat16","vision_config":{"hidden_size":1152}})",
     11766034176, 131072},
    {"Mistral-Small-3.1-24B", R"({"architectures":["Mistral3ForConditionalGeneration"],"image_token_index":10,
      "model_type":"mistral3","spatial_merge_size":2,"text_config":{"attention_dropout":0.0,"head_dim":128,
      "hidden_act":"silu","hidden_size":5120,"intermediate_size":32768,"max_position_embeddings":131072,
      "model_type":"mistral","num_attention_heads":32,"num_hidden_layers":40,"num_key_value_heads":8,
      "rms_norm_eps":1e-05,"rope_theta":1000000000.0,"sliding_window":null,"vocab_size":131072},
      "torch_dtype":"bfloat16","vision_config":{"model_type":"pixtral"}})",
     23572403200, 131072},
    {"GLM-4-9B-0414", R"({"architectures":["Glm4ForCausalLM"],"attention_bias":true,
      "eos_token_id":[151329,151336,151338],"head_dim":128,"hidden_act":"silu","hidden_size":4096,
      "intermediate_size":13696,"max_position_embeddings":32768,"model_type":"glm4","num_attention_heads":32,
      "num_hidden_layers":40,"num_key_value_heads":2,"partial_rotary_factor":0.5,"rms_norm_eps":1e-05,
      "rope_theta":10000.0,"tie_word_embeddings":false,"torch_dtype":"bfloat16","vocab_size":151552})",
     9400279040, 32768},
    {"Command-R7B", R"({"architectures":["Cohere2ForCausalLM"],"attention_bias":false,"bos_token_id":5,
      "eos_token_id":255001,"head_dim":128,"hidden_act":"silu","hidden_size":4096,"intermediate_size":14336,
      "layer_norm_eps":1e-05,"logit_scale":0.25,"max_position_embeddings":132096,"model_type":"cohere2",
      "num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":8,"order_of_interleaved_layers":
      "local_attn_first","position_embedding_type":"rope_gptj","rope_scaling":null,"rope_theta":50000,
      "rotary_pct":1.0,"sliding_window":4096,"sliding_window_pattern":4,"torch_dtype":"bfloat16",
      "use_embedding_sharing":true,"use_gated_activation":true,"use_parallel_block":true,"vocab_size":256000})",
     8028033024, 132096},
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
