#include "server/test_server.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "base/json.h"
#include "base/log.h"
#include "text/tokenizer/byte_level.h"

namespace millrace::test {

std::shared_ptr<const text::Tokenizer> byte_tokenizer(std::string_view special_tag, bool adds_bos) {
  std::string source;
  JsonWriter json(source);
  json.begin_object().key("added_tokens").begin_array();
  const auto special = [&](int id, std::string_view content) {
    json.begin_object().member("id", id).member("content", content).member("special", true);
    json.member("normalized", false).member("single_word", false).member("lstrip", false).member("rstrip", false);
    json.end_object();
  };
  special(256, "<bos>");
  special(257, "<eos>");
  if (!special_tag.empty()) special(258, special_tag);
  json.end_array().key("normalizer").null();
  json.key("pre_tokenizer").raw(R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false})");
  if (adds_bos) {
    json.key("post_processor")
        .raw(R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<bos>","type_id":0}},)"
             R"({"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{"<bos>":)"
             R"({"id":"<bos>","ids":[256],"tokens":["<bos>"]}}})");
  }
  json.key("decoder").raw(R"({"type":"ByteLevel"})");
  json.key("model").begin_object().member("type", "BPE").key("vocab").begin_object();
  for (int byte = 0; byte < 256; ++byte) {
    json.member(text::byte_level_char(static_cast<unsigned char>(byte)), byte);
  }
  json.end_object().key("merges").begin_array().end_array().end_object().end_object();
  auto tokenizer = text::Tokenizer::from_json(source);
  REQUIRE(tokenizer.has_value());
  return *tokenizer;
}

server::Service test_service(sched::Engine& engine) {
  server::Service service;
  service.engine = &engine;
  service.tokenizer = byte_tokenizer();
  auto chat_template = text::ChatTemplate::from_source(
      "{% for m in messages %}{% if m.role == 'user' and m.content == 'raise' %}{{ raise_exception('no') }}{% endif %}"
      "[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}{{ extra }}");
  REQUIRE(chat_template.has_value());
  service.chat_template = *chat_template;
  service.special_tokens = {{"bos_token", "<bos>"}};
  service.defaults.temperature = 0.7f;
  service.defaults.eos_token_ids = {FakeEngine::kEos};
  return service;
}

TestServer::TestServer(server::ServerOptions options, std::shared_ptr<const server::PoolingModel> pooling) {
  log::configure(log::Level::kError, false);
  options.http.port = 0;
  options.served_model_name = "fake";
  server::Service service = test_service(engine);
  service.pooling = std::move(pooling);
  front = std::make_unique<server::Server>(std::move(options), std::move(service));
  auto started = front->start();
  REQUIRE(started.has_value());
  port = *started;
}

}  // namespace millrace::test
