#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/json_value.h"
#include "fuzz/targets.h"
#include "server/openai/custom_input.h"
#include "server/responses/request.h"
#include "server/responses/store.h"

namespace millrace::fuzz {
namespace {

using namespace server;
using namespace server::responses;

constexpr openai::RequestLimits kLimits{.vocab_size = 1000, .max_choices = 64};

/// Returns a store with the response that the seeds continue.
const ResponseStore& store() {
  static const auto* const stored = [] {
    auto* made = new ResponseStore(1 << 20);
    made->put({.id = "resp_1",
               .object = "{}",
               .input = {{"msg_1_i0", R"({"type":"message","id":"msg_1_i0","role":"user","content":"x"})"}},
               .output = {{"fc_1_0", R"({"type":"function_call","call_id":"c","name":"f","arguments":"{}"})"}},
               .events = {}});
    return made;
  }();
  return *stored;
}

bool is_object(const std::string& text) {
  const auto document = JsonDocument::parse(text);
  return document.has_value() && document->root().is_object();
}

void check_request(const ResponsesRequest& request) {
  const openai::Conversation& conversation = request.conversation;
  CHECK(request.n == 1 && request.max_tokens != 0u);
  CHECK(!conversation.messages.empty());
  for (const openai::ChatMessage& message : conversation.messages) {
    CHECK(message.role == "system" || message.role == "user" || message.role == "assistant" || message.role == "tool");
    CHECK(message.tool_calls.empty() || message.role == "assistant");
  }
  CHECK(!conversation.forces_call() || !conversation.tools.empty());
  for (const openai::Tool& tool : conversation.tools) CHECK(request.origins.contains(tool.name));
  CHECK(std::ranges::all_of(request.input, is_object));
  CHECK(is_object("{" + request.echo + "}"));
}

}  // namespace

void responses_request(std::string_view input) {
  const std::string body(input);
  const auto parsed = parse_responses_request(body, kLimits, store(), "id");
  if (parsed.has_value()) {
    check_request(*parsed);
  } else {
    CHECK(parsed.error().status == 400 || parsed.error().status == 404);
    CHECK(!parsed.error().message.empty());
  }
  // The arguments of a custom call are any bytes. Their pieces give what the whole gives.
  openai::CustomInput whole;
  openai::CustomInput pieces;
  std::string expected = whole.push(input);
  expected += whole.finish();
  std::string got;
  for (const char c : input) got += pieces.push({&c, 1});
  got += pieces.finish();
  CHECK(got == expected);
}

}  // namespace millrace::fuzz
