#include <catch2/catch.hpp>

#include "base/json_value.h"
#include "base/text_file.h"
#include "support/paths.h"
#include "text/chat_template/chat_template.h"

using namespace millrace;
using namespace millrace::text;

namespace {

std::string shown(std::string_view source, std::string_view tools) {
  ChatInput input;
  input.messages_json = "[]";
  input.tools_json = tools;
  return ChatTemplate::from_source(source).value()->render(input).value();
}

constexpr std::string_view kSource = "{% if tools_ts_str is defined %}{{ tools_ts_str }}{% else %}JSON{% endif %}";

}  // namespace

TEST_CASE("Tools in TypeScript are those of Kimi") {
  const std::string text = read_text_file(test::source_dir() / "tests/text/kimi_tools.json").value();
  const JsonDocument document = JsonDocument::parse(text).value();
  JsonArray cases;
  REQUIRE(document.root().get(cases));
  REQUIRE(cases.size() == 60);
  for (const JsonValue each : cases) {
    std::string_view wanted = "JSON";  // where Kimi's tokenizer fails
    (void)each["typescript"].get(wanted);
    const std::string tools = to_json(each["tools"]);
    CAPTURE(tools);
    CHECK(shown(kSource, tools) == wanted);
  }
}

TEST_CASE("Only a template that names it gets TypeScript") {
  constexpr std::string_view kTools = R"([{"type":"function","function":{"name":"f"}}])";
  CHECK(shown(kSource, "") == "JSON");
  CHECK(shown("{{ tools | tojson }}", kTools) == R"([{"type": "function", "function": {"name": "f"}}])");
  // A request may bring its own.
  ChatInput input;
  input.messages_json = "[]";
  input.tools_json = kTools;
  input.kwargs_json = R"({"tools_ts_str":"own"})";
  CHECK(ChatTemplate::from_source(kSource).value()->render(input).value() == "own");
}
