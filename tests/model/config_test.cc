#include "model/families/read_config.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <map>
#include <random>

#include "model/generation_config.h"
#include "model/checkpoint_files.h"
#include "model/plain_model.h"
#include "support/mentions.h"

using namespace millrace;
using namespace millrace::model;
using millrace::test::Mentions;

namespace {

/// Returns a small valid config with fields replaced (raw JSON) or removed (empty text).
std::string config_text(const std::map<std::string, std::string>& changes = {}) {
  std::map<std::string, std::string> fields{{"architectures", R"(["LlamaForCausalLM"])"},
                                            {"vocab_size", "512"},
                                            {"hidden_size", "64"},
                                            {"intermediate_size", "128"},
                                            {"num_hidden_layers", "4"},
                                            {"num_attention_heads", "4"},
                                            {"num_key_value_heads", "2"},
                                            {"max_position_embeddings", "256"},
                                            {"rms_norm_eps", "1e-06"},
                                            {"rope_theta", "10000.0"},
                                            {"torch_dtype", "\"bfloat16\""},
                                            {"eos_token_id", "2"}};
  for (const auto& [key, value] : changes) fields[key] = value;
  std::string text = "{";
  for (const auto& [key, value] : fields)
    if (!value.empty()) text += (text.size() > 1 ? ",\"" : "\"") + key + "\":" + value;
  return text + "}";
}

ModelConfig parsed(const std::map<std::string, std::string>& changes = {}) {
  const auto config = parse_config(config_text(changes));
  if (!config) FAIL(config.error().message);
  return *config;
}

std::string refused(const std::map<std::string, std::string>& changes) {
  const auto config = parse_config(config_text(changes));
  if (config) return "accepted";
  REQUIRE(config.error().code == ErrorCode::kData);
  return config.error().message;
}

const std::string kKnown = "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, ";

using Changes = std::map<std::string, std::string>;

/// Returns the fields of a Qwen3-MoE config with further changes.
Changes qwen3_moe(const Changes& changes = {}) {
  Changes all{{"architectures", R"(["Qwen3MoeForCausalLM"])"},
              {"num_experts", "8"},
              {"num_experts_per_tok", "2"},
              {"moe_intermediate_size", "48"}};
  for (const auto& [key, value] : changes) all[key] = value;
  return all;
}

Changes mixtral(const Changes& changes = {}) {
  Changes all{{"architectures", R"(["MixtralForCausalLM"])"}, {"num_local_experts", "8"}, {"num_experts_per_tok", "2"}};
  for (const auto& [key, value] : changes) all[key] = value;
  return all;
}

}  // namespace

TEST_CASE("a Llama config is read") {
  const ModelConfig config = parsed();
  REQUIRE(config.architecture == "LlamaForCausalLM");
  REQUIRE(config.dtype == tensor::DType::kBF16);
  REQUIRE(config.vocab_size == 512);
  REQUIRE(config.hidden_size == 64);
  REQUIRE(config.layer_count() == 4);
  const LayerConfig& layer = config.layer(3);
  REQUIRE(layer.feed_forward == FeedForwardConfig{.width = 128});
  REQUIRE(layer.norms == LayerNorms{});
  REQUIRE(layer.residual_multiplier == 1.0f);
  REQUIRE_FALSE(layer.parallel);
  const AttentionConfig attention{.head_count = 4, .kv_head_count = 2, .head_dim = 16, .rope = 0, .scale = 0.25f};
  REQUIRE(layer.attention == attention);
  REQUIRE(attention.query_width() == 64);
  REQUIRE(attention.kv_width() == 32);
  REQUIRE(config.names == TensorNames{});
  REQUIRE(config.norm_epsilon == 1e-6f);
  REQUIRE_FALSE(config.tied_embeddings);
  REQUIRE(config.ropes == std::vector<RopeConfig>(1));
  REQUIRE(config.eos_token_ids == std::vector<TokenId>{2});
  REQUIRE_FALSE(config.bos_token_id);
  REQUIRE(config.context_length() == 256);
}

TEST_CASE("both spellings of rope and dtype mean the same") {
  const std::string llama3 = R"("rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,)"
                             R"("original_max_position_embeddings":64)";
  const ModelConfig older = parsed({{"rope_theta", "500000"}, {"rope_scaling", "{" + llama3 + "}"}});
  const ModelConfig newer = parsed({{"rope_theta", ""},
                                    {"rope_parameters", "{\"rope_theta\":500000.0," + llama3 + "}"},
                                    {"torch_dtype", ""},
                                    {"dtype", "\"bfloat16\""}});
  REQUIRE(older == newer);
  REQUIRE(older.ropes[0].kind == RopeKind::kLlama3);
  REQUIRE(older.ropes[0].theta == 500000.0);
  REQUIRE(older.ropes[0].factor == 8.0);
  REQUIRE(older.ropes[0].original_max_position == 64);
  const ModelConfig typed = parsed({{"rope_scaling", R"({"type":"linear","factor":2})"}});
  REQUIRE(typed.ropes[0].kind == RopeKind::kLinear);
  REQUIRE(parsed({{"rope_scaling", "null"}}) == parsed());
  // The dtype of codes, in checkpoints of some quantizers.
  REQUIRE(parsed({{"torch_dtype", "\"float8_e4m3fn\""}}).dtype == tensor::DType::kBF16);
}

TEST_CASE("yarn stretches the context length") {
  const ModelConfig config = parsed({{"rope_scaling", R"({"type":"yarn","factor":4,)"
                                                      R"("original_max_position_embeddings":128})"}});
  REQUIRE(config.ropes[0].kind == RopeKind::kYarn);
  REQUIRE(config.context_length() == 512);
  const ModelConfig without_original = parsed({{"rope_scaling", R"({"rope_type":"yarn","factor":2.0})"}});
  REQUIRE(without_original.ropes[0].original_max_position == 256);
}

TEST_CASE("a dual chunk attention model is served as plain attention") {
  const auto context = [](const std::string& chunks) {
    return parsed({{"max_position_embeddings", "1010000"}, {"dual_chunk_attention_config", chunks}}).context_length();
  };
  REQUIRE(context(R"({"chunk_size":262144,"local_size":8192,"original_max_position_embeddings":262144})") == 262144);
  REQUIRE(context(R"({"chunk_size":262144,"local_size":8192})") == 262144 - 8192);
  REQUIRE(context(R"({"original_max_position_embeddings":2000000})") == 1010000);
  REQUIRE(context("null") == 1010000);
  REQUIRE(parsed({{"dual_chunk_attention_config", R"({"original_max_position_embeddings":300})"},
                  {"rope_scaling", R"({"type":"yarn","factor":4})"}})
              .context_length() == 300);
  REQUIRE_THAT(refused({{"dual_chunk_attention_config", R"({"chunk_size":64,"local_size":64})"}}),
               Mentions("config.json", "dual_chunk_attention_config", "local_size 64", "chunk_size 64"));
}

TEST_CASE("each family has its own switches") {
  SECTION("Mistral slides on every layer, by default 4096 as in v0.1, not at all with null") {
    const std::string mistral = R"(["MistralForCausalLM"])";
    REQUIRE(test::windows_of(parsed({{"architectures", mistral}, {"sliding_window", "16"}})) == std::vector(4, 16));
    REQUIRE(test::windows_of(parsed({{"architectures", mistral}})) == std::vector(4, 4096));
    REQUIRE(test::windows_of(parsed({{"architectures", mistral}, {"sliding_window", "null"}})) == std::vector(4, 0));
  }
  SECTION("Qwen2 has biases and slides from max_window_layers, if at all") {
    const std::string qwen2 = R"(["Qwen2ForCausalLM"])";
    const ModelConfig still = parsed({{"architectures", qwen2}, {"sliding_window", "32"}});
    REQUIRE(still.layer(0).attention.qkv_bias);
    REQUIRE_FALSE(still.layer(0).attention.output_bias);
    REQUIRE(test::windows_of(still) == std::vector(4, 0));
    const ModelConfig sliding = parsed({{"architectures", qwen2},
                                        {"sliding_window", "32"},
                                        {"use_sliding_window", "true"},
                                        {"max_window_layers", "3"}});
    REQUIRE(test::windows_of(sliding) == std::vector{0, 0, 0, 32});
    const ModelConfig silent =
        parsed({{"architectures", qwen2}, {"use_sliding_window", "true"}, {"max_window_layers", "3"}});
    REQUIRE(test::windows_of(silent) == std::vector{0, 0, 0, 4096});
  }
  SECTION("layer_types goes before max_window_layers") {
    const ModelConfig config =
        parsed({{"architectures", R"(["Qwen3ForCausalLM"])"},
                {"sliding_window", "8"},
                {"use_sliding_window", "true"},
                {"layer_types", R"(["sliding_attention","full_attention","full_attention","sliding_attention"])"}});
    REQUIRE(test::windows_of(config) == std::vector{8, 0, 0, 8});
  }
  SECTION("Qwen3 normalises q and k and defaults to head_dim 128") {
    const std::string qwen3 = R"(["Qwen3ForCausalLM"])";
    REQUIRE(parsed({{"architectures", qwen3}}).layer(0).attention.head_dim == 128);
    const ModelConfig config = parsed({{"architectures", qwen3}, {"head_dim", "32"}, {"attention_bias", "true"}});
    REQUIRE(config.layer(0).attention.qk_norm == QkNorm::kPerHead);
    REQUIRE(config.layer(0).attention.head_dim == 32);
    REQUIRE(config.layer(0).attention.query_width() == 128);
    REQUIRE(config.layer(0).attention.qkv_bias);
    REQUIRE(config.layer(0).attention.output_bias);
  }
}

TEST_CASE("a Qwen3-MoE config gives sparse layers and experts") {
  const ModelConfig config = parsed(qwen3_moe());
  REQUIRE(*config.layer(0).feed_forward.moe ==
          MoeConfig{.expert_count = 8, .experts_per_token = 2, .intermediate_size = 48});
  REQUIRE(test::sparse_layers_of(config) == std::vector<bool>(4, true));
  REQUIRE(config.is_sparse(3));
  REQUIRE(config.layer(0).attention.qk_norm == QkNorm::kPerHead);
  REQUIRE(config.layer(0).attention.head_dim == 16);
  REQUIRE(test::windows_of(config) == std::vector(4, 0));
  REQUIRE(parsed(qwen3_moe({{"norm_topk_prob", "true"}})).layer(0).feed_forward.moe->renormalize);
  const auto sparse = [](const Changes& changes) { return test::sparse_layers_of(parsed(qwen3_moe(changes))); };
  REQUIRE(sparse({{"mlp_only_layers", "[1]"}}) == std::vector<bool>{true, false, true, true});
  REQUIRE(sparse({{"mlp_only_layers", "[0,3,70]"}}) == std::vector<bool>{false, true, true, false});
  REQUIRE(sparse({{"mlp_only_layers", "null"}, {"decoder_sparse_step", "2"}}) ==
          std::vector<bool>{false, true, false, true});
  REQUIRE(sparse({{"mlp_only_layers", "[1]"}, {"decoder_sparse_step", "2"}}) ==
          std::vector<bool>{false, false, false, true});
  REQUIRE(sparse({{"decoder_sparse_step", "5"}}) == std::vector<bool>(4, false));
  REQUIRE(parsed(qwen3_moe({{"num_experts", ""}, {"num_local_experts", "8"}})) == config);
  REQUIRE(parsed(qwen3_moe({{"num_local_experts", "8"}})) == config);
  const Changes windows{{"use_sliding_window", "true"}, {"sliding_window", "32"}, {"max_window_layers", "3"}};
  REQUIRE(test::windows_of(parsed(qwen3_moe(windows))) == std::vector(4, 32));
}

TEST_CASE("a Mixtral config is read") {
  const ModelConfig config = parsed(mixtral());
  REQUIRE(*config.layer(0).feed_forward.moe ==
          MoeConfig{.expert_count = 8, .experts_per_token = 2, .intermediate_size = 128, .renormalize = true});
  REQUIRE(config.names.experts == "block_sparse_moe.experts.");
  REQUIRE(test::sparse_layers_of(config) == std::vector<bool>(4, true));
  REQUIRE(config.layer(0).attention.qk_norm == QkNorm::kNone);
  REQUIRE(test::windows_of(config) == std::vector(4, 0));
  REQUIRE(test::windows_of(parsed(mixtral({{"sliding_window", "16"}}))) == std::vector(4, 16));
  REQUIRE(parsed(mixtral({{"sliding_window", "null"}})) == config);
  REQUIRE(parsed(mixtral({{"rope_theta", ""}})).ropes[0].theta == 1e6);
  REQUIRE(parsed(mixtral({{"rms_norm_eps", ""}})).norm_epsilon == 1e-5f);
}

TEST_CASE("experts that cannot be are refused by name") {
  REQUIRE_THAT(refused(qwen3_moe({{"num_experts_per_tok", "9"}})),
               Mentions("config.json", "num_experts_per_tok 9", "num_experts 8"));
  REQUIRE_THAT(refused(mixtral({{"num_experts_per_tok", "9"}})),
               Mentions("config.json", "num_experts_per_tok 9", "num_local_experts 8"));
  REQUIRE(parsed(qwen3_moe({{"num_experts_per_tok", "8"}})).layer(0).feed_forward.moe->experts_per_token == 8);
  REQUIRE_THAT(refused(qwen3_moe({{"num_experts", ""}})),
               Mentions("config.json", "num_experts", "missing", "1", "1024"));
  REQUIRE_THAT(refused(qwen3_moe({{"num_experts", "0"}})), Mentions("config.json", "num_experts", "0", "1", "1024"));
  REQUIRE_THAT(refused(qwen3_moe({{"num_experts", "100000"}})),
               Mentions("config.json", "num_experts", "100000", "1", "1024"));
  REQUIRE_THAT(refused(qwen3_moe({{"num_local_experts", "16"}})),
               Mentions("config.json", "num_experts 8", "num_local_experts 16"));
  REQUIRE_THAT(refused(mixtral({{"num_local_experts", ""}})),
               Mentions("config.json", "num_local_experts", "missing", "1", "1024"));
  for (const Changes& changes : {qwen3_moe({{"num_experts_per_tok", ""}}), mixtral({{"num_experts_per_tok", ""}})})
    REQUIRE_THAT(refused(changes), Mentions("config.json", "num_experts_per_tok", "missing", "1", "1024"));
  REQUIRE_THAT(refused(qwen3_moe({{"num_experts_per_tok", "0"}})),
               Mentions("config.json", "num_experts_per_tok", "0", "1", "1024"));
  REQUIRE_THAT(refused(qwen3_moe({{"moe_intermediate_size", ""}})),
               Mentions("config.json", "moe_intermediate_size", "missing", "1", "1048576"));
  REQUIRE_THAT(refused(qwen3_moe({{"moe_intermediate_size", "2000000"}})),
               Mentions("config.json", "moe_intermediate_size", "2000000", "1", "1048576"));
  REQUIRE_THAT(refused(qwen3_moe({{"decoder_sparse_step", "0"}})),
               Mentions("config.json", "decoder_sparse_step", "0", "1", "1024"));
  REQUIRE_THAT(refused(qwen3_moe({{"mlp_only_layers", "[1,-1]"}})),
               Mentions("config.json", "mlp_only_layers", "[1,-1]", "0", "1024"));
  REQUIRE_THAT(refused(qwen3_moe({{"mlp_only_layers", "1"}})),
               Mentions("config.json", "mlp_only_layers", "1", "0", "1024"));
  REQUIRE_THAT(refused(qwen3_moe({{"n_routed_experts", "16"}})), Mentions("config.json", "n_routed_experts 16"));
  REQUIRE_THAT(refused(mixtral({{"moe_intermediate_size", "64"}})),
               Mentions("config.json", "moe_intermediate_size 64"));
  REQUIRE_THAT(refused({{"num_experts", "8"}}), Mentions("config.json", "num_experts 8"));
}

TEST_CASE("begin and end tokens may be one id or a list or absent") {
  REQUIRE(parsed({{"eos_token_id", "[128001,128008]"}}).eos_token_ids == std::vector<TokenId>{128001, 128008});
  REQUIRE(parsed({{"eos_token_id", "null"}}).eos_token_ids.empty());
  REQUIRE(parsed({{"bos_token_id", "1"}}).bos_token_id == 1);
}

TEST_CASE("a config that cannot be computed is refused by name") {
  REQUIRE_THAT(refused({{"architectures", R"(["GPT2LMHeadModel"])"}}),
               Mentions("config.json", "'GPT2LMHeadModel'", kKnown));
  REQUIRE_THAT(refused({{"architectures", ""}}), Mentions("config.json", "missing", "empty", kKnown));
  REQUIRE_THAT(refused({{"architectures", "\"LlamaForCausalLM\""}}), Mentions("config.json", "\"LlamaForCausalLM\""));
  REQUIRE_THAT(refused({{"quantization_config", R"({"quant_method":"bitsandbytes"})"}}),
               Mentions("config.json", "quantization_config", "quant_method", "'bitsandbytes'", "fp8",
                        "compressed-tensors", "gptq", "awq", "modelopt", "millrace-w8"));
  REQUIRE_THAT(refused({{"quantization_config", R"({"quant_method":"millrace-w8","bits":8})"}}),
               Mentions("config.json", "quantization_config", "group_size", "missing", "1", "1048576"));
  REQUIRE_THAT(refused({{"hidden_act", "\"gelu\""}}), Mentions("config.json", "hidden_act 'gelu'", "'silu'"));
  REQUIRE_THAT(refused({{"mlp_bias", "true"}}), Mentions("config.json", "mlp_bias true", "false"));
  REQUIRE_THAT(refused({{"rope_scaling", R"({"rope_type":"dynamic","factor":2.0})"}}),
               Mentions("config.json", "rope_scaling", "rope_type 'dynamic'", "llama3"));
  REQUIRE_THAT(refused({{"torch_dtype", "\"float8\""}}),
               Mentions("config.json", "torch_dtype", "'float8'", "f32", "bf16", "f16"));
  REQUIRE_THAT(refused({{"partial_rotary_factor", "0.5"}}), Mentions("config.json", "partial_rotary_factor", "1"));
  REQUIRE_THAT(refused({{"rope_parameters", R"({"full_attention":{"rope_theta":1e6}})"}}),
               Mentions("config.json", "rope_parameters", "'full_attention'"));
}

TEST_CASE("members that change the arithmetic are refused by name") {
  REQUIRE_THAT(refused({{"final_logit_softcapping", "30.0"}}), Mentions("config.json", "final_logit_softcapping 30.0"));
  REQUIRE_THAT(refused({{"use_qk_norm", "true"}}), Mentions("config.json", "use_qk_norm true"));
  REQUIRE_THAT(refused({{"no_rope_layers", "[1,0]"}}), Mentions("config.json", "no_rope_layers [1,0]"));
  for (const char* nothing : {"null", "0", "1.0"})
    REQUIRE(parsed({{"attn_logit_softcapping", nothing}, {"residual_multiplier", nothing}}) == parsed());
  REQUIRE(parsed({{"use_mrope", "false"}, {"no_rope_layers", "[]"}}) == parsed());
}

TEST_CASE("numbers of a config are checked alone and together") {
  REQUIRE_THAT(refused({{"num_attention_heads", "14"}, {"num_key_value_heads", "4"}, {"head_dim", "16"}}),
               Mentions("config.json", "num_attention_heads 14", "num_key_value_heads 4"));
  REQUIRE_THAT(refused({{"hidden_size", "65"}}),
               Mentions("config.json", "hidden_size 65", "num_attention_heads 4", "head_dim", "missing"));
  REQUIRE_THAT(refused({{"head_dim", "15"}}), Mentions("config.json", "head_dim 15", "2", "256"));
  REQUIRE_THAT(refused({{"hidden_size", ""}}), Mentions("config.json", "hidden_size", "missing", "1", "262144"));
  REQUIRE_THAT(refused({{"hidden_size", "null"}}), Mentions("config.json", "hidden_size", "missing", "1", "262144"));
  REQUIRE_THAT(refused({{"vocab_size", "-1"}}), Mentions("config.json", "vocab_size", "-1", "1", "4194304"));
  REQUIRE(refused({{"vocab_size", "99999999999999999999"}}).find("config.json: ") == 0);
  REQUIRE_THAT(refused({{"num_hidden_layers", "0"}}), Mentions("config.json", "num_hidden_layers", "0", "1", "1024"));
  REQUIRE_THAT(refused({{"num_hidden_layers", "4.5"}}),
               Mentions("config.json", "num_hidden_layers", "4.5", "1", "1024"));
  REQUIRE_THAT(refused({{"num_hidden_layers", "\"4\""}}),
               Mentions("config.json", "num_hidden_layers", "\"4\"", "1", "1024"));
  REQUIRE_THAT(refused({{"num_attention_heads", "4096"}, {"num_key_value_heads", "4096"}, {"head_dim", "256"}}),
               Mentions("config.json", "num_attention_heads 4096", "head_dim 256", "262144"));
  REQUIRE_THAT(refused({{"rms_norm_eps", "-1"}}), Mentions("config.json", "rms_norm_eps", "-1", "0", "1"));
  REQUIRE_THAT(refused({{"rope_theta", "\"big\""}}), Mentions("config.json", "rope_theta", "1.001", "1000000000000"));
  REQUIRE_THAT(refused({{"tie_word_embeddings", "1"}}),
               Mentions("config.json", "tie_word_embeddings", "1", "true", "false"));
  REQUIRE_THAT(refused({{"eos_token_id", "[1,-2]"}}), Mentions("config.json", "eos_token_id", "[1,-2]"));
  REQUIRE_THAT(refused({{"rope_scaling", R"({"rope_type":"llama3","factor":8})"}}),
               Mentions("config.json", "rope_scaling", "low_freq_factor", "missing", "1e-06", "1000000"));
  REQUIRE_THAT(refused({{"rope_scaling", R"({"rope_type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":3,)"
                                         R"("original_max_position_embeddings":64})"}}),
               Mentions("config.json", "rope_scaling", "high_freq_factor 3", "low_freq_factor 4"));
  REQUIRE_THAT(refused({{"rope_scaling", R"({"rope_type":"yarn","factor":0})"}}),
               Mentions("config.json", "rope_scaling", "0", "0.001", "1000000"));
  REQUIRE_THAT(refused({{"rope_scaling", "\"yarn\""}}), Mentions("config.json", "rope_scaling"));
  const std::string qwen3 = R"(["Qwen3ForCausalLM"])";
  REQUIRE_THAT(refused({{"architectures", qwen3}, {"layer_types", R"(["full_attention"])"}}),
               Mentions("config.json", "layer_types", "1", "num_hidden_layers 4"));
  const auto types = [](const char* second) {
    return fmt::format(R"(["full_attention","{}","full_attention","full_attention"])", second);
  };
  REQUIRE_THAT(
      refused({{"architectures", qwen3}, {"layer_types", types("linear_attention")}}),
      Mentions("config.json", "layer_types", "'linear_attention'", "1", "full_attention", "sliding_attention"));
  REQUIRE_THAT(refused({{"architectures", qwen3}, {"layer_types", types("sliding_attention")}}),
               Mentions("config.json", "layer_types", "sliding_attention", "1", "sliding_window"));
}

TEST_CASE("a config that is not a JSON object is refused") {
  const auto message = [](std::string_view text) { return parse_config(text).error().message; };
  REQUIRE(message("") == "config.json: is empty, wanted a JSON object");
  REQUIRE(message("[1]") == "config.json: is [1], wanted a JSON object");
  REQUIRE(message("{\"a\":").find("config.json: is not valid JSON: ") == 0);
  REQUIRE(message(std::string(100000, '[')).find("config.json: is not valid JSON: ") == 0);
}

TEST_CASE("two different scalings are refused and equal ones count once") {
  const std::string yarn = R"({"rope_type":"yarn","factor":4})";
  REQUIRE_THAT(refused({{"rope_parameters", R"({"rope_type":"default"})"}, {"rope_scaling", yarn}}),
               Mentions("config.json", "rope_parameters", "rope_scaling"));
  REQUIRE_THAT(refused({{"rope_parameters", R"({"rope_theta":5e5})"}, {"rope_scaling", R"({"rope_theta":1e6})"}}),
               Mentions("config.json", "rope_parameters", "rope_scaling"));
  const ModelConfig once = parsed({{"rope_theta", "500000"}, {"rope_scaling", yarn}});
  REQUIRE(parsed({{"rope_theta", ""},
                  {"rope_parameters", R"({"rope_theta":5e5,"rope_type":"yarn","factor":4})"},
                  {"rope_scaling", yarn}}) == once);
  REQUIRE(parsed({{"rope_theta", "500000"}, {"rope_parameters", yarn}, {"rope_scaling", "null"}}) == once);
}

TEST_CASE("a scaling without a type is refused if it changes anything") {
  const std::string missing = "config.json: rope_scaling: rope_type is missing, though ";
  REQUIRE(refused({{"rope_scaling", R"({"factor":8.0})"}}) == missing + "factor is given");
  REQUIRE(refused({{"rope_scaling", R"({"low_freq_factor":1.0})"}}) == missing + "low_freq_factor is given");
  REQUIRE(refused({{"rope_scaling", R"({"type":null,"original_max_position_embeddings":64})"}}) ==
          missing + "original_max_position_embeddings is given");
  REQUIRE(parsed({{"rope_scaling", R"({"factor":1.0,"beta_fast":null})"}}) == parsed());
  REQUIRE(parsed({{"rope_scaling", "{}"}}) == parsed());
}

TEST_CASE("the original context may be repeated but not contradicted") {
  const std::string yarn = R"("type":"yarn","factor":4)";
  const std::string llama3 = R"("type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4)";
  const std::string within = R"(,"original_max_position_embeddings":64)";
  for (const std::string& scaling : {yarn, llama3}) {
    const ModelConfig wanted = parsed({{"rope_scaling", "{" + scaling + within + "}"}});
    REQUIRE(wanted.ropes[0].original_max_position == 64);
    const std::string beside = "original_max_position_embeddings";
    REQUIRE(parsed({{beside, "64"}, {"rope_scaling", "{" + scaling + "}"}}) == wanted);
    REQUIRE(parsed({{beside, "64"}, {"rope_scaling", "{" + scaling + within + "}"}}) == wanted);
    REQUIRE_THAT(
        refused({{beside, "128"}, {"rope_scaling", "{" + scaling + within + "}"}}),
        Mentions("config.json", "rope_scaling", "original_max_position_embeddings", "64", "128", "config.json"));
  }
  REQUIRE(parsed({{"original_max_position_embeddings", "64"}}) == parsed());
}

TEST_CASE("a duplicate key is refused by name at any depth") {
  const auto with = [](const std::string& members) {
    const std::string text = config_text({{"rope_scaling", "null"}});
    return parse_config(text.substr(0, text.size() - 1) + "," + members + "}").error().message;
  };
  const std::string yarn = R"({"type":"yarn","factor":4})";
  REQUIRE(with("\"rope_scaling\":" + yarn) == "config.json: rope_scaling is given twice");
  REQUIRE(with(R"("rope\u005fscaling":)" + yarn) == "config.json: rope_scaling is given twice");
  REQUIRE(with("\"vocab_size\":512") == "config.json: vocab_size is given twice");
  REQUIRE_THAT(refused({{"rope_scaling", R"({"type":"yarn","factor":4,"factor":2})"}}),
               Mentions("config.json", "rope_scaling", "twice"));
  REQUIRE(refused({{"other", R"([1,{"a":{"b":1,"b":2}}])"}}) == "config.json: other: a: b is given twice");
  REQUIRE(parsed({{"other", R"([{"a":{"b":1}},{"a":{"b":1}}])"}}) == parsed());
  REQUIRE(parse_generation_config(R"({"top_k":1,"top_k":2})").error().message ==
          "generation_config.json: top_k is given twice");
}

TEST_CASE("no mutation of a config is more than an error") {
  const std::string whole = config_text(
      {{"rope_scaling", R"({"rope_type":"yarn","factor":4.0,"mscale":1.0})"}, {"layer_types", "[\"full_attention\"]"}});
  std::mt19937 random(3);
  for (int round = 0; round < 20000; ++round) {
    std::string text = whole;
    for (int edit = 0; edit < 3; ++edit) text[random() % text.size()] = "0123456789-.,:\"[]{}e n\xff"[random() % 22];
    const auto config = parse_config(text);
    if (config)
      REQUIRE(config->layer(0).attention.query_width() * config->hidden_size > 0);
    else
      REQUIRE(config.error().message.find("config.json: ") == 0);
  }
}

TEST_CASE("config.json is read from its folder and named in errors") {
  const test::TemporaryFolder folder;
  REQUIRE(read_config(folder.path()).error().code == ErrorCode::kNotFound);
  folder.write("config.json", config_text());
  REQUIRE(*read_config(folder.path()) == parsed());
  folder.write("config.json", config_text({{"vocab_size", "0"}}));
  REQUIRE_THAT(read_config(folder.path()).error().message,
               Mentions(folder.path().string(), "/config.json", "vocab_size", "0", "1", "4194304"));
}

TEST_CASE("overrides of generation_config.json replace known names only") {
  auto config = *parse_generation_config(R"({"eos_token_id":7,"temperature":0.6,"top_k":20})");
  REQUIRE(override_generation_config(config, R"({"temperature":0,"top_p":0.5,"top_k":null})", "--flag").has_value());
  REQUIRE(config.temperature == 0.0f);
  REQUIRE(config.top_p == 0.5f);
  REQUIRE(config.top_k == 20);
  REQUIRE(config.eos_token_ids == std::vector<TokenId>{7});
  REQUIRE(override_generation_config(config, R"({"eos_token_id":[8,9]})", "--flag").has_value());
  REQUIRE(config.eos_token_ids == std::vector<TokenId>{8, 9});
  const auto refusal = [&config](const char* json) {
    return override_generation_config(config, json, "--flag").error().message;
  };
  REQUIRE_THAT(refusal(R"({"max_new_tokens":5})"),
               Mentions("--flag", "'max_new_tokens'", "eos_token_id", "top_p", "min_p", "top_k", "repetition_penalty"));
  REQUIRE_THAT(refusal(R"({"top_p":2})"), Mentions("--flag", "top_p", "2", "1e-06", "1"));
}

TEST_CASE("generation_config.json gives defaults and may be absent") {
  const auto full = parse_generation_config(
      R"({"eos_token_id":[7,9],"temperature":0.6,"top_p":0.95,"top_k":20,"min_p":0.05,"repetition_penalty":1.1,)"
      R"("do_sample":true,"transformers_version":"4.51.0"})");
  REQUIRE(full.has_value());
  REQUIRE(full->eos_token_ids == std::vector<TokenId>{7, 9});
  REQUIRE(full->temperature == 0.6f);
  REQUIRE(full->top_p == 0.95f);
  REQUIRE(full->top_k == 20);
  REQUIRE(full->min_p == 0.05f);
  REQUIRE(full->repetition_penalty == 1.1f);
  REQUIRE(parse_generation_config(R"({"top_k":-1})")->top_k == 0);
  REQUIRE_THAT(parse_generation_config(R"({"top_p":1.5})").error().message,
               Mentions("generation_config.json", "top_p", "1.5", "1e-06", "1"));
  const test::TemporaryFolder folder;
  const auto absent = read_generation_config(folder.path());
  REQUIRE(absent.has_value());
  REQUIRE_FALSE(absent->temperature);
  folder.write("generation_config.json", "{");
  REQUIRE(read_generation_config(folder.path()).error().code == ErrorCode::kData);
}

TEST_CASE("architectures without an output head are of their families") {
  REQUIRE(parsed().has_output_head);
  for (const char* name : {"LlamaModel", "LlamaForSequenceClassification", "MistralModel", "Qwen2Model",
                           "Qwen2ForSequenceClassification"}) {
    const ModelConfig config = parsed({{"architectures", fmt::format("[\"{}\"]", name)}});
    REQUIRE(config.architecture == name);
    REQUIRE_FALSE(config.has_output_head);
  }
  const ModelConfig qwen3 = parsed({{"architectures", R"(["Qwen3ForSequenceClassification"])"}});
  REQUIRE(qwen3.layer(0).attention.qk_norm == QkNorm::kPerHead);
  REQUIRE_FALSE(qwen3.has_output_head);
  for (const char* name : {"LlamaForTokenClassification", "BertForCausalLM", "XLMRobertaForMaskedLM", "Llama"}) {
    REQUIRE_THAT(refused({{"architectures", fmt::format("[\"{}\"]", name)}}),
                 Mentions("config.json", name, "LlamaForCausalLM", "Model or ForSequenceClassification", "BertModel"));
  }
}

TEST_CASE("attention that looks ahead is refused by name") {
  REQUIRE(parsed({{"is_causal", "true"}, {"use_bidirectional_attention", "false"}}) == parsed());
  REQUIRE_THAT(refused({{"is_causal", "false"}}), Mentions("config.json", "is_causal", "causal attention"));
  REQUIRE_THAT(refused({{"use_bidirectional_attention", "true"}}),
               Mentions("config.json", "use_bidirectional_attention", "causal attention"));
}
