#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "model/families/read_config.h"
#include "support/mentions.h"

using namespace millrace;
using namespace millrace::model;
using test::Mentions;

namespace {

/// Returns the config.json of an encoder with some members replaced.
std::string encoder_json(std::string_view architecture, std::string_view more = "") {
  return fmt::format(
      R"({{"architectures":["{}"],"vocab_size":100,"hidden_size":48,"intermediate_size":64,"num_hidden_layers":3,)"
      R"("num_attention_heads":6,"max_position_embeddings":34,"torch_dtype":"float32"{}{}}})",
      architecture, more.empty() ? "" : ",", more);
}

}  // namespace

TEST_CASE("encoders are read with their tables of positions") {
  const ModelConfig bert =
      parse_config(encoder_json("BertModel", R"("type_vocab_size":2,"hidden_act":"gelu")")).value();
  REQUIRE(bert.encoder == EncoderConfig{.position_rows = 34, .first_position = 0, .type_rows = 2});
  REQUIRE(bert.context_length() == 34);
  REQUIRE(bert.layer_count() == 3);
  REQUIRE(bert.layer(2).attention.head_dim == 8);
  REQUIRE(bert.layer(2).attention.kv_head_count == 6);
  REQUIRE(bert.layer(2).feed_forward ==
          FeedForwardConfig{.width = 64, .activation = MlpActivation::kGelu, .gated = false, .bias = true});
  REQUIRE(bert.norm == NormKind::kLayerInPlace);
  REQUIRE(bert.norm_epsilon == 1e-12f);
  REQUIRE(bert.layer(2).attention.qkv_bias);
  REQUIRE_FALSE(bert.has_output_head);
  for (const char* name : {"RobertaModel", "XLMRobertaModel", "CamembertModel"}) {
    const ModelConfig roberta =
        parse_config(encoder_json(name, R"("type_vocab_size":1,"pad_token_id":1,"layer_norm_eps":1e-05)")).value();
    REQUIRE(roberta.encoder == EncoderConfig{.position_rows = 34, .first_position = 2, .type_rows = 1});
    REQUIRE(roberta.context_length() == 32);
  }
}

TEST_CASE("what an encoder does not compute here is refused by name") {
  const auto refusal = [](std::string_view more) {
    return parse_config(encoder_json("BertModel", more)).error().message;
  };
  REQUIRE_THAT(refusal(R"("hidden_act":"gelu_new")"), Mentions("config.json", "hidden_act", "'gelu_new'", "'gelu'"));
  REQUIRE_THAT(refusal(R"("position_embedding_type":"relative_key")"),
               Mentions("config.json", "position_embedding_type", "'relative_key'", "'absolute'"));
  REQUIRE_THAT(refusal(R"("is_decoder":true)"), Mentions("config.json", "is_decoder", "encoder"));
  std::string uneven = encoder_json("BertModel");
  uneven.replace(uneven.find("48"), 2, "50");
  REQUIRE_THAT(parse_config(uneven).error().message, Mentions("hidden_size 50", "num_attention_heads 6"));
  const auto padded = parse_config(encoder_json("RobertaModel", R"("pad_token_id":40)"));
  REQUIRE_THAT(padded.error().message, Mentions("max_position_embeddings 34", "pad_token_id 40"));
}
