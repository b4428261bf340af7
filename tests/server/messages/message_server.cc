#include "server/messages/message_server.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <utility>

#include "base/log.h"

namespace millrace::test {
namespace {

std::string member_or_empty(const ParsedJson& json, std::string_view pointer) {
  return json.is_null(pointer) ? std::string() : json.string(pointer);
}

/// Returns a JSON text without white space, or the text where it is none.
std::string compact(const std::string& text) {
  simdjson::dom::parser parser;
  simdjson::dom::element parsed;
  if (parser.parse(text).get(parsed) != simdjson::SUCCESS) return text;
  return simdjson::minify(parsed);
}

/// Returns the lines of a stream that begin with `prefix`, without it.
std::vector<std::string> lines_with(const std::string& body, std::string_view prefix) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < body.size();) {
    const size_t end = std::min(body.find('\n', at), body.size());
    const std::string_view line = std::string_view(body).substr(at, end - at);
    if (line.starts_with(prefix)) lines.emplace_back(line.substr(prefix.size()));
    at = end + 1;
  }
  return lines;
}

/// Follows the blocks of one stream.
class BlockJoiner {
 public:
  explicit BlockJoiner(StreamedMessage& message) : message_(message) {}

  void start(const ParsedJson& event) {
    REQUIRE_FALSE(is_open_);
    REQUIRE(event.integer("/index") == static_cast<int64_t>(message_.blocks.size()));
    is_open_ = true;
    type_ = event.string("/content_block/type");
    message_.blocks.push_back(type_);
    if (type_ == "tool_use") message_.blocks.back() += ' ' + event.string("/content_block/name");
    piece_.clear();
  }
  void add(const ParsedJson& event) {
    REQUIRE(is_open_);
    REQUIRE(event.integer("/index") + 1 == static_cast<int64_t>(message_.blocks.size()));
    const std::string type = event.string("/delta/type");
    if (type == "signature_delta") {
      REQUIRE(type_ == "thinking");
      return;
    }
    REQUIRE(type == (type_ == "tool_use" ? "input_json_delta" : type_ + "_delta"));
    piece_ += event.string(type_ == "tool_use" ? "/delta/partial_json" : "/delta/" + type_);
  }
  void stop() {
    REQUIRE(std::exchange(is_open_, false));
    message_.blocks.back() += ": " + (type_ == "tool_use" ? compact(piece_) : piece_);
  }

 private:
  StreamedMessage& message_;
  std::string type_;
  std::string piece_;
  bool is_open_ = false;
};

}  // namespace

MessageServer::MessageServer(std::string_view chat_template, server::ServerOptions options)
    : MessageServer(text::ChatTemplate::from_source(chat_template).value(), std::move(options)) {}

MessageServer::MessageServer(std::shared_ptr<const text::ChatTemplate> chat_template, server::ServerOptions options) {
  log::configure(log::Level::kError, false);
  options.http.port = 0;
  options.served_model_name = "fake";
  engine.info.context_length = 65536;
  server::Service service = test_service(engine);
  service.chat_template = std::move(chat_template);
  front_ = std::make_unique<server::Server>(std::move(options), std::move(service));
  auto started = front_->start();
  REQUIRE(started.has_value());
  port_ = *started;
}

void MessageServer::answer(std::string text, size_t tokens_per_event) {
  engine.on_submit = [text = std::move(text), tokens_per_event](const sched::GenerateRequest&) {
    return ScriptedReply{.text = text, .tokens_per_event = tokens_per_event};
  };
}

HttpReply MessageServer::ask(std::string_view more) const {
  const bool has_limit = more.find("\"max_tokens\"") != std::string_view::npos;
  return post("/v1/messages", fmt::format(R"({{"model":"fake","messages":[{{"role":"user","content":"hi"}}]{}{}{}}})",
                                          has_limit ? "" : R"(,"max_tokens":1000)", more.empty() ? "" : ",", more));
}

std::string MessageServer::prompt() const {
  const auto request = engine.seen().back();
  return {request.prompt.begin(), request.prompt.end()};
}

StreamedMessage join_events(const HttpReply& reply) {
  INFO(reply.body);
  REQUIRE(reply.status == 200);
  StreamedMessage message;
  BlockJoiner blocks(message);
  const std::vector<std::string> names = lines_with(reply.body, "event: ");
  const std::vector<std::string> datas = lines_with(reply.body, "data: ");
  REQUIRE(names.size() == datas.size());
  for (size_t i = 0; i < names.size(); ++i) {
    const ParsedJson event(datas[i]);
    const std::string type = event.string("/type");
    REQUIRE(type == names[i]);
    REQUIRE((type == "message_start") == (i == 0));
    message.types.push_back(type);
    if (type == "content_block_start") blocks.start(event);
    if (type == "content_block_delta") blocks.add(event);
    if (type == "content_block_stop") blocks.stop();
    if (type == "message_delta") {
      message.stop_reason = event.string("/delta/stop_reason");
      message.stop_sequence = member_or_empty(event, "/delta/stop_sequence");
      message.output_tokens = event.integer("/usage/output_tokens");
    }
    if (type == "error") message.error = event.string("/error/type");
  }
  return message;
}

StreamedMessage read_message(const HttpReply& reply) {
  INFO(reply.body);
  REQUIRE(reply.status == 200);
  const ParsedJson json(reply.body);
  StreamedMessage message;
  for (size_t i = 0; i < json.size("/content"); ++i) {
    const std::string path = fmt::format("/content/{}", i);
    const std::string type = json.string(path + "/type");
    if (type == "tool_use") {
      const std::string input = simdjson::minify(json.at(path + "/input"));
      message.blocks.push_back(fmt::format("tool_use {}: {}", json.string(path + "/name"), input));
    } else {
      message.blocks.push_back(fmt::format("{}: {}", type, json.string(path + '/' + type)));
    }
  }
  message.stop_reason = json.string("/stop_reason");
  message.stop_sequence = member_or_empty(json, "/stop_sequence");
  message.output_tokens = json.integer("/usage/output_tokens");
  return message;
}

}  // namespace millrace::test
