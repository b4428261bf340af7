#include "server/openai/thinking.h"

#include <array>

namespace millrace::server::openai {
namespace {

constexpr std::array<std::string_view, 7> kEfforts = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
constexpr std::array<std::string_view, 4> kThinkingTypes = {"enabled", "disabled", "adaptive", "auto"};

/// Templates without a switch know the least effort.
void set_thinking(bool thinks, Conversation& conversation) {
  conversation.enable_thinking = thinks;
  if (!thinks && conversation.reasoning_effort.empty()) conversation.reasoning_effort = kEfforts.front();
}

/// Reads a bound on the tokens of reasoning, which models without tags of reasoning ignore.
FieldError read_budget(std::string_view name, Json value, Conversation& conversation) {
  if (is_absent(value)) return std::nullopt;
  int64_t tokens = 0;
  if (FieldError field_error = read_integer(name, value, 0, kInt32Max, tokens)) return field_error;
  conversation.thinking_budget =
      ThinkingBudget{.tokens = static_cast<uint32_t>(tokens), .field = name, .is_wish = true};
  return std::nullopt;
}

void describe_budget(std::string_view name, SchemaWriter& schema) {
  schema.json().key(name).begin_object();
  schema.integer(0, kInt32Max);
  schema.json().end_object();
}

}  // namespace

FieldError read_effort(std::string_view name, Json value, const RequestLimits&, Conversation& conversation) {
  std::string_view word;
  FieldError field_error = read_word(name, value, kEfforts, word);
  conversation.reasoning_effort = word;
  return field_error;
}

void describe_effort(SchemaWriter& schema) {
  schema.words(kEfforts);
}

FieldError read_thinking(std::string_view name, Json value, const RequestLimits&, Conversation& conversation) {
  JsonObject object;
  if (!value.get(object)) return wrong_type(name, value, "an object");
  std::string_view type;
  if (FieldError field_error = read_word("thinking.type", object["type"], kThinkingTypes, type)) return field_error;
  set_thinking(type != "disabled", conversation);
  return read_budget("thinking.budget_tokens", object["budget_tokens"], conversation);
}

void describe_thinking(SchemaWriter& schema) {
  schema.type("object");
  schema.json().key("required").raw(R"(["type"])").key("properties").begin_object();
  schema.json().key("type").begin_object();
  const bool nullable = schema.nullable();
  schema.set_nullable(false);
  schema.words(kThinkingTypes);
  schema.set_nullable(nullable);
  schema.json().end_object();
  describe_budget("budget_tokens", schema);
  schema.json().end_object();
}

FieldError read_reasoning(std::string_view name, Json value, const RequestLimits& limits, Conversation& conversation) {
  JsonObject object;
  if (!value.get(object)) return wrong_type(name, value, "an object");
  if (const Json effort = object["effort"]; !is_absent(effort)) {
    if (FieldError field_error = read_effort("reasoning.effort", effort, limits, conversation)) return field_error;
  }
  if (const Json enabled = object["enabled"]; !is_absent(enabled)) {
    bool thinks = false;
    if (FieldError field_error = read_bool("reasoning.enabled", enabled, thinks)) return field_error;
    set_thinking(thinks, conversation);
  }
  if (const Json exclude = object["exclude"]; !is_absent(exclude)) {
    if (FieldError field_error = read_bool("reasoning.exclude", exclude, conversation.hides_reasoning))
      return field_error;
  }
  return read_budget("reasoning.max_tokens", object["max_tokens"], conversation);
}

void describe_reasoning(SchemaWriter& schema) {
  schema.type("object");
  JsonWriter& json = schema.json();
  json.key("properties").begin_object().key("effort").begin_object();
  describe_effort(schema);
  json.end_object();
  for (const char* flag : {"enabled", "exclude"}) {
    json.key(flag).begin_object();
    schema.type("boolean");
    json.end_object();
  }
  describe_budget("max_tokens", schema);
  json.end_object();
}

}  // namespace millrace::server::openai
