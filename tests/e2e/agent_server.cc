#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/json_value.h"
#include "base/log.h"
#include "server/fake_engine.h"
#include "server/server.h"
#include "server/test_server.h"

// A program that serves scripted outputs to an agent under test, until its standard input ends. The environment names
// the script, an array of {"after": TEXT, "write": TEXT}. The last entry whose "after" occurs in the prompt is the
// output.

using namespace millrace;
using namespace millrace::test;

namespace {

constexpr const char* kAgentTemplate = R"({% if tools %}<tools> <tool_call>
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}</tools>
{% endif %}{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content }}{% for c in m.tool_calls %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}
{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %})";

struct Entry {
  std::string after;
  std::string write;
};

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) FAIL(name << " is not set");
  return value;
}

std::vector<Entry> read_script(const std::string& path) {
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const auto document = JsonDocument::parse(text);
  REQUIRE(document.has_value());
  JsonArray items;
  REQUIRE(document->root().get(items));
  std::vector<Entry> script;
  for (const JsonValue item : items) {
    std::string_view after;
    std::string_view write;
    REQUIRE(item["after"].get(after));
    REQUIRE(item["write"].get(write));
    script.push_back({std::string(after), std::string(write)});
  }
  return script;
}

}  // namespace

TEST_CASE("Serve an agent until the input ends") {
  const std::vector<Entry> script = read_script(variable("MILLRACE_AGENT_SCRIPT"));
  const std::filesystem::path prompts = variable("MILLRACE_AGENT_PROMPTS");
  FakeEngine engine;
  engine.info.context_length = 1 << 20;
  std::string last_prompt;
  int count = 0;
  engine.on_submit = [&](const sched::GenerateRequest& request) -> Result<ScriptedReply> {
    const std::string prompt(request.prompt.begin(), request.prompt.end());
    std::ofstream(prompts / fmt::format("{}.txt", count++)) << prompt;
    const auto found = std::find_if(script.rbegin(), script.rend(), [&prompt](const Entry& entry) {
      return prompt.find(entry.after) != std::string::npos;
    });
    ScriptedReply reply{.text = found == script.rend() ? std::string() : found->write, .tokens_per_event = 7};
    const auto shared = std::ranges::mismatch(prompt, last_prompt);
    reply.cached_tokens = static_cast<uint32_t>(shared.in1 - prompt.begin());
    last_prompt = prompt;
    return reply;
  };
  server::Service service = test_service(engine);
  auto chat_template = text::ChatTemplate::from_source(kAgentTemplate);
  REQUIRE(chat_template.has_value());
  service.chat_template = *chat_template;
  server::ServerOptions options;
  options.http.port = static_cast<uint16_t>(std::stoi(variable("MILLRACE_AGENT_PORT")));
  options.served_model_name = "scripted";
  server::Server server(options, service);
  const auto port = server.start();
  REQUIRE(port.has_value());
  fmt::print("listening on http://127.0.0.1:{}\n", *port);
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  server.stop(std::chrono::milliseconds(0));
}
