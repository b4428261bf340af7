#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <string>

#include "model/families/read_config.h"
#include "model/fingerprint.h"
#include "model/needed_features.h"
#include "model/rope.h"
#include "model/stage_borders.h"
#include "model/tensor_list.h"
#include "model/weight_memory.h"
#include "support/mentions.h"

using namespace millrace;
using namespace millrace::model;
using millrace::test::Mentions;

namespace {

using Changes = std::map<std::string, std::string>;

/// Returns a small config of DeepSeek-V3 with fields replaced (raw JSON) or removed (empty text).
std::string config_text(const Changes& changes = {}) {
  Changes fields{{"architectures", R"(["DeepseekV3ForCausalLM"])"},
                 {"vocab_size", "512"},
                 {"hidden_size", "64"},
                 {"intermediate_size", "128"},
                 {"num_hidden_layers", "4"},
                 {"num_attention_heads", "4"},
                 {"num_key_value_heads", "4"},
                 {"max_position_embeddings", "256"},
                 {"q_lora_rank", "48"},
                 {"kv_lora_rank", "32"},
                 {"qk_nope_head_dim", "32"},
                 {"qk_rope_head_dim", "16"},
                 {"v_head_dim", "24"},
                 {"n_routed_experts", "8"},
                 {"n_shared_experts", "2"},
                 {"num_experts_per_tok", "2"},
                 {"n_group", "4"},
                 {"topk_group", "2"},
                 {"moe_intermediate_size", "40"},
                 {"first_k_dense_replace", "1"},
                 {"torch_dtype", "\"bfloat16\""}};
  for (const auto& [key, value] : changes) fields[key] = value;
  std::string text = "{";
  for (const auto& [key, value] : fields)
    if (!value.empty()) text += (text.size() > 1 ? ",\"" : "\"") + key + "\":" + value;
  return text + "}";
}

ModelConfig parsed(const std::string& text) {
  const auto config = parse_config(text);
  if (!config) FAIL(config.error().message);
  return *config;
}

std::string refused(const Changes& changes) {
  const auto config = parse_config(config_text(changes));
  if (config) return "accepted";
  REQUIRE(config.error().code == ErrorCode::kData);
  return config.error().message;
}

const std::string kYarn =
    R"({"type":"yarn","factor":40,"original_max_position_embeddings":64,"mscale":0.707,"mscale_all_dim":0.707})";

}  // namespace

TEST_CASE("latent attention is read from the config of DeepSeek-V3") {
  const ModelConfig config = parsed(config_text());
  const AttentionConfig& attention = config.layer(0).attention;
  REQUIRE(attention.latent);
  const LatentConfig wanted{.query_rank = 48, .latent_dim = 32, .nope_dim = 32, .rope_dim = 16};
  REQUIRE(*attention.latent == wanted);
  REQUIRE(attention.head_dim == 24);
  REQUIRE(attention.scale == Approx(1.0 / std::sqrt(48.0)));
  REQUIRE(config.ropes.at(0).interleaved);
  REQUIRE(config.ropes.at(0).rotary_dim == 16);
  REQUIRE_FALSE(config.is_sparse(0));
  REQUIRE(config.is_sparse(1));
  const MoeConfig& moe = *config.layer(3).feed_forward.moe;
  REQUIRE(moe.score == tensor::RouterScore::kSigmoid);
  REQUIRE(moe.choice_bias);
  REQUIRE(moe.shared->width == 80);
}

TEST_CASE("indexers of DeepSeek-V3.2 and GLM-5 are read from the config") {
  for (const bool is_glm : {false, true}) {
    Changes changes{{"architectures", is_glm ? R"(["GlmMoeDsaForCausalLM"])" : R"(["DeepseekV32ForCausalLM"])"},
                    {"index_topk", "100"},
                    {"index_head_dim", "48"}};
    const ModelConfig config = parsed(config_text(changes));
    REQUIRE(config.context_length() == 256);
    REQUIRE(chosen_tokens(config) == 100);
    const IndexerConfig wanted{
        .head_count = is_glm ? 32 : 64, .head_dim = 48, .chosen_count = 100, .interleaved = is_glm};
    for (const LayerConfig& layer : config.layers) REQUIRE(layer.attention.latent->indexer == wanted);
    REQUIRE(needs(config, tensor::Feature::kIndexers));
    REQUIRE(cache_bytes_per_token(config, 0, 1) == 2 * (32 + 16 + 48));
    REQUIRE_FALSE(config.is_sparse(0));
    REQUIRE(config.is_sparse(1));
    changes["index_topk"] = "";
    changes["max_position_embeddings"] = "163840";
    REQUIRE(chosen_tokens(parsed(config_text(changes))) == 2048);
    changes["mlp_layer_types"] = R"(["sparse","dense","sparse","dense"])";
    REQUIRE(parsed(config_text(changes)).is_sparse(0));
    REQUIRE_FALSE(parsed(config_text(changes)).is_sparse(3));
  }
}

TEST_CASE("a context that sees all tokens needs no indexers") {
  const Changes changes{{"architectures", R"(["DeepseekV32ForCausalLM"])"}, {"index_topk", "100"}};
  const ModelConfig config = parsed(config_text(changes));
  REQUIRE(for_context(config, 101) == config);
  const ModelConfig limited = for_context(config, 100);
  REQUIRE(limited.context_length() == 100);
  REQUIRE(limited.layer(0).attention == parsed(config_text()).layer(0).attention);
  REQUIRE_FALSE(needs(limited, tensor::Feature::kIndexers));
  REQUIRE_FALSE(fingerprint(limited) == fingerprint(config));
  Changes never = changes;
  never["index_topk"] = "256";
  REQUIRE_FALSE(chosen_tokens(parsed(config_text(never))));
}

TEST_CASE("layers of GLM-5 that share a choice have no indexer") {
  const Changes glm{{"architectures", R"(["GlmMoeDsaForCausalLM"])"}, {"index_topk", "100"}};
  const auto shared_by = [&](const Changes& own) {
    Changes changes = glm;
    changes.insert(own.begin(), own.end());
    const ModelConfig config = parsed(config_text(changes));
    std::string shared;
    for (const LayerConfig& layer : config.layers) shared += layer.attention.latent->indexer->is_shared ? 'S' : 'F';
    return shared;
  };
  REQUIRE(shared_by({}) == "FFFF");
  REQUIRE(shared_by({{"indexer_types", R"(["full","shared","shared","full"])"}}) == "FSSF");
  REQUIRE(shared_by({{"index_topk_pattern", R"("FFSF")"}}) == "FFSF");
  REQUIRE(shared_by({{"index_topk_freq", "2"}}) == "FFSF");
  REQUIRE(shared_by({{"index_topk_freq", "4"}, {"index_skip_topk_offset", "1"}}) == "FSSS");
  Changes refusing = glm;
  refusing["indexer_types"] = R"(["full","some","shared","full"])";
  REQUIRE_THAT(refused(refusing), Mentions("indexer_types", "some", "1"));
  refusing["indexer_types"] = R"(["full","shared"])";
  REQUIRE_THAT(refused(refusing), Mentions("indexer_types", "2", "4"));
  refusing["indexer_types"] = R"(["shared","full","full","full"])";
  REQUIRE_THAT(refused(refusing), Mentions("indexer_types", "0"));
}

TEST_CASE("stages begin with layers that choose for themselves") {
  const auto config_of = [](const std::string& pattern) {
    return parsed(config_text({{"architectures", R"(["GlmMoeDsaForCausalLM"])"},
                               {"index_topk", "100"},
                               {"index_topk_pattern", "\"" + pattern + "\""}}));
  };
  using Ranges = std::vector<LayerRange>;
  const Ranges even = divide_layers(4, 2).value();
  REQUIRE(move_borders(config_of("FFFF"), even).value() == even);
  REQUIRE(move_borders(config_of("FFSF"), even).value() == Ranges{{0, 1}, {1, 4}});
  REQUIRE(move_borders(config_of("FSSF"), even).value() == Ranges{{0, 3}, {3, 4}});
  REQUIRE(largest_stage_count(config_of("FFSF")) == 3);
  REQUIRE(move_borders(config_of("FFSF"), divide_layers(4, 3).value()).value() == Ranges{{0, 1}, {1, 3}, {3, 4}});
  const auto too_many = move_borders(config_of("FFSF"), divide_layers(4, 4).value());
  REQUIRE_THAT(too_many.error().message, Mentions("4 pipeline stages", "3"));
  REQUIRE(check_borders(config_of("FFSF"), {{0, 1}, {1, 4}}).has_value());
  REQUIRE_THAT(check_borders(config_of("FFSF"), even).error().message, Mentions("layer 2", "layer 1"));
}

TEST_CASE("the tensors of an indexer are whole on every rank") {
  const ModelConfig config = parsed(config_text({{"architectures", R"(["GlmMoeDsaForCausalLM"])"},
                                                 {"index_topk", "100"},
                                                 {"index_head_dim", "48"},
                                                 {"index_topk_pattern", R"("FSFF")"}}));
  std::map<std::string, TensorSpec> specs;
  for (TensorSpec& spec : stage_tensors(config, {.layers = {0, 2}, .first = false, .last = false}))
    specs.emplace(spec.name, spec);
  const TensorSpec& query = specs.at("model.layers.0.self_attn.indexer.wq_b.weight");
  REQUIRE(query.shape == tensor::Shape{32 * 48, 48});
  REQUIRE(query.division == Division::kNone);
  REQUIRE(query.keeps_precision);
  REQUIRE(query.paired.head_rows == 48);
  REQUIRE(query.paired.count == 16);
  REQUIRE(specs.at("model.layers.0.self_attn.indexer.k_norm.bias").paired.count == 16);
  REQUIRE(specs.at("model.layers.0.self_attn.indexer.weights_proj.weight").shape == tensor::Shape{32, 64});
  REQUIRE_FALSE(specs.contains("model.layers.1.self_attn.indexer.wk.weight"));
}

TEST_CASE("an indexer without a low rank of queries is refused") {
  Changes changes{{"architectures", R"(["DeepseekV32ForCausalLM"])"}, {"index_topk", "100"}, {"q_lora_rank", "null"}};
  REQUIRE_THAT(refused(changes), Mentions("q_lora_rank"));
  changes["q_lora_rank"] = "48";
  changes["index_head_dim"] = "8";
  REQUIRE_THAT(refused(changes), Mentions("index_head_dim", "8", "16"));
}

TEST_CASE("a query rank of null is a whole projection") {
  REQUIRE(parsed(config_text({{"q_lora_rank", "null"}})).layer(0).attention.latent->query_rank == 0);
  REQUIRE(parsed(config_text({{"q_lora_rank", ""}})).layer(0).attention.latent->query_rank == 1536);
}

TEST_CASE("yarn scales the scores of latent attention") {
  const ModelConfig config = parsed(config_text({{"rope_scaling", kYarn}}));
  const double factor = 0.1 * 0.707 * std::log(40.0) + 1.0;
  REQUIRE(config.layer(0).attention.scale == Approx(factor * factor / std::sqrt(48.0)));
  REQUIRE(rotary_frequencies(config.ropes[0], 16).attention_factor == Approx(1.0));
}

TEST_CASE("DeepSeek-V2 weighs experts by an undivided softmax") {
  const Changes v2{{"architectures", R"(["DeepseekV2ForCausalLM"])"}, {"norm_topk_prob", "true"}};
  Changes grouped = v2;
  grouped["topk_method"] = "\"group_limited_greedy\"";
  const MoeConfig greedy = *parsed(config_text(v2)).layer(1).feed_forward.moe;
  REQUIRE(greedy.score == tensor::RouterScore::kSoftmax);
  REQUIRE_FALSE(greedy.renormalize);
  REQUIRE_FALSE(greedy.choice_bias);
  REQUIRE(greedy.group_count == 1);
  const MoeConfig limited = *parsed(config_text(grouped)).layer(1).feed_forward.moe;
  REQUIRE(limited.group_count == 4);
  REQUIRE(limited.groups_per_token == 2);
  REQUIRE(limited.group_score == tensor::GroupScore::kMax);
}

TEST_CASE("GLM-4.7-Flash names its dense layers") {
  const Changes flash{{"architectures", R"(["Glm4MoeLiteForCausalLM"])"}, {"first_k_dense_replace", ""}};
  REQUIRE_FALSE(parsed(config_text(flash)).is_sparse(0));
  REQUIRE(parsed(config_text(flash)).is_sparse(1));
  Changes named = flash;
  named["mlp_layer_types"] = R"(["dense","dense","sparse","dense"])";
  const ModelConfig config = parsed(config_text(named));
  REQUIRE_FALSE(config.is_sparse(1));
  REQUIRE(config.is_sparse(2));
  REQUIRE_FALSE(config.is_sparse(3));
}

TEST_CASE("Kimi K2.5 is the text model of its wrapper") {
  const std::string text =
      config_text({{"architectures", R"(["DeepseekV3ForCausalLM"])"}, {"model_type", "\"kimi_k2\""}});
  const ModelConfig config = parsed(
      R"({"architectures":["KimiK25ForConditionalGeneration"],"model_type":"kimi_k25","text_config":)" + text + "}");
  ModelConfig plain = parsed(text);
  REQUIRE(config.layers == plain.layers);
  REQUIRE_THAT(std::string(config.names.skipped_parts), Mentions("vision_tower."));
}

TEST_CASE("switches that latent families do not compute are refused") {
  REQUIRE_THAT(refused({{"moe_layer_freq", "2"}}), Mentions("moe_layer_freq", "2"));
  REQUIRE_THAT(refused({{"scoring_func", "\"softmax\""}}), Mentions("scoring_func", "softmax", "sigmoid"));
  REQUIRE_THAT(refused({{"topk_method", "\"greedy\""}}), Mentions("topk_method", "greedy", "noaux_tc"));
  REQUIRE_THAT(refused({{"qk_rope_head_dim", "15"}}), Mentions("qk_rope_head_dim", "15"));
  REQUIRE_THAT(refused({{"kv_lora_rank", "513"}}), Mentions("kv_lora_rank", "513"));
  REQUIRE_THAT(refused({{"kv_lora_rank", ""}}), Mentions("kv_lora_rank"));
}
