#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "cpu/cpu_backend.h"
#include "model/families/families.h"
#include "model/families/read_config.h"
#include "model/fingerprint.h"
#include "model/plain_model.h"
#include "model/random_model.h"
#include "model/stage_borders.h"
#include "model/stage_model.h"
#include "model/tensor_list.h"
#include "model/weight_memory.h"
#include "support/captured_log.h"
#include "support/mentions.h"
#include "support/paths.h"

using namespace millrace;
using namespace millrace::model;
using millrace::test::Mentions;

namespace {

/// Returns the config.json of a model with 8 layers and further members.
std::string family_json(std::string_view architecture, std::string_view more = "") {
  return fmt::format(
      R"({{"architectures":["{}"],"vocab_size":512,"hidden_size":64,"intermediate_size":128,"num_hidden_layers":8,)"
      R"("num_attention_heads":4,"num_key_value_heads":2,"max_position_embeddings":256,"torch_dtype":"bfloat16"{}{}}})",
      architecture, more.empty() ? "" : ",", more);
}

ModelConfig family_config(std::string_view architecture, std::string_view more = "") {
  const auto config = parse_config(family_json(architecture, more));
  if (!config) FAIL(config.error().message);
  return *config;
}

std::string family_refusal(std::string_view architecture, std::string_view more) {
  const auto config = parse_config(family_json(architecture, more));
  return config ? "accepted" : config.error().message;
}

/// Returns the index of each layer's rotation; -1: none.
std::vector<int32_t> ropes_of(const ModelConfig& config) {
  std::vector<int32_t> ropes;
  for (const LayerConfig& layer : config.layers) ropes.push_back(layer.attention.rope.value_or(-1));
  return ropes;
}

/// Returns the table of families that docs/models.md has.
std::string family_table() {
  std::string table = "| architecture | models |\n|---|---|\n";
  for (const Family& family : families()) {
    const char* ending = family.kind == FamilyKind::kDecoder ? "ForCausalLM" : "";
    table += fmt::format("| {}{} | {} |\n", family.name, ending, family.models);
  }
  return table;
}

}  // namespace

TEST_CASE("docs list the families of the code") {
  std::ifstream file(test::source_dir() / "docs/models.md");
  std::stringstream text;
  text << file.rdbuf();
  INFO("wanted in docs/models.md:\n" << family_table());
  REQUIRE(text.str().find(family_table()) != std::string::npos);
}

TEST_CASE("Phi-3 has fused tensors and rotates a part of each head") {
  const ModelConfig plain = family_config("Phi3ForCausalLM", R"("sliding_window":40)");
  REQUIRE(test::windows_of(plain) == std::vector(8, 40));
  REQUIRE(plain.names.fused_qkv == "self_attn.qkv_proj");
  REQUIRE(rotary_dim(plain, plain.layer(0).attention) == 16);
  const std::string scaling =
      R"("partial_rotary_factor":0.75,"original_max_position_embeddings":64,"rope_scaling":{"type":"longrope",)"
      R"("short_factor":[1,1,1,1,1,1],"long_factor":[1,2,3,4,5,6]})";
  const ModelConfig scaled = family_config("Phi3ForCausalLM", scaling);
  REQUIRE(rotary_dim(scaled, scaled.layer(0).attention) == 12);
  REQUIRE(scaled.ropes[0].divisors == std::vector<double>{1, 2, 3, 4, 5, 6});
  REQUIRE(*scaled.ropes[0].attention_factor == Approx(std::sqrt(1 + std::log(4.0) / std::log(64.0))));
  REQUIRE(scaled.context_length() == 256);
  // A server of short contexts alone takes the other list, which the model was trained with there.
  REQUIRE(for_context(scaled, 65) == scaled);
  const RopeConfig near = for_context(scaled, 64).ropes[0];
  REQUIRE(near.divisors == std::vector<double>(6, 1.0));
  REQUIRE(near.attention_factor == scaled.ropes[0].attention_factor);
  std::string fewer = scaling;
  fewer.replace(fewer.find("[1,2,3,4,5,6]"), 13, "[1,2,3,4,5]");
  REQUIRE_THAT(family_refusal("Phi3ForCausalLM", fewer),
               Mentions("config.json", "rope_scaling", "long_factor", "5", "6"));
  REQUIRE_THAT(family_refusal("LlamaForCausalLM", R"("rope_scaling":{"type":"longrope"})"),
               Mentions("config.json", "rope_scaling", "'longrope'", "yarn"));
}

TEST_CASE("windows as long as the context are none") {
  const test::TemporaryFolder folder;
  const auto config_of = [&folder](std::string_view architecture, std::string_view more) {
    folder.write("config.json", family_json(architecture, more));
    return read_config(folder.path()).value();
  };
  REQUIRE(test::windows_of(config_of("Phi3ForCausalLM", R"("sliding_window":255)")) == std::vector(8, 255));
  const ModelConfig wide = config_of("Phi3ForCausalLM", R"("sliding_window":256)");
  REQUIRE(wide == config_of("Phi3ForCausalLM", R"("sliding_window":null)"));
  const ModelConfig chunked =
      config_of("Llama4ForCausalLM", R"("attention_chunk_size":256,"num_local_experts":2,"num_experts_per_tok":1)");
  for (const LayerConfig& layer : chunked.layers) {
    REQUIRE(layer.attention.window == 0);
    REQUIRE_FALSE(layer.attention.chunked);
  }
}

TEST_CASE("Granite has four scalars") {
  const ModelConfig config =
      family_config("GraniteForCausalLM", R"("attention_multiplier":0.0078125,"embedding_multiplier":12,)"
                                          R"("residual_multiplier":0.22,"logits_scaling":16)");
  REQUIRE(config.layer(7).attention.scale == 0.0078125f);
  REQUIRE(config.layer(7).residual_multiplier == 0.22f);
  REQUIRE(config.embedding_scale == 12.0f);
  REQUIRE(config.logit_scale == 1.0f / 16.0f);
  REQUIRE(family_config("GraniteForCausalLM").layer(0).attention.scale == 1.0f);
}

TEST_CASE("OLMo has norms after its blocks and one over all heads") {
  const LayerNorms after{
      .before_attention = false, .after_attention = true, .before_feed_forward = false, .after_feed_forward = true};
  const ModelConfig two = family_config("Olmo2ForCausalLM");
  REQUIRE(two.layer(0).norms == after);
  REQUIRE(two.layer(0).attention.qk_norm == QkNorm::kAllHeads);
  REQUIRE(check_ranks(two, 2).error().code == ErrorCode::kInvalidArgument);
  const ModelConfig three = family_config(
      "Olmo3ForCausalLM", R"("sliding_window":32,"rope_theta":500000,"rope_scaling":{"rope_type":"yarn","factor":4,)"
                          R"("original_max_position_embeddings":64,"attention_factor":1.2})");
  REQUIRE(test::windows_of(three) == std::vector{32, 32, 32, 0, 32, 32, 32, 0});
  REQUIRE(ropes_of(three) == std::vector{1, 1, 1, 0, 1, 1, 1, 0});
  REQUIRE(three.ropes[0].kind == RopeKind::kYarn);
  REQUIRE(three.ropes[1] == RopeConfig{.theta = 500000.0});
}

TEST_CASE("Gemma has four norms and scaled embeddings and soft caps") {
  const ModelConfig two = family_config("Gemma2ForCausalLM", R"("head_dim":32,"query_pre_attn_scalar":64)");
  REQUIRE(two.norm == NormKind::kRmsPlusOne);
  REQUIRE(two.embedding_scale == 8.0f);
  REQUIRE(two.tied_embeddings);
  REQUIRE(two.logit_soft_cap == 30.0f);
  REQUIRE(two.layer(0).attention.soft_cap == 50.0f);
  REQUIRE(two.layer(0).attention.scale == 0.125f);
  REQUIRE(two.layer(0).feed_forward.activation == MlpActivation::kGeluTanh);
  REQUIRE(test::windows_of(two) == std::vector{4096, 0, 4096, 0, 4096, 0, 4096, 0});
  const ModelConfig uncapped =
      family_config("Gemma2ForCausalLM", R"("final_logit_softcapping":null,"attn_logit_softcapping":null)");
  REQUIRE(uncapped.logit_soft_cap == 0.0f);
  REQUIRE(uncapped.layer(0).attention.soft_cap == 0.0f);
  REQUIRE(uncapped.layer(0).attention.head_dim == 256);
  REQUIRE_THAT(family_refusal("Gemma2ForCausalLM", R"("hidden_activation":"gelu")"),
               Mentions("config.json", "hidden_activation", "'gelu'", "'gelu_pytorch_tanh'"));
}

TEST_CASE("Gemma 3 rotates its sliding layers by a base of their own") {
  const std::string older = R"("sliding_window":16,"sliding_window_pattern":3,"rope_theta":1000000,)"
                            R"("rope_local_base_freq":20000,"rope_scaling":{"factor":8.0,"rope_type":"linear"})";
  const ModelConfig config = family_config("Gemma3ForCausalLM", older);
  REQUIRE(test::windows_of(config) == std::vector{16, 16, 0, 16, 16, 0, 16, 16});
  REQUIRE(ropes_of(config) == std::vector{1, 1, 0, 1, 1, 0, 1, 1});
  REQUIRE(config.ropes[0] == RopeConfig{.kind = RopeKind::kLinear, .theta = 1e6, .factor = 8.0});
  REQUIRE(config.ropes[1] == RopeConfig{.theta = 20000.0});
  REQUIRE(config.layer(0).attention.qk_norm == QkNorm::kPerHead);
  REQUIRE(config.logit_soft_cap == 0.0f);
  const std::string newer =
      R"("sliding_window":16,"sliding_window_pattern":3,"rope_parameters":{"full_attention":{"rope_type":"linear",)"
      R"("factor":8.0,"rope_theta":1000000},"sliding_attention":{"rope_type":"default","rope_theta":20000}})";
  REQUIRE(family_config("Gemma3ForCausalLM", newer) == config);
}

TEST_CASE("Gemma 4 has heads of two sizes and values that are keys") {
  const std::string rope =
      R"(,"rope_parameters":{"full_attention":{"rope_type":"proportional","partial_rotary_factor":0.25,)"
      R"("rope_theta":1000000.0},"sliding_attention":{"rope_type":"default","rope_theta":10000.0}})";
  const std::string common = R"("head_dim":16,"sliding_window":24,"attention_k_eq_v":true,"layer_types":[)"
                             R"("sliding_attention","full_attention","sliding_attention","full_attention",)"
                             R"("sliding_attention","full_attention","sliding_attention","sliding_attention"])";
  const std::string large = common + R"(,"hidden_size_per_layer_input":0)";
  const std::string published = large + R"(,"global_head_dim":32,"num_global_key_value_heads":1)";
  const ModelConfig config = family_config("Gemma4ForCausalLM", published + rope);
  REQUIRE(test::windows_of(config) == std::vector{24, 0, 24, 0, 24, 0, 24, 0});  // the last one never slides
  const AttentionConfig& full = config.layer(1).attention;
  REQUIRE(full.head_dim == 32);
  REQUIRE(full.kv_head_count == 1);
  REQUIRE(full.values_are_keys);
  REQUIRE(full.scale == 1.0f);
  const AttentionConfig& sliding = config.layer(0).attention;
  REQUIRE(sliding.head_dim == 16);
  REQUIRE(sliding.kv_head_count == 2);
  REQUIRE_FALSE(sliding.values_are_keys);
  REQUIRE(sliding.value_norm);
  REQUIRE(config.norm == NormKind::kRms);
  REQUIRE(config.ropes[static_cast<size_t>(*full.rope)] ==
          RopeConfig{.kind = RopeKind::kProportional, .theta = 1e6, .rotary_dim = 32, .rotated_pairs = 4});
  REQUIRE(config.ropes[static_cast<size_t>(*sliding.rope)] == RopeConfig{.theta = 1e4, .rotary_dim = 16});
  REQUIRE(family_config("Gemma4ForCausalLM", published) == config);

  const std::string heads = R"({"head_dim":32,"num_key_value_heads":1})";
  const auto per_layer = [&](std::string_view members) {
    return fmt::format(R"({},"per_layer_config":{{{}}})", large, members);
  };
  const std::string all = fmt::format(R"("1":{0},"3":{0},"5":{0},"7":{0})", heads);
  REQUIRE(family_config("Gemma4ForCausalLM", per_layer(all)) == config);
  for (const std::string& members : {fmt::format(R"("1":{0},"3":{0},"7":{0})", heads), all + R"(,"2":{})"})
    REQUIRE_THAT(family_refusal("Gemma4ForCausalLM", per_layer(members)), Mentions("per_layer_config"));
  REQUIRE_THAT(family_refusal("Gemma4ForCausalLM", per_layer(R"("1":{"head_dim":32},"3":{"head_dim":64})")),
               Mentions("per_layer_config", "layer 3"));
  REQUIRE_THAT(family_refusal("Gemma4ForCausalLM", common), Mentions("vocab_size_per_layer_input 262144"));
  REQUIRE(family_config("Gemma4UnifiedForCausalLM", common).layer(1).attention.head_dim == 512);
}

TEST_CASE("the last layers of Gemma 4 E2B see the keys of earlier ones") {
  const std::string common =
      R"("head_dim":16,"sliding_window":24,"hidden_size_per_layer_input":32,"vocab_size_per_layer_input":512,)"
      R"("layer_types":["sliding_attention","full_attention","sliding_attention","full_attention",)"
      R"("sliding_attention","sliding_attention","sliding_attention","full_attention"],"num_kv_shared_layers":)";
  const ModelConfig config = family_config("Gemma4ForCausalLM", common + R"(3,"use_double_wide_mlp":true)");
  std::vector<std::optional<int32_t>> sources;
  std::vector<int32_t> widths;
  std::vector<int32_t> begins;
  for (int32_t layer = 0; layer < config.layer_count(); ++layer) {
    sources.push_back(config.layer(layer).attention.keys_of);
    widths.push_back(config.layer(layer).feed_forward.width);
    if (can_begin_stage(config, layer)) begins.push_back(layer);
    REQUIRE(config.layer(layer).input_width == 32);
  }
  const int32_t width = config.layer(0).feed_forward.width;
  REQUIRE(sources == std::vector<std::optional<int32_t>>{{}, {}, {}, {}, {}, 4, 4, 3});
  REQUIRE(widths == std::vector{width, width, width, width, width, 2 * width, 2 * width, 2 * width});
  REQUIRE(begins == std::vector{0, 1, 2, 3});
  REQUIRE(move_borders(config, divide_layers(8, 2).value()).value() == std::vector<LayerRange>{{0, 3}, {3, 8}});
  REQUIRE_THAT(check_borders(config, {{0, 5}, {5, 8}}).error().message, Mentions("layer 5", "layer 3"));
  REQUIRE(cache_bytes_per_token(config, 4, 1) > 0);
  REQUIRE(cache_bytes_per_token(config, 5, 1) == 0);
  REQUIRE(config.layer_inputs->table_factor * config.layer_inputs->table_factor == Approx(32).epsilon(0.01));
  REQUIRE(fingerprint(config) != fingerprint(family_config("Gemma4ForCausalLM", common + "3")));
  for (const char* count : {"7", "8", "9"})
    REQUIRE_THAT(family_refusal("Gemma4ForCausalLM", common + count), Mentions("num_kv_shared_layers", count));
}

TEST_CASE("Llama 4 has chunks where it rotates") {
  const std::string common = R"("num_local_experts":4,"num_experts_per_tok":1,"interleave_moe_layer_step":2,)"
                             R"("intermediate_size_mlp":96,"attention_chunk_size":64)";
  const ModelConfig config = family_config("Llama4ForCausalLM", common);
  REQUIRE(test::windows_of(config) == std::vector{64, 64, 64, 0, 64, 64, 64, 0});
  REQUIRE(ropes_of(config) == std::vector{0, 0, 0, -1, 0, 0, 0, -1});
  REQUIRE(config.ropes[0].interleaved);
  const AttentionConfig& chunked = config.layer(0).attention;
  REQUIRE(chunked.chunked);
  REQUIRE(chunked.qk_norm == QkNorm::kUnit);
  REQUIRE_FALSE(chunked.query_scaling);
  const AttentionConfig& full = config.layer(3).attention;
  REQUIRE_FALSE(full.chunked);
  REQUIRE(full.qk_norm == QkNorm::kNone);
  REQUIRE(full.query_scaling == QueryScaling{.beta = 0.1, .original_max_position = 8192, .offset = 1});
  REQUIRE(config.layer(0).feed_forward.width == 96);
  REQUIRE_FALSE(config.is_sparse(0));
  const MoeConfig& moe = *config.layer(1).feed_forward.moe;
  REQUIRE(moe.weighs_inputs);
  REQUIRE(moe.intermediate_size == 128);
  REQUIRE(moe.shared->width == 128);
  const ModelConfig named = family_config(
      "Llama4ForCausalLM", common + R"(,"no_rope_layers":[1,1,1,0,1,1,1,0],"moe_layers":[1,3,5,7],"layer_types":[)"
                                    R"("chunked_attention","chunked_attention","chunked_attention","full_attention",)"
                                    R"("chunked_attention","chunked_attention","chunked_attention","full_attention"])"
                                    R"(,"attn_temperature_tuning":4)");
  REQUIRE(named == config);
  const std::string experts = R"("num_local_experts":4,"num_experts_per_tok":1,)";
  REQUIRE(test::windows_of(family_config("Llama4ForCausalLM", experts + R"("attention_chunk_size":null)")) ==
          std::vector<int32_t>(8, 0));
  REQUIRE_FALSE(family_config("Llama4ForCausalLM", experts + R"("attn_temperature_tuning":false)")
                    .layer(3)
                    .attention.query_scaling);
  REQUIRE_THAT(family_refusal("Llama4ForCausalLM", experts + R"("attention_chunk_size":100)"),
               Mentions("attention_chunk_size 100", "64"));
  REQUIRE_THAT(family_refusal("Llama4ForCausalLM", experts + R"("no_rope_layers":[1,0])"),
               Mentions("no_rope_layers", "2", "8"));
}

TEST_CASE("attention in both directions is refused except for images") {
  const std::string config = R"("hidden_size_per_layer_input":0,"use_bidirectional_attention":)";
  REQUIRE(family_refusal("Gemma4ForCausalLM", config + R"("vision")") == "accepted");
  REQUIRE(family_refusal("Gemma4ForCausalLM", config + "null") == "accepted");
  for (const std::string value : {R"("all")", "true"})
    REQUIRE_THAT(family_refusal("Gemma4ForCausalLM", config + value), Mentions("use_bidirectional_attention"));
}

TEST_CASE("GLM-4 and Cohere 2 rotate neighbouring pairs") {
  const ModelConfig glm = family_config("Glm4ForCausalLM", R"("head_dim":32)");
  REQUIRE(glm.ropes[0].interleaved);
  REQUIRE(rotary_dim(glm, glm.layer(0).attention) == 16);
  REQUIRE(glm.layer(0).attention.qkv_bias);
  REQUIRE_FALSE(glm.layer(0).attention.output_bias);
  REQUIRE(glm.names.feed_forward_norm == "post_attention_layernorm");
  const ModelConfig cohere = family_config("Cohere2ForCausalLM", R"("sliding_window":16)");
  REQUIRE(cohere.norm == NormKind::kLayer);
  REQUIRE(cohere.norm_epsilon == 1e-5f);
  REQUIRE(cohere.layer(0).parallel);
  REQUIRE(cohere.logit_scale == 0.0625f);
  REQUIRE(ropes_of(cohere) == std::vector{0, 0, 0, -1, 0, 0, 0, -1});
  REQUIRE(test::windows_of(cohere) == std::vector{16, 16, 16, 0, 16, 16, 16, 0});
}

TEST_CASE("Ministral 3 scales queries by position in both spellings") {
  const std::string rope = R"("rope_parameters":{"rope_type":"yarn","rope_theta":1000000,"factor":16,)"
                           R"("original_max_position_embeddings":64,"mscale":1,"mscale_all_dim":1)";
  const ModelConfig config = family_config("Ministral3ForCausalLM", rope + R"(,"llama_4_scaling_beta":0.1})");
  REQUIRE(config.layer(7).attention.query_scaling == QueryScaling{.beta = 0.1, .original_max_position = 64});
  REQUIRE(config.layer(7).attention.head_dim == 128);
  REQUIRE(config.context_length() == 1024);
  const std::string apart = R"(},"llama_4_scaling":{"beta":0.1,"original_max_position_embeddings":64})";
  REQUIRE(family_config("Ministral3ForCausalLM", rope + apart) == config);
  REQUIRE_FALSE(family_config("Ministral3ForCausalLM", rope + "}").layer(0).attention.query_scaling);
}

TEST_CASE("rows of interleaved heads move apart") {
  TensorSpec spec{.name = "q", .shape = {16, 4}, .paired = {.head_rows = 8, .first = 2, .count = 4}};
  REQUIRE(row_order(spec, {0, 16}) == std::vector<int64_t>{0, 1, 2, 4, 3, 5, 6, 7, 8, 9, 10, 12, 11, 13, 14, 15});
  REQUIRE(row_order(spec, {8, 16}) == std::vector<int64_t>{0, 1, 2, 4, 3, 5, 6, 7});
  spec = {.name = "gate", .shape = {3, 4}, .part = TensorPart{.tensor = "all", .shape = {6, 4}, .row_step = 2}};
  REQUIRE(row_order(spec, {0, 3}) == std::vector<int64_t>{0, 2, 4});
  REQUIRE(row_order({.name = "plain", .shape = {3, 4}}, {0, 3}).empty());
}

namespace {

/// A wrapper's config.json around the fields of a Mistral.
std::string wrapper_json(std::string_view outer, std::string_view type = "mistral") {
  return fmt::format(
      R"({{"architectures":["Mistral3ForConditionalGeneration"],"torch_dtype":"float32"{}{},"text_config":)"
      R"({{"model_type":"{}","vocab_size":50,"hidden_size":24,"intermediate_size":40,"num_hidden_layers":2,)"
      R"("num_attention_heads":6,"num_key_value_heads":2,"head_dim":8,"max_position_embeddings":128,)"
      R"("sliding_window":null,"eos_token_id":7}}}})",
      outer.empty() ? "" : ",", outer, type);
}

}  // namespace

TEST_CASE("a wrapper gives its text model and what lies outside of it") {
  const ModelConfig config = parse_config(wrapper_json(R"("eos_token_id":[1,106],"tie_word_embeddings":true)")).value();
  REQUIRE(config.eos_token_ids == std::vector<TokenId>{1, 106});
  REQUIRE(config.tied_embeddings);
  REQUIRE(config.layer_count() == 2);
  const ModelConfig inner = parse_config(wrapper_json("")).value();
  REQUIRE(inner.eos_token_ids == std::vector<TokenId>{7});
  REQUIRE_FALSE(inner.tied_embeddings);
  std::string tied_inside = wrapper_json(R"("tie_word_embeddings":false)");
  tied_inside.insert(tied_inside.find(R"("model_type")"), R"("tie_word_embeddings":true,)");
  REQUIRE(parse_config(tied_inside).value().tied_embeddings);
  REQUIRE_THAT(parse_config(wrapper_json("", "qwen2")).error().message,
               Mentions("text_config", "'qwen2'", "ministral3"));
  REQUIRE_THAT(parse_config(R"({"architectures":["Mistral3ForConditionalGeneration"]})").error().message,
               Mentions("config.json", "text_config"));
}

TEST_CASE("a wrapper loads by both prefixes and skips its other parts") {
  const ModelConfig config = parse_config(wrapper_json("")).value();
  const std::vector<test::TensorToWrite> plain = test::RandomModel(config, 5).tensors();
  const auto backend = cpu::make_backend({.threads = 1, .compute_dtype = tensor::DType::kF32});
  const auto load = [&](std::string_view model_prefix, std::string_view head_prefix, const std::string& extra) {
    std::vector<test::TensorToWrite> tensors = plain;
    for (test::TensorToWrite& tensor : tensors) {
      const bool is_head = tensor.name.starts_with("lm_head.");
      tensor.name = is_head ? fmt::format("{}{}", head_prefix, tensor.name)
                            : fmt::format("{}{}", model_prefix, tensor.name.substr(std::string_view("model.").size()));
    }
    tensors.push_back({extra, {2}, {1, 2}});
    const test::TemporaryFolder folder;
    folder.write("model.safetensors", test::safetensors_text(tensors));
    const auto checkpoint = Checkpoint::open(folder.path()).value();
    const auto stage = StageModel::load(*checkpoint, config, {.layers = {0, 2}}, *backend,
                                        {.max_batch_tokens = 4, .max_logit_rows = 2}, {.with_fingerprint = true});
    return stage ? (*stage)->fingerprint()->common.to_string() : stage.error().message;
  };
  const test::CapturedLog log;
  const std::string wanted = load("language_model.model.", "language_model.", "vision_tower.patch_conv.weight");
  REQUIRE(wanted.size() == 32);
  REQUIRE(log.count("1 tensors of other parts than the text model are skipped") == 1);
  REQUIRE(load("model.language_model.", "", "model.vision_tower.patch_conv.weight").size() == wanted.size());
  REQUIRE_THAT(load("language_model.model.", "language_model.", "adapter.weight"), Mentions("'adapter.weight'"));
}

TEST_CASE("a wrapper of Gemma 4 E2B loads with unused keys") {
  const std::string text =
      family_json("Gemma4ForCausalLM",
                  R"("model_type":"gemma4_text","head_dim":16,"sliding_window":24,"hidden_size_per_layer_input":32,)"
                  R"("vocab_size_per_layer_input":512,"tie_word_embeddings":true,"num_kv_shared_layers":3,)"
                  R"("layer_types":["sliding_attention","full_attention","sliding_attention","full_attention",)"
                  R"("sliding_attention","sliding_attention","sliding_attention","full_attention"])");
  const auto parsed = parse_config(fmt::format(
      R"({{"architectures":["Gemma4ForConditionalGeneration"],"model_type":"gemma4","text_config":{}}})", text));
  if (!parsed) FAIL(parsed.error().message);
  const ModelConfig& config = *parsed;
  const std::vector<test::TensorToWrite> plain = test::RandomModel(config, 6).tensors();
  const auto backend = cpu::make_backend({.threads = 1, .compute_dtype = tensor::DType::kF32});
  const auto load = [&](std::string_view prefix, const std::string& extra, StageSpan span) {
    std::vector<test::TensorToWrite> tensors = plain;
    for (test::TensorToWrite& tensor : tensors)
      tensor.name = fmt::format("{}{}", prefix, tensor.name.substr(std::string_view("model.").size()));
    tensors.push_back({"model.vision_tower.patch.weight", {2}, {1, 2}});
    tensors.push_back({fmt::format("{}{}", prefix, extra), {2}, {1, 2}});
    const test::TemporaryFolder folder;
    folder.write("model.safetensors", test::safetensors_text(tensors));
    const auto checkpoint = Checkpoint::open(folder.path()).value();
    const auto stage =
        StageModel::load(*checkpoint, config, span, *backend, {.max_batch_tokens = 4, .max_logit_rows = 2}, {});
    return stage ? "" : stage.error().message;
  };
  const StageSpan whole{.layers = {0, 8}};
  for (const char* unused : {"k_proj.weight", "v_proj.weight", "k_norm.weight"})
    REQUIRE(load("model.language_model.", fmt::format("layers.6.self_attn.{}", unused), whole) == "");
  const std::string used = "layers.6.self_attn.k_proj.weight";
  REQUIRE(load("language_model.model.", used, whole) == "");
  // The part timer loads the embedding and the head alone.
  REQUIRE(load("model.language_model.", used, {.layers = {0, 0}, .first = true, .last = true}) == "");
  REQUIRE(load("model.language_model.", used, {.layers = {0, 2}, .first = true, .last = false}) == "");
  REQUIRE_THAT(load("model.language_model.", "layers.6", whole), Mentions("layers.6"));
  REQUIRE_THAT(load("model.language_model.", "layers.2.self_attn.x_proj.weight", whole), Mentions("x_proj"));
}
