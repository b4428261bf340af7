#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/test_server.h"

namespace millrace::test {

/// Renders tools, reasoning and calls as Qwen 3 does, in fewer words.
inline constexpr std::string_view kToolTemplate =
    R"({% if tools %}[tools <tool_call>]{{ tools | tojson }}{% endif %}{% for m in messages %}[{{ m.role }}])"
    R"({% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content if m.content }})"
    R"({% for c in m.tool_calls %}({{ c.function.name }} {{ c.function.arguments | tojson }}){% endfor %}{% endfor %})"
    R"({% if add_generation_prompt %}[assistant]{% endif %})"
    R"({% if enable_thinking is defined %}{{ '<think>' if enable_thinking else '<think></think>' }}{% endif %})"
    R"({% if reasoning_effort is defined %}{{ '(' + reasoning_effort + ')' }}{% endif %})";

/// A server over a fake engine, whose model has a template of the test's choice.
class MessageServer {
 public:
  explicit MessageServer(std::string_view chat_template = kToolTemplate, server::ServerOptions options = {});
  explicit MessageServer(std::shared_ptr<const text::ChatTemplate> chat_template, server::ServerOptions options = {});
  ~MessageServer() { front_->stop(std::chrono::milliseconds(0)); }

  /// Sets the model's answer to `text`, a number of tokens (bytes) at a time.
  void answer(std::string text, size_t tokens_per_event = 1);
  [[nodiscard]] HttpReply post(std::string_view path, std::string_view json, std::string_view headers = {}) const {
    return Client(port_).post(path, json, headers);
  }
  [[nodiscard]] HttpReply get(std::string_view path, std::string_view headers = {}) const {
    return Client(port_).get(path, headers);
  }
  /// Posts a message with one user's text and `more` members.
  [[nodiscard]] HttpReply ask(std::string_view more = {}) const;
  /// Returns the prompt of the newest request.
  [[nodiscard]] std::string prompt() const;
  [[nodiscard]] uint16_t port() const { return port_; }

  FakeEngine engine;

 private:
  std::unique_ptr<server::Server> front_;
  uint16_t port_ = 0;
};

/// A message put together from the events of a stream, as a client does.
struct StreamedMessage {
  std::vector<std::string> types;   ///< of the events, in order
  std::vector<std::string> blocks;  ///< "text: …", "thinking: …", "tool_use NAME: …" with the joined pieces
  std::string stop_reason;
  std::string stop_sequence;  ///< empty: null
  std::string error;          ///< the type of an error that ended it
  int64_t output_tokens = -1;
};
/// Checks the order of the events on the way.
[[nodiscard]] StreamedMessage join_events(const HttpReply& reply);
/// Returns the same of a whole message.
[[nodiscard]] StreamedMessage read_message(const HttpReply& reply);

}  // namespace millrace::test
