#include "model/pooling_config.h"

#include <catch2/catch.hpp>

#include "model/checkpoint_files.h"
#include "support/mentions.h"

using namespace millrace;
using namespace millrace::model;
using millrace::test::Mentions;

namespace {

/// A folder with files in folders of its own.
struct ModelFolder : test::TemporaryFolder {
  void write(const std::string& name, std::string_view text) const {
    std::filesystem::create_directories((path() / name).parent_path());
    TemporaryFolder::write(name, text);
  }
};

std::string mode_error(std::string_view json) {
  return parse_pooling_mode(json, "1_Pooling/config.json").error().message;
}

}  // namespace

TEST_CASE("a pooling mode is read in both spellings") {
  const auto mode = [](std::string_view json) { return parse_pooling_mode(json, "config.json").value(); };
  REQUIRE(mode(R"({"word_embedding_dimension":4,"pooling_mode_cls_token":true,"pooling_mode_mean_tokens":false})") ==
          PoolingMode::kCls);
  REQUIRE(mode(R"({"pooling_mode_lasttoken":true})") == PoolingMode::kLast);
  REQUIRE(mode(R"({"pooling_mode":"lasttoken","include_prompt":true})") == PoolingMode::kLast);
  REQUIRE(mode(R"({"pooling_mode":"cls"})") == PoolingMode::kCls);
  REQUIRE(mode("{}") == PoolingMode::kMean);
}

TEST_CASE("a pooling that is not computed is refused by name") {
  REQUIRE_THAT(mode_error(R"({"pooling_mode":"weightedmean"})"), Mentions("1_Pooling", "weightedmean", "cls"));
  REQUIRE_THAT(mode_error(R"({"pooling_mode_max_tokens":true})"), Mentions("pooling_mode_max_tokens", "lasttoken"));
  REQUIRE_THAT(mode_error(R"({"pooling_mode_max_tokens":true,"pooling_mode_mean_tokens":true})"),
               Mentions("pooling_mode_mean_tokens and pooling_mode_max_tokens"));
  REQUIRE_THAT(mode_error(R"({"pooling_mode":"other"})"), Mentions("other"));
  REQUIRE_THAT(mode_error("[]"), Mentions("1_Pooling"));
}

TEST_CASE("modules are read in their order") {
  const ModelFolder folder;
  SECTION("none: the vector is normalized") {
    const PoolingConfig config = read_pooling_config(folder.path()).value();
    REQUIRE_FALSE(config.has_modules);
    REQUIRE_FALSE(config.mode);
    REQUIRE(config.normalizes);
  }
  folder.write("sentence_bert_config.json", R"({"max_seq_length":128,"do_lower_case":false})");
  folder.write("1_Pooling/config.json", R"({"embedding_dimension":8,"pooling_mode":"mean"})");
  folder.write("2_Dense/config.json", R"({"in_features":8,"out_features":4,"bias":false,
      "activation_function":"torch.nn.modules.linear.Identity"})");
  const std::string begin = R"([{"idx":0,"name":"0","path":"","type":"sentence_transformers.models.Transformer"},
      {"idx":1,"name":"1","path":"1_Pooling","type":"sentence_transformers.sentence_transformer.modules.Pooling"})";
  const auto error_of = [&](const std::string& rest) {
    folder.write("modules.json", begin + rest + "]");
    return read_pooling_config(folder.path()).error().message;
  };
  SECTION("all") {
    folder.write("modules.json", begin + R"(,{"path":"2_Dense","type":"x.Dense"},{"path":"3","type":"x.Normalize"}])");
    const PoolingConfig config = read_pooling_config(folder.path()).value();
    REQUIRE(config.mode == PoolingMode::kMean);
    REQUIRE(config.input_width == 8);
    REQUIRE(config.max_sequence_length == 128);
    REQUIRE(config.normalizes);
    REQUIRE(config.dense.size() == 1);
    REQUIRE(config.dense[0].outputs == 4);
    REQUIRE_FALSE(config.dense[0].has_bias);
    REQUIRE(config.dense[0].activation == Activation::kIdentity);
  }
  SECTION("a score of tokens") {
    folder.write("1_LogitScore/config.json", R"({"true_token_id":9693,"false_token_id":2152})");
    folder.write("modules.json",
                 R"([{"path":"1_LogitScore","type":"sentence_transformers.cross_encoder.LogitScore"}])");
    const PoolingConfig config = read_pooling_config(folder.path()).value();
    REQUIRE(config.token_score->true_token == 9693);
    REQUIRE(config.token_score->false_token == 2152);
  }
  SECTION("what is not computed is refused") {
    REQUIRE_THAT(error_of(R"(,{"path":"","type":"x.WordWeights"})"),
                 Mentions("modules.json", "x.WordWeights", "Dense"));
    REQUIRE_THAT(error_of(R"(,{"path":"","type":"x.Normalize"},{"path":"2_Dense","type":"x.Dense"})"),
                 Mentions("Dense after Normalize"));
    REQUIRE_THAT(error_of(R"(,{"path":"../2_Dense","type":"x.Dense"})"), Mentions("../2_Dense"));
    REQUIRE_THAT(error_of(R"(,{"path":"/etc","type":"x.Dense"})"), Mentions("/etc"));
    REQUIRE_THAT(error_of(R"(,{"path":"4_Dense","type":"x.Dense"})"), Mentions("4_Dense", "missing"));
    REQUIRE_THAT(error_of(",5"), Mentions("objects"));
    folder.write("2_Dense/config.json", R"({"in_features":8,"out_features":4,"activation_function":"my.Swish"})");
    REQUIRE_THAT(error_of(R"(,{"path":"2_Dense","type":"x.Dense"})"), Mentions("my.Swish", "Tanh"));
    folder.write("sentence_bert_config.json", R"({"do_lower_case":true})");
    REQUIRE_THAT(error_of(""), Mentions("do_lower_case"));
  }
}

TEST_CASE("the activation of a score is found wherever it is") {
  const auto activation = [](std::string_view json) { return parse_score_config(json, "config.json")->activation; };
  REQUIRE(activation("{}") == Activation::kSigmoid);
  REQUIRE(activation(R"({"problem_type":"regression"})") == Activation::kIdentity);
  REQUIRE(activation(R"({"sbert_ce_default_activation_function":"torch.nn.modules.linear.Identity"})") ==
          Activation::kIdentity);
  REQUIRE(activation(R"({"sentence_transformers":{"activation_fn":"torch.nn.modules.activation.Tanh"}})") ==
          Activation::kTanh);
  REQUIRE_THAT(parse_score_config(R"({"sentence_transformers":{"activation_fn":"my.F"}})", "c").error().message,
               Mentions("c: sentence_transformers", "my.F"));
  const ModelFolder folder;
  folder.write("config.json", "{}");
  folder.write("config_sentence_transformers.json", R"({"activation_fn":"torch.nn.modules.linear.Identity"})");
  REQUIRE(read_score_config(folder.path())->activation == Activation::kIdentity);
}

TEST_CASE("dimensions and words of a score are read") {
  const auto config = [](std::string_view json) { return parse_score_config(json, "config.json").value(); };
  REQUIRE_FALSE(config("{}").is_matryoshka);
  REQUIRE(config(R"({"is_matryoshka":true})").is_matryoshka);
  REQUIRE(config(R"({"matryoshka_dimensions":[32,64]})").is_matryoshka);
  REQUIRE(config(R"({"matryoshka_dimensions":[32,64]})").matryoshka_dimensions == std::vector<int32_t>{32, 64});
  REQUIRE(config(R"({"classifier_from_token":["no","yes"]})").classifier_from_token.back() == "yes");
  REQUIRE(parse_score_config(R"({"classifier_from_token":["no"]})", "c").has_error());
  REQUIRE(config("{}").own_code.empty());
  REQUIRE(config(R"({"auto_map":{"AutoModel":"modeling_qwen.Qwen2Model"}})").own_code == "modeling_qwen.Qwen2Model");
}
