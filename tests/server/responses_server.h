#pragma once

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "sched/plan/request.h"
#include "server/test_server.h"

/// A server of /v1/responses over a scripted engine, and checks of its streams.
namespace millrace::test {

inline constexpr const char* kItemTemplate = R"({% if tools %}[tools <tool_call>]{{ tools | tojson }}{% endif %}
{%- for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content }}{% for c in m.tool_calls %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %})";
inline constexpr const char* kItemTools =
    R"("tools":[{"type":"function","name":"look","strict":false,"parameters":{"type":"object"}},)"
    R"({"type":"namespace","name":"ns","tools":[{"type":"function","name":"go"}]},{"type":"custom","name":"patch"}])";
inline constexpr const char* kThinkAndCall =
    "<think>\nlook first\n</think>\n\n"
    "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": \"it\"}}\n</tool_call>\n"
    "<tool_call>\n{\"name\": \"ns__go\", \"arguments\": {\"to\": \"x\"}}\n</tool_call>";

inline std::string call(std::string_view name, std::string_view arguments) {
  return fmt::format("<tool_call>\n{{\"name\": \"{}\", \"arguments\": {}}}\n</tool_call>", name, arguments);
}

/// A server whose model writes `reply`, with a template that shows tools and reasoning.
struct ResponsesServer : TestServer {
  explicit ResponsesServer(ScriptedReply reply = {}, server::ServerOptions options = {})
      : TestServer(allowing(std::move(options))) {
    engine.info.context_length = 1 << 16;
    engine.on_submit = [reply](const sched::GenerateRequest&) { return reply; };
  }
  static server::ServerOptions allowing(server::ServerOptions options) {
    options.allow_request_chat_template = true;
    return options;
  }
  [[nodiscard]] static std::string body(std::string_view more) {
    std::string out = R"({"chat_template":)";
    append_json_string(out, kItemTemplate);
    if (more.find("\"input\"") == std::string_view::npos) out += R"(,"input":"hi")";
    return fmt::format("{}{}{}}}", out, more.empty() ? "" : ",", more);
  }
  [[nodiscard]] HttpReply respond(std::string_view more) const { return post("/v1/responses", body(more)); }
  [[nodiscard]] ParsedJson ask(std::string_view more = {}) const {
    const HttpReply reply = respond(more);
    INFO(reply.body);
    REQUIRE(reply.status == 200);
    return ParsedJson(reply.body);
  }
  [[nodiscard]] std::vector<std::string> stream(std::string_view more = {}) const {
    const HttpReply reply = respond(fmt::format("{}{}\"stream\":true", more, more.empty() ? "" : ","));
    INFO(reply.body);
    REQUIRE(reply.status == 200);
    return reply.events();
  }
  [[nodiscard]] HttpReply request(std::string_view method, std::string_view path, std::string_view headers = {}) const {
    Client client(port);
    client.send(fmt::format("{} {} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n{}\r\n", method, path, headers));
    return client.read();
  }
  [[nodiscard]] std::string prompt() const {
    const auto seen = engine.seen().back();
    return {seen.prompt.begin(), seen.prompt.end()};
  }
};

/// Returns the types of events; deltas in a row count once.
inline std::vector<std::string> types_of(const std::vector<std::string>& events) {
  std::vector<std::string> types;
  for (size_t i = 0; i < events.size(); ++i) {
    const ParsedJson event(events[i]);
    CHECK(event.integer("/sequence_number") == static_cast<int64_t>(i));
    const std::string type = event.string("/type").substr(std::string_view("response.").size());
    const bool repeats = !types.empty() && types.back() == type && type.ends_with(".delta");
    if (!repeats) types.push_back(type);
  }
  return types;
}

/// Checks what clients rely on: items open and close once, deltas add up, and the last event repeats every item.
inline void check_stream(const std::vector<std::string>& events) {
  const ParsedJson last(events.back());
  std::vector<std::string> done;
  std::string delta;
  std::string open;
  for (const std::string& text : events) {
    const ParsedJson event(text);
    const std::string type = event.string("/type");
    if (type == "response.output_item.added") {
      CHECK(open.empty());
      open = event.string("/item/id");
      delta.clear();
      CHECK(event.integer("/output_index") == static_cast<int64_t>(done.size()));
    }
    if (type.ends_with(".delta")) {
      CHECK(event.string("/item_id") == open);
      delta += event.string("/delta");
    }
    for (const char* member : {"/text", "/arguments", "/input"}) {
      if (type.ends_with(".done") && event.has(member)) CHECK(event.string(member) == delta);
    }
    if (type == "response.output_item.done") {
      CHECK(event.string("/item/id") == open);
      const std::string pointer = fmt::format("/response/output/{}", done.size());
      CHECK(simdjson::minify(event.at("/item")) == simdjson::minify(last.at(pointer)));
      done.push_back(open);
      open.clear();
    }
  }
  CHECK(open.empty());
  CHECK(last.size("/response/output") == done.size());
  CHECK(std::set<std::string>(done.begin(), done.end()).size() == done.size());
}

}  // namespace millrace::test
