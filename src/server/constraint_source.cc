#include "server/constraint_source.h"

#include "base/json.h"
#include "base/json_value.h"

namespace millrace::server {
namespace {

using openai::ResponseFormat;

void write_format(JsonWriter& json, const ResponseFormat& format) {
  json.key("format").begin_object();
  json.member("kind", static_cast<int>(format.kind)).member("field", format.field).member("name", format.name);
  json.key("texts").begin_array();
  for (const std::string& text : format.texts) json.value(text);
  json.end_array().end_object();
}

void write_calls(JsonWriter& json, const ToolCallConstraint& calls) {
  json.key("calls").begin_object();
  json.member("format", static_cast<int>(calls.format)).member("must_call", calls.must_call);
  json.member("allow_parallel", calls.allow_parallel).key("tools").begin_array();
  for (const openai::Tool& tool : calls.tools) {
    json.begin_object().member("name", tool.name).member("parameters", tool.parameters);
    json.member("is_strict", tool.is_strict).member("path", tool.path);
    if (tool.input) {
      json.key("input").begin_object().member("syntax", static_cast<int>(tool.input->syntax));
      json.member("definition", tool.input->definition).end_object();
    }
    json.end_object();
  }
  json.end_array().end_object();
}

/// Reads the members of objects; a missing or unfit one makes ok() false for good.
class Reader {
 public:
  template <class E>
  void get(JsonValue value, E& out, uint64_t count) {
    uint64_t number = 0;
    ok_ = value.get(number) && number < count && ok_;
    if (ok_) out = static_cast<E>(number);
  }
  void get(JsonValue value, bool& out) { ok_ = value.get(out) && ok_; }
  void get(JsonValue value, std::string& out) {
    std::string_view text;
    ok_ = value.get(text) && ok_;
    out = text;
  }
  [[nodiscard]] JsonArray array(JsonValue value) {
    JsonArray items;
    ok_ = value.get(items) && ok_;
    return items;
  }
  [[nodiscard]] bool ok() const { return ok_; }

 private:
  bool ok_ = true;
};

ResponseFormat read_format(Reader& reader, JsonValue from) {
  ResponseFormat format;
  reader.get(from["kind"], format.kind, static_cast<uint64_t>(ResponseFormat::Kind::kChoice) + 1);
  reader.get(from["field"], format.field);
  reader.get(from["name"], format.name);
  for (const JsonValue text : reader.array(from["texts"])) reader.get(text, format.texts.emplace_back());
  return format;
}

ToolCallConstraint read_calls(Reader& reader, JsonValue from) {
  ToolCallConstraint calls;
  reader.get(from["format"], calls.format, text::kToolFormatCount);
  reader.get(from["must_call"], calls.must_call);
  reader.get(from["allow_parallel"], calls.allow_parallel);
  for (const JsonValue each : reader.array(from["tools"])) {
    openai::Tool& tool = calls.tools.emplace_back();
    reader.get(each["name"], tool.name);
    reader.get(each["parameters"], tool.parameters);
    reader.get(each["is_strict"], tool.is_strict);
    reader.get(each["path"], tool.path);
    if (const JsonValue input = each["input"]; input.is_object()) {
      openai::InputGrammar& grammar = tool.input.emplace();
      reader.get(input["syntax"], grammar.syntax, static_cast<uint64_t>(openai::InputGrammar::Syntax::kRegex) + 1);
      reader.get(input["definition"], grammar.definition);
    }
  }
  return calls;
}

}  // namespace

std::string encode_constraint(const OutputConstraint& constraint) {
  std::string source;
  JsonWriter json(source);
  json.begin_object().member("reasoning", static_cast<int>(constraint.reasoning));
  json.member("reasoning_format", text::row_of(constraint.reasoning_format).name);
  json.member("prefix", constraint.prefix);
  if (constraint.response_format) write_format(json, *constraint.response_format);
  if (constraint.calls) write_calls(json, *constraint.calls);
  json.end_object();
  return source;
}

Result<OutputConstraint> decode_constraint(std::string_view source) {
  const auto document = JsonDocument::parse(source);
  if (document.has_error()) return document.error();
  const JsonValue root = document->root();
  Reader reader;
  OutputConstraint constraint;
  std::string reasoning_format;
  reader.get(root["reasoning"], constraint.reasoning, static_cast<uint64_t>(ReasoningMode::kOpened) + 1);
  reader.get(root["reasoning_format"], reasoning_format);
  reader.get(root["prefix"], constraint.prefix);
  if (root["format"].is_object()) constraint.response_format = read_format(reader, root["format"]);
  if (root["calls"].is_object()) constraint.calls = read_calls(reader, root["calls"]);
  const auto format = text::parse_reasoning_format(reasoning_format);
  if (!reader.ok() || !format) return Error{ErrorCode::kData, "the source of a grammar is malformed"};
  constraint.reasoning_format = *format;
  return constraint;
}

}  // namespace millrace::server
