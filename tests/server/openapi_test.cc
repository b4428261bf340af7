#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <functional>
#include <map>

#include "async/real_runtime.h"
#include "server/api.h"
#include "server/messages/request.h"
#include "server/openapi.h"
#include "server/schema_check.h"
#include "server/test_server.h"

using namespace millrace;
using namespace millrace::test;
using namespace millrace::server;
using namespace std::string_view_literals;

namespace {

const openai::RequestLimits kLimits{.vocab_size = 1000, .max_choices = 1024};

/// Returns values of `messages` and of `tools`.
std::vector<std::string> chat_values() {
  return {
      "[{\"role\":\"user\",\"content\":\"c\"}]",
      "[{\"role\":\"robot\",\"content\":\"c\"}]",
      "[{\"role\":\"user\",\"content\":5}]",
      "[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"c\"}]}]",
      R"([{"role":"user","content":[{"type":"image_url"}]},{"role":"assistant","content":"c"}])",
      R"([{"role":"tool","content":[{"type":"text","text":"t"},{"type":"input_file"}]}])",
      R"([{"role":"tool","content":[{"type":"picture"}]}])",
      "[{\"role\":\"user\",\"content\":[{}]}]",
      "[{\"role\":\"assistant\",\"content\":null}]",
      "[{\"role\":\"assistant\",\"tool_calls\":[{}]}]",
      "[{\"role\":\"assistant\",\"tool_calls\":[]}]",
      "[{\"role\":\"user\",\"content\":\"c\",\"name\":7}]",
      R"([{"role":"assistant","tool_calls":[{"id":"i","function":{"name":"f","arguments":"{}"}}]}])",
      R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{}}}]}])",
      R"([{"role":"assistant","tool_calls":[{"type":"custom","function":{"name":"f"}}]}])",
      R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":5}}]}])",
      R"([{"role":"assistant","tool_calls":[{"id":5,"function":{"name":"f"}}]}])",
      R"([{"role":"assistant","tool_calls":[{"id":null,"function":{"name":"f","arguments":null}}]}])",
      R"([{"role":"assistant","reasoning_content":"r"},{"role":"tool","tool_call_id":"i","content":"c"}])",
      R"([{"role":"assistant","reasoning":5}])",
      R"([{"role":"assistant","content":[{"type":"thinking","thinking":"t"},{"type":"output_text","text":"a"}]}])",
      R"([{"role":"assistant","content":[{"type":"thinking","thinking":[{"type":"text","text":"t"}]}]}])",
      R"([{"role":"assistant","content":[{"type":"thinking","thinking":5}]}])",
      R"([{"role":"user","content":[{"type":"thinking","thinking":"t"}]}])",
      R"([{"role":"user","content":[{"type":"input_text","text":"t"}]}])",
      R"([{"role":"system","content":[{"type":"thinking","thinking":"t"}]}])",
      R"([{"role":"tool","tool_call_id":5,"content":"c"}])",
      R"([{"role":"assistant","function_call":{}}])",
      R"([{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}}])",
      R"([{"function":{"name":"f","parameters":null,"strict":true}}])",
      R"([{"function":{"name":""}}])",
      R"([{"function":{"name":"f","parameters":[]}}])",
      R"([{"type":"custom","function":{"name":"f"}}])",
      R"([{"type":"custom","custom":{"name":"f","description":"d","format":{"type":"text"}}}])",
      R"([{"type":"custom","custom":{"name":"f","format":{"type":"grammar","grammar":)"
      R"({"syntax":"regex","definition":"x"}}}}])",
      R"([{"type":"custom","custom":{"name":"f","format":{"type":"grammar","grammar":)"
      R"({"syntax":"gbnf","definition":"x"}}}}])",
      R"([{"type":"custom","custom":{}}])",
      R"([{"role":"assistant","tool_calls":[{"id":"i","type":"custom","custom":{"name":"f","input":"x"}}]}])",
      R"([{"role":"assistant","tool_calls":[{"id":"i","type":"custom","custom":{"name":"f"}}]}])",
      R"([{"type":null,"function":{"name":"f"}}])",
      R"([{"type":"function","name":"f","parameters":{"type":"object"},"strict":true}])",
      R"([{"name":"f","function":null}])",
      R"([{"name":5}])",
      R"([{"name":"f","function":{}}])",
      R"([{"name":"f","parameters":[]}])",
      R"([{"name":"f","input_schema":{}}])",
      R"([{"type":"custom","name":"f","format":{"type":"grammar","syntax":"regex","definition":"x"}}])",
      R"([{"type":"custom","name":"f","format":{"type":"grammar","syntax":"regex"}}])",
      R"([{"role":"assistant","tool_calls":[{"type":null,"function":{"name":"f","arguments":"{}"}}]}])",
      R"([{"role":"assistant","tool_calls":[{"id":"i","name":"f","arguments":"{}"}]}])",
      R"([{"role":"assistant","tool_calls":[{"type":"custom","name":"f","input":"x"}]}])",
      R"([{"role":"assistant","tool_calls":[{"type":"custom","name":"f"}]}])",
      R"([{"function":{"name":5}}])",
      R"([{"function":[]}])",
      R"("low")",
      R"("xhigh")",
  };
}

/// Returns values of the fields of a message.
std::vector<std::string> message_values() {
  std::vector<std::string> texts = {
      R"([{"name":"f","input_schema":{"type":"object"}}])",
      R"([{"type":"custom","name":"f","input_schema":{},"description":null,"strict":null,"defer_loading":true}])",
      R"([{"type":"custom","name":"f"}])",
      R"([{"type":"bash_20250124","name":"bash"}])",
      R"([{"type":5,"name":"f","input_schema":{}}])",
      R"([{"name":"f","input_schema":[]}])",
      R"([{"name":"f","input_schema":{},"description":5}])",
      R"([{"name":"f","input_schema":{},"strict":"x"}])",
      R"({"type":"auto"})",
      R"({"type":"any","disable_parallel_tool_use":true})",
      R"({"type":"any","disable_parallel_tool_use":5})",
      R"({"type":"tool","name":"f"})",
      R"({"type":"tool"})",
      R"({"type":"adaptive"})",
      R"({"type":"disabled","budget_tokens":5})",
      R"({"type":"enabled","budget_tokens":1024})",
      R"({"type":"enabled","budget_tokens":1023})",
      R"({"type":"enabled","budget_tokens":1024.5})",
      R"({"type":"enabled"})",
      R"({"effort":"high"})",
      R"({"effort":"none"})",
      R"({"effort":null,"format":{"type":"json_schema","schema":{"type":"object"}}})",
      R"({"format":{"type":"json_schema"}})",
      R"({"type":"json_schema","schema":{"type":"string"}})",
      R"({"type":"json_schema","schema":"{}"})",
      R"([{"type":"text","text":"s","cache_control":null}])",
      R"([{"type":"text","text":null}])",
  };
  for (const char* block :
       {R"({"type":"text","text":"t"})",
        R"({"type":"text"})",
        R"({"type":"image","source":{}})",
        R"({"type":"document","source":{"type":"text","data":"d"},"title":null,"context":"c"})",
        R"({"type":"document","source":{"type":"content","content":[{"type":"text","text":"d"}]}})",
        R"({"type":"document","source":{"type":"content","content":[{"type":"image"}]}})",
        R"({"type":"document","source":{"type":"url","url":"u"}})",
        R"({"type":"document","source":{"type":"fax","url":"u"}})",
        R"({"type":"tool_result","tool_use_id":"i","content":[{"type":"image","source":{}}]})",
        R"({"type":"document","title":"t"})",
        R"({"type":"search_result","title":"t","source":"s","content":[{"type":"text","text":"t"}]})",
        R"({"type":"search_result","title":"t","source":"s","content":"t"})",
        R"({"type":"search_result","source":"s","content":[]})",
        R"({"type":"tool_result","tool_use_id":"i"})",
        R"({"type":"tool_result","tool_use_id":"i","content":null,"is_error":null})",
        R"({"type":"tool_result","tool_use_id":"i","content":[{"type":"tool_reference","tool_name":"f"}]})",
        R"({"type":"tool_result","tool_use_id":"i","content":[{"type":"tool_reference"}]})",
        R"({"type":"tool_result","tool_use_id":"i","content":[{"type":"thinking","thinking":"t"}]})",
        R"({"type":"tool_result","tool_use_id":5})",
        R"({"type":"tool_result","tool_use_id":"i","is_error":5})",
        R"({"type":"thinking","thinking":"t","signature":""})",
        R"({"type":"thinking"})",
        R"({"type":"redacted_thinking","data":"d"})",
        R"({"type":"tool_use","id":"i","name":"f","input":{}})",
        R"({"type":"tool_use","id":"i","name":"f","input":"{}"})",
        R"({"type":"tool_use","id":"i","name":"f"})",
        R"({"type":"tool_use","id":"i","input":{}})",
        R"({"type":"server_tool_use","id":"i"})",
        R"({"type":"web_search_tool_result"})",
        R"({"text":"t"})",
        "5"}) {
    for (const char* role : {"user", "assistant", "system"}) {
      // A call of a tool may not be the last, and an image may not be what is asked about.
      constexpr const char* kFollowing = R"({"role":"assistant","content":"a"},{"role":"user","content":"c"})";
      texts.push_back(fmt::format(R"([{{"role":"{}","content":[{}]}},{}])", role, block, kFollowing));
    }
  }
  return texts;
}

/// Values of every JSON type, numbers apart.
constexpr std::string_view kOtherValues[] = {"null",
                                             "true",
                                             "false",
                                             "\"\"",
                                             "\"x\"",
                                             "\"none\"",
                                             "\"auto\"",
                                             "\"abort\"",
                                             "\"retract\"",
                                             "\"in_place\"",
                                             "[]",
                                             "[\"\"]",
                                             "[\"a\"]",
                                             "[\"text\"]",
                                             "[\"text\",\"audio\"]",
                                             "[\"a\",\"b\",\"c\",\"d\",\"e\"]",
                                             "[true]",
                                             "[1,\"a\"]",
                                             "[[1]]",
                                             "[[1],\"a\"]",
                                             "[[1000]]",
                                             "[[]]",
                                             "[-1]",
                                             "[0]",
                                             "[999]",
                                             "[1000]",
                                             "[2147483648]",
                                             "{}",
                                             "{\"type\":\"text\"}",
                                             "{\"type\":\"json_object\"}",
                                             "{\"5\":-100}",
                                             "{\"5\":101}",
                                             "{\"-5\":1}",
                                             "{\"x\":1}",
                                             "{\"include_usage\":true}",
                                             "{\"include_usage\":null}",
                                             "{\"include_usage\":1}",
                                             "[{}]",
                                             "[[[1]]]",
                                             "{\"continuous_usage_stats\":\"x\"}"};

/// Numbers around every bound that a field has.
constexpr std::string_view kNumbers[] = {"-9223372036854775808",
                                         "-2147483649",
                                         "-2147483648",
                                         "-101",
                                         "-3",
                                         "-2.5",
                                         "-2",
                                         "-1",
                                         "-0.5",
                                         "0",
                                         "0.5",
                                         "1",
                                         "1.0",
                                         "1.5",
                                         "2",
                                         "2.5",
                                         "10",
                                         "10.5",
                                         "11",
                                         "20",
                                         "21",
                                         "999",
                                         "1000",
                                         "1024",
                                         "1025",
                                         "3600",
                                         "3600.5",
                                         "2147483647",
                                         "2147483648",
                                         "1e16",
                                         "9223372036854775807",
                                         "9223372036854775808",
                                         "18446744073709551615",
                                         "1e300"};

/// Returns arrays of strings around every bound on a count, and strings around every bound on a length.
std::vector<std::string> long_values() {
  std::vector<std::string> texts;
  for (const size_t length : {256u, 257u, 1024u, 1025u}) texts.push_back('"' + std::string(length, 'x') + '"');
  std::string wide;
  for (int i = 0; i < 200; ++i) wide += "\xE9\xAF\xA8";
  texts.push_back('"' + wide + '"');
  for (const size_t count : {1024u, 1025u}) {
    std::string prompts = "[\"a\"";
    for (size_t i = 1; i < count; ++i) prompts += ",\"a\"";
    texts.push_back(prompts + ']');
  }
  return texts;
}

/// Returns values around every bound that a field has, and of every type.
std::vector<std::string> values() {
  std::vector<std::string> texts = chat_values();
  for (std::string& text : message_values()) texts.push_back(std::move(text));
  texts.insert(texts.end(), std::begin(kOtherValues), std::end(kOtherValues));
  texts.insert(texts.end(), std::begin(kNumbers), std::end(kNumbers));
  texts.emplace_back(R"(["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o","p","q"])");
  for (const char* side : {"\"left\"", "\"right\""}) texts.emplace_back(side);
  for (std::string& text : long_values()) texts.push_back(std::move(text));
  return texts;
}

using Parse = std::function<bool(const std::string& body)>;

struct RequestKind {
  const char* schema;
  std::map<std::string, std::string> base;  ///< a good request, member by member
  Parse accepts;
};

std::vector<RequestKind> request_kinds() {
  const std::string chat = R"([{"role":"user","content":"c"}])";
  using namespace openai;
  return {
      {"CompletionRequest",
       {{"prompt", "\"p\""}},
       [](const std::string& body) { return parse_completion_request(body, kLimits).has_value(); }},
      {"ChatCompletionRequest",
       {{"messages", chat}},
       [](const std::string& body) { return parse_chat_request(body, kLimits).has_value(); }},
      {"MessageRequest",
       {{"messages", chat}, {"model", "\"m\""}, {"max_tokens", "5000"}},
       [](const std::string& body) { return messages::parse_message_request(body, kLimits).has_value(); }},
      {"CountTokensRequest",
       {{"messages", chat}, {"model", "\"m\""}},
       [](const std::string& body) { return messages::parse_count_request(body, kLimits).has_value(); }},
      {"TokenizeRequest",
       {{"prompt", "\"p\""}},
       [](const std::string& body) { return parse_tokenize_request(body, kLimits).has_value(); }},
      {"DetokenizeRequest",
       {{"tokens", "[1]"}},
       [](const std::string& body) { return parse_detokenize_request(body, kLimits).has_value(); }},
      {"TemplateRequest",
       {{"messages", chat}},
       [](const std::string& body) { return parse_template_request(body, kLimits).has_value(); }},
      {"AbortRequest",
       {{"abort_all", "true"}},
       [](const std::string& body) { return parse_abort_request(body).has_value(); }},
      {"FlushRequest", {}, [](const std::string& body) { return parse_flush_request(body).has_value(); }},
      {"PauseRequest", {}, [](const std::string& body) { return parse_pause_request(body).has_value(); }},
  };
}

/// Sets the members without which `name` would be refused.
void add_company(const std::string& name, const std::string& value, std::map<std::string, std::string>& members) {
  if (name == "stream_options") members["stream"] = "true";
  if (name == "max_tokens" && members.contains("prompt")) members["echo"] = "true";
  if (name == "top_logprobs") members["logprobs"] = "true";
  if (name == "best_of" && value.find_first_not_of("0123456789") == std::string::npos) members["n"] = value;
  const bool is_choice_of_messages =
      value.find(R"("type":"any")") != value.npos || value.find(R"("type":"tool")") != value.npos;
  if (name == "tool_choice" && (members.contains("model") || is_choice_of_messages)) {
    members["tools"] = R"([{"name":"f","input_schema":{"type":"object"}}])";
  }
  if (name == "abort_all" && value != "true") members["request_id"] = "\"r\"";
  if (name == "content") members.erase("prompt");
  if (name == "continue_final_message") {
    members["add_generation_prompt"] = "false";
    members["messages"] = R"([{"role":"assistant","content":"c"}])";
  }
}

std::string body_of(const std::map<std::string, std::string>& members) {
  std::string body = "{";
  for (const auto& [name, value] : members) body += fmt::format("{}\"{}\":{}", body.size() > 1 ? "," : "", name, value);
  return body + '}';
}

ParsedJson document() {
  std::string text;
  append_openapi(text, ServerOptions{}, kLimits, {});
  return ParsedJson(text);
}

}  // namespace

TEST_CASE("The schemas accept what the parser accepts by field") {
  const ParsedJson openapi = document();
  const auto candidates = values();
  for (const RequestKind& kind : request_kinds()) {
    const auto schema = openapi.at(fmt::format("/components/schemas/{}", kind.schema));
    REQUIRE(kind.accepts(body_of(kind.base)));
    for (const auto member : schema["properties"].get_object()) {
      const std::string name(member.key);
      size_t accepted = 0;
      for (const std::string& value : candidates) {
        auto members = kind.base;
        members[name] = value;
        add_company(name, value, members);
        const std::string body = body_of(members);
        simdjson::dom::parser parser;
        simdjson::dom::element parsed;
        REQUIRE(parser.parse(body).get(parsed) == simdjson::SUCCESS);
        INFO(kind.schema << " " << body.substr(0, 200));
        const bool accepts = kind.accepts(body);
        CHECK(accepts == matches(parsed, schema, openapi.at("")));
        if (accepts) ++accepted;
      }
      INFO(kind.schema << "." << name);
      CHECK(accepted > 0);
      CHECK(accepted < candidates.size());
    }
    INFO(kind.schema);
    simdjson::dom::parser parser;
    const simdjson::dom::element empty = parser.parse("{}"sv);
    CHECK(kind.accepts("{}") == kind.base.empty());
    CHECK(matches(empty, schema, openapi.at("")) == kind.base.empty());
  }
}

TEST_CASE("The schemas say which priorities there are") {
  openai::RequestLimits limits = kLimits;
  const auto lowest = [&limits] {
    std::string text;
    append_openapi(text, ServerOptions{}, limits, {});
    return ParsedJson(text).integer("/components/schemas/ChatCompletionRequest/properties/priority/minimum");
  };
  CHECK(lowest() == 0);
  limits.has_priorities = true;
  CHECK(lowest() == -2147483648);
}

TEST_CASE("The schemas say what may be said of tools") {
  const ParsedJson openapi = document();
  const std::string tools = R"("tools":[{"function":{"name":"f"}}])";
  const std::pair<std::string, bool> cases[] = {
      {tools, true},
      {tools + R"(,"tool_choice":"none")", true},
      {tools + R"(,"tool_choice":"auto")", true},
      {tools + R"(,"tool_choice":"required")", true},
      {tools + R"(,"tool_choice":"any")", false},
      {tools + R"(,"tool_choice":null)", true},
      {tools + R"(,"tool_choice":{"type":"function","function":{"name":"f"}})", true},
      {tools + R"(,"tool_choice":{"type":"allowed_tools","function":{"name":"f"}})", false},
      {tools + R"(,"tool_choice":{"function":{}})", false},
      {tools + R"(,"tool_choice":{"type":"function","name":"f"})", true},
      {tools + R"(,"tool_choice":{"type":"function","name":""})", false},
      {R"("tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"function","function":{"name":"f"}})", true},
      {R"("tools":[{"type":"custom","name":"f"}],"tool_choice":{"type":"custom","name":"f"})", true},
      {tools + R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[]}})", false},
      {tools + R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[)"
               R"({"type":"function","function":{"name":"f"}}]}})",
       true},
      {tools + R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"never","tools":[]}})", false},
      {R"("tools":[{"type":"custom","custom":{"name":"f"}}],"tool_choice":{"type":"custom","custom":{"name":"f"}})",
       true},
      {R"("tools":[{}],"tool_choice":"none")", false},
      {R"("functions":[{}])", false},
      {R"("functions":5,"function_call":"none")", false},
      {R"("functions":[{}],"function_call":"none")", true}};
  for (const auto& [members, accepted] : cases) {
    const std::string body = fmt::format(R"({{"messages":[{{"role":"user","content":"c"}}],{}}})", members);
    INFO(body);
    simdjson::dom::parser parser;
    const simdjson::dom::element parsed = parser.parse(body);
    for (const char* name : {"ChatCompletionRequest", "TokenizeRequest", "TemplateRequest"}) {
      CHECK(matches(parsed, openapi.at(fmt::format("/components/schemas/{}", name)), openapi.at("")) == accepted);
    }
    CHECK(openai::parse_chat_request(body, kLimits).has_value() == accepted);
    CHECK(openai::parse_tokenize_request(body, kLimits).has_value() == accepted);
  }
}

TEST_CASE("The schemas say when tools may be named beside a prompt") {
  const ParsedJson openapi = document();
  const std::pair<const char*, bool> cases[] = {
      {R"("tools":[{}],"tool_choice":"none")", true},      {R"("tools":[{}],"tool_choice":"auto")", false},
      {R"("tools":[{}],"function_call":"none")", false},   {R"("tools":5,"tool_choice":"none")", false},
      {R"("tools":[],"tool_choice":"auto")", true},        {R"("tools":[{}],"tool_choice":null)", false},
      {R"("functions":[{}],"function_call":"none")", true}};
  for (const auto& [members, accepted] : cases) {
    const std::string body = fmt::format(R"({{"prompt":"p",{}}})", members);
    INFO(body);
    simdjson::dom::parser parser;
    const simdjson::dom::element parsed = parser.parse(body);
    CHECK(matches(parsed, openapi.at("/components/schemas/CompletionRequest"), openapi.at("")) == accepted);
    CHECK(openai::parse_completion_request(body, kLimits).has_value() == accepted);
  }
}

TEST_CASE("The document has every route and nothing else") {
  TestServer server;
  const ParsedJson openapi(server.get("/openapi.json").body);
  CHECK(openapi.string("/openapi") == "3.1.0");
  size_t documented = 0;
  for (const auto path : openapi.at("/paths").get_object()) {
    for (const auto operation : path.value.get_object()) {
      ++documented;
      std::string where(path.key);
      if (where == "/v1/models/{id}") where = "/v1/models/fake";
      if (const size_t id = where.find("{id}"); id != std::string::npos) {
        const ParsedJson stored(server.post("/v1/responses", R"({"input":"x"})").body);
        where.replace(id, 4, stored.string("/id"));
      }
      INFO(operation.key << " " << where);
      const HttpReply reply = operation.key == "get"      ? server.get(where)
                              : operation.key == "delete" ? server.remove(where)
                                                          : server.post(where, "{\"abort_all\":true}");
      CHECK(reply.status != 404);
      CHECK(reply.status != 405);
      CHECK(operation.value["responses"][std::to_string(reply.status)].error() == simdjson::SUCCESS);
    }
  }
  async::IoThread thread("api");
  const ServerOptions options;
  const Service service = test_service(server.engine);
  const HttpUsage usage{.bodies = BodyBudget(0)};
  const Api api(thread.runtime(), options, service, usage);
  size_t known = 0;
  for (const Route& route : api.router().routes()) known += route.doc.summary.empty() ? 0 : 1;
  CHECK(documented == known);
}

TEST_CASE("The document says when a key is wanted") {
  ServerOptions options;
  options.api_keys = {"secret"};
  TestServer server(options);
  CHECK(server.get("/openapi.json").status == 401);
  const ParsedJson openapi(server.get("/openapi.json", "Authorization: Bearer secret\r\n").body);
  CHECK(openapi.string("/components/securitySchemes/key/scheme") == "bearer");
  CHECK(openapi.size("/paths/~1health/get/security") == 0);
  CHECK_FALSE(openapi.has("/paths/~1load/get/security"));
}
