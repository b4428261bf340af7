#include <fmt/format.h>

#include <array>
#include <catch2/catch.hpp>
#include <string>

#include "text/chat_template/chat_template.h"
#include "text/chat_template/partial_json.h"

using namespace millrace;
using namespace millrace::text;

namespace {

constexpr std::string_view kFrame = "{{% for m in messages %}}<{{{{ m.role }}}}>{}</>{{% endfor %}}";
constexpr std::string_view kCalls =
    "{% for c in m.tool_calls %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}";
constexpr std::string_view kLoopedCalls =
    "{% for c in m.tool_calls %}[{{ c.function.name }}{% for k, v in c.function.arguments | items %} {{ k }}={{ v }}"
    "{% endfor %}]{% endfor %}";

struct Construction {
  const char* name;
  std::string content;  ///< how a template writes a message's content
  std::string calls;    ///< how it writes its calls
};

/// The ways in which real templates read a message.
std::vector<Construction> constructions() {
  const std::string calls(kCalls);
  const std::string nested = "{% if m.content is none %}" + calls + "{% else %}{{ m.content }}{% endif %}";
  return {
      {"prints", "{{ m.content }}", calls},
      {"splits", "{{ m.content.split('</think>')[-1].lstrip('\\n') }}", calls},
      {"joins", "{{ '\\n' + m.content + '\\n' }}", calls},
      {"trims", "{{ m.content | trim }}", calls},
      {"strips", "{{ m.content.strip() }}", calls},
      {"strips the end", "{{ m['content'].rstrip() }}", calls},
      {"searches", "{% if '<think>' in m.content %}!{% endif %}{{ m.content }}", calls},
      {"measures", "{% if m.content | length > 0 %}{{ m.content }}{% endif %}", calls},
      {"wants null beside calls", nested, ""},
      {"wants a member", "{% if 'content' not in m %}{{ raise_exception('no content') }}{% endif %}{{ m.content }}",
       calls},
      {"is careful", "{% if m.content is defined and m.content is not none %}{{ m.content }}{% endif %}", calls},
      {"takes parts",
       "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}"
       "{% endfor %}{% endif %}",
       calls},
      {"loops over arguments", "{{ m.content or '' }}", std::string(kLoopedCalls)},
      {"wants null, and joins arguments",
       "{% if m['content'] is none %}{% for c in m['tool_calls'] %}{{ '[' + c['function']['name'] + ' ' + "
       "c['function']['arguments'] + ']' }}{% endfor %}{% else %}{{ '' + m['content'] }}{% endif %}",
       ""},
      {"reads arguments as JSON", "{{ m.content or '' }}",
       "{% for c in m.tool_calls %}[{{ c.function.name }} {{ (c.function.arguments | from_json) | tojson }}]{% endfor "
       "%}"},
      {"joins arguments", "{{ m.content }}",
       "{% for c in m.tool_calls %}{{ '[' + c.function.name + ' ' + c.function.arguments + ']' }}{% endfor %}"},
      {"asks for the type of arguments", "{{ m.content or '' }}",
       "{% for c in m.tool_calls %}[{{ c.function.name }} {% if c.function.arguments is string %}"
       "{{ c.function.arguments }}{% else %}{{ c.function.arguments | tojson }}{% endif %}]{% endfor %}"},
      {"takes mappings only", "{{ m.content or '' }}",
       "{% for c in m.tool_calls %}[{{ c.function.name }}{% if c.function.arguments is mapping %} "
       "{{ c.function.arguments | tojson }}{% endif %}]{% endfor %}"},
  };
}

std::shared_ptr<const ChatTemplate> made(const Construction& construction) {
  return ChatTemplate::from_source(fmt::format(kFrame, construction.content + construction.calls)).value();
}

std::string render(const ChatTemplate& chat_template, const std::string& messages, bool continues = false) {
  ChatInput input;
  input.messages_json = messages;
  input.continue_final_message = continues;
  const auto rendered = chat_template.render(input);
  return rendered.has_error() ? "error: " + rendered.error().message : *rendered;
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

std::string calling(std::string_view content, std::string_view arguments) {
  return fmt::format(R"({{"role":"assistant"{},"tool_calls":[{{"id":"call12345","type":"function",)"
                     R"("function":{{"name":"look"{}}}}}]}})",
                     content, arguments);
}

constexpr std::array kContents = {"", R"(,"content":null)", R"(,"content":"")", R"(,"content":[])"};
constexpr const char* kUser = R"({"role":"user","content":"hi"})";
constexpr const char* kResult = R"({"role":"tool","tool_call_id":"call12345","content":"seen"})";

}  // namespace

TEST_CASE("Every template renders calls and messages without content") {
  for (const Construction& construction : constructions()) {
    const auto chat_template = made(construction);
    for (const char* content : kContents) {
      const std::string call = calling(content, R"(,"arguments":"{\"at\": \"it\"}")");
      const std::string empty = fmt::format(R"({{"role":"assistant"{}}})", content);
      const std::string no_result = fmt::format(R"({{"role":"tool","tool_call_id":"call12345"{}}})", content);
      CAPTURE(construction.name, content);
      const std::array conversations = {
          fmt::format("[{},{}]", kUser, call),
          fmt::format("[{},{},{}]", kUser, call, kResult),
          fmt::format("[{},{},{},{},{}]", kUser, call, kResult, empty, kUser),
          fmt::format("[{},{},{}]", kUser, call, no_result),
      };
      for (const std::string& conversation : conversations) {
        const std::string text = render(*chat_template, conversation);
        CAPTURE(text);
        CHECK_FALSE(text.starts_with("error"));
        CHECK_FALSE(has(text, "None"));
        CHECK(has(text, "[look"));
        CHECK(has(text, "it"));
      }
      // One result for all that stand for nothing.
      CHECK(render(*chat_template, conversations[1]) ==
            render(*chat_template, fmt::format("[{},{},{}]", kUser,
                                               calling(R"(,"content":"")", R"(,"arguments":{"at":"it"})"), kResult)));
    }
  }
}

TEST_CASE("Content stays as it was sent where the template renders that") {
  const auto chat_template = ChatTemplate::from_source(
                                 "{% for m in messages %}{{ 'absent' if m.content is not defined else 'null' if "
                                 "m.content is none else m.content }}|"
                                 "{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}{% endfor %}")
                                 .value();
  const std::array shown = {"absent", "null", "", ""};
  for (size_t i = 0; i < kContents.size(); ++i) {
    CHECK(render(*chat_template, fmt::format("[{}]", calling(kContents[i], ""))) == shown[i] + std::string("|look"));
  }
  // A place that no probe has: the template fails there only.
  const auto late = ChatTemplate::from_source(
                        "{% for m in messages %}{% if loop.index > 20 %}{{ m.content.split('x')[0] }}{% else %}"
                        "{{ 'null' if m.content is none else m.content }}{% endif %}{% endfor %}")
                        .value();
  std::string messages = R"([{"role":"assistant","content":null})";
  CHECK(render(*late, messages + "]") == "null");
  for (int i = 0; i < 30; ++i) messages += R"(,{"role":"assistant","content":null})";
  CHECK(render(*late, messages + "]") == "");
}

TEST_CASE("Arguments of any shape come back to the model") {
  struct Sent {
    const char* json;     ///< the member of the call
    const char* looped;   ///< what a template shows that takes objects only
    const char* written;  ///< what a template shows that writes JSON
  };
  const std::array cases = {
      Sent{R"("{\"q\": \"rain\", \"n\": 2}")", " q=rain n=2", R"({"q": "rain", "n": 2})"},
      Sent{R"({"q":"rain"})", " q=rain", R"({"q": "rain"})"},
      Sent{R"("\"{\\\"q\\\": \\\"rain\\\"}\"")", " q=rain", R"({"q": "rain"})"},
      Sent{"null", "", "{}"},
      Sent{"[]", "", "{}"},
      Sent{R"("")", "", "{}"},
      Sent{R"("null")", "", "{}"},
      Sent{R"("[]")", "", "{}"},
      Sent{R"("  ")", "", "{}"},
      Sent{R"("{\"q\"")", " arguments={\"q\"", R"("{\"q\"")"},
      Sent{R"("{\"q\": \"ra")", " q=ra", R"("{\"q\": \"ra")"},
      Sent{R"("{\"q\": \"rain\", \"n\": 2")", " q=rain", R"("{\"q\": \"rain\", \"n\": 2")"},
      Sent{R"("rain")", " arguments=rain", R"("rain")"},
      Sent{"[1]", " arguments=[1]", R"("[1]")"},
      Sent{"7", " arguments=7", R"("7")"},
  };
  const auto looping = ChatTemplate::from_source(fmt::format(kFrame, kLoopedCalls)).value();
  const auto writing = ChatTemplate::from_source(fmt::format(kFrame, kCalls)).value();
  for (const Sent& sent : cases) {
    CAPTURE(sent.json);
    const std::string messages = fmt::format("[{}]", calling("", std::string(R"(,"arguments":)") + sent.json));
    CHECK(render(*looping, messages) == fmt::format("<assistant>[look{}]</>", sent.looped));
    CHECK(render(*writing, messages) == fmt::format("<assistant>[look {}]</>", sent.written));
    for (const Construction& construction : constructions()) {
      CAPTURE(construction.name);
      const std::string text =
          render(*made(construction), fmt::format("[{},{}]", kUser, messages.substr(1, messages.size() - 2)));
      CAPTURE(text);
      CHECK(has(text, "[look"));
      CHECK(has(text, "ra") == has(sent.json, "ra"));
    }
  }
}

TEST_CASE("A template that joins arguments gets the text that was sent") {
  const auto chat_template =
      ChatTemplate::from_source(
          "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.name + c.function.arguments }}{% endfor %}"
          "{% endfor %}")
          .value();
  CHECK(render(*chat_template, fmt::format("[{}]", calling("", R"(,"arguments":"{ \"a\":1.50}")"))) ==
        "look{ \"a\":1.50}");
  CHECK(render(*chat_template, fmt::format("[{}]", calling("", R"(,"arguments":{"a":1})"))) == "look{\"a\": 1}");
  CHECK(render(*chat_template, fmt::format("[{}]", calling("", ""))) == "look{}");
  CHECK(render(*chat_template, fmt::format("[{}]", calling("", R"(,"arguments":"{\"a")"))) == "look{\"a");
}

TEST_CASE("continue_final_message is the chat up to the message end") {
  const std::array contents = {"e",           "",          "|",
                               "assistant",   "</>",       "hi",
                               "Sure, ",      " Sure",     "a\\n\\n",
                               " ",           "\\n",       "<",
                               "aa",          "a a ",      "\\t\\n ",
                               "{{ x }}",     "ü",         "9031752684091537",
                               "None",        "</think>x", "<think>a</think>b",
                               "x </think> ", "0",         "role\\u000b"};
  for (const Construction& construction : constructions()) {
    const auto chat_template = made(construction);
    for (const char* content : contents) {
      const std::string last = fmt::format(R"({{"role":"assistant","content":"{}"}})", content);
      const std::string messages = fmt::format("[{},{},{},{}]", kUser, last, kUser, last);
      CAPTURE(construction.name, content);
      const std::string whole = render(*chat_template, messages);
      const std::string begun = render(*chat_template, messages, true);
      // The template ends each message so.
      const std::string end = std::string_view(construction.name) == "joins" ? "\n</>" : "</>";
      CHECK(begun + end == whole);
    }
  }
}

TEST_CASE("A template that loops over parts gets a text as one") {
  const auto chat_template =
      ChatTemplate::from_source(
          fmt::format(
              kFrame,
              "{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% else %}?{% endif %}{% endfor %}"))
          .value();
  const std::string messages = fmt::format(R"([{},{{"role":"assistant","content":"Sure, "}}])", kUser);
  CHECK(render(*chat_template, messages) == "<user>hi</><assistant>Sure, </>");
  CHECK(render(*chat_template, messages, true) == "<user>hi</><assistant>Sure, ");
  CHECK(render(*chat_template, fmt::format(R"([{},{{"role":"assistant","content":null}}])", kUser)) ==
        "<user>hi</><assistant></>");
}

TEST_CASE("JSON that ends too early is closed") {
  const auto closed = [](std::string_view text) { return complete_partial_json(text).value_or("none"); };
  CHECK(closed("{") == "{}");
  CHECK(closed(R"({"a")") == "{}");
  CHECK(closed(R"({"a": )") == "{}");
  CHECK(closed(R"({"a": tr)") == "{}");
  CHECK(closed(R"({"a": "x)") == R"({"a": "x"})");
  CHECK(closed(R"({"a": "x\)") == R"({"a": "x"})");
  CHECK(closed(R"({"a": 1, "b": [1, {"c": "}]", "d)") == R"({"a": 1, "b": [1, {"c": "}]"}]})");
  CHECK(closed(R"({"a": ["x", "y)") == R"({"a": ["x", "y"]})");
  CHECK(closed(R"({"a": {"b": 1}, "c)") == R"({"a": {"b": 1}})");
  CHECK(closed(R"({"a": 1})") == "none");
  CHECK(closed(R"({"a": 1} x)") == "none");
  CHECK(closed(R"({]})") == "none");
  CHECK(closed("[1") == "none");
  CHECK(closed("") == "none");
  const std::string deep = "{\"a\":" + std::string(1 << 20, '[');
  CHECK(closed(deep).size() == 2);
}

TEST_CASE("Results of calls go where the template reads them") {
  constexpr std::string_view kMessages =
      R"([{"role":"user","content":"hi"},{"role":"assistant","content":"","tool_calls":[)"
      R"({"id":"a","function":{"name":"f","arguments":{}}},{"id":"b","function":{"name":"g","arguments":{}}}]},)"
      R"({"role":"tool","tool_call_id":"b","content":"{\"x\": 1}"},{"role":"tool","tool_call_id":"?","content":"two"},)"
      R"({"role":"assistant","content":"done"}])";
  const auto rendered = [&](std::string_view responses) {
    const std::string source = fmt::format(kFrame, fmt::format("{}{}{{{{ m.content }}}}", kCalls, responses));
    ChatInput input;
    input.messages_json = kMessages;
    return ChatTemplate::from_source(source).value()->render(input).value();
  };
  CHECK(rendered("{% for r in m.tool_responses %}({{ r.name }} {{ r.response | tojson }}){% endfor %}") ==
        "<user>hi</><assistant>[f {}][g {}](g {\"x\": 1})(g \"two\")</><assistant>done</>");
  CHECK(rendered("") == "<user>hi</><assistant>[f {}][g {}]</><tool>{\"x\": 1}</><tool>two</><assistant>done</>");
}
