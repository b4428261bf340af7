#include "text/tool_calls/xml_call_parser.h"

#include <optional>
#include <utility>

#include "base/json.h"
#include "base/json_value.h"
#include "text/tool_calls/partial_match.h"
#include "text/tool_calls/tool_formats.h"

namespace millrace::text {
namespace {

using Json = JsonValue;
using Type = ParameterTypes::Type;

/// Limits the size of a name or a key.
constexpr size_t kMaxNameBytes = 1024;
/// Schemas within a schema.
constexpr int kMaxSchemaDepth = 8;

/// Whether a value may be a text, or null.
struct AllowedTypes {
  bool allows_text = false;
  bool allows_null = false;
  void add(const AllowedTypes& other) {
    allows_text |= other.allows_text;
    allows_null |= other.allows_null;
  }
};

AllowedTypes types_of_value(Json value) {
  return {value.is_string(), value.is_null()};
}

AllowedTypes types_of_name(std::string_view type) {
  return {type == "string", type == "null"};
}

AllowedTypes read_schema(Json schema, int depth) {
  AllowedTypes allowed;
  JsonObject object;
  if (depth > kMaxSchemaDepth || !schema.get(object)) return allowed;
  for (const auto& [key, value] : object) {
    std::string_view type;
    if (key == "type" && value.get(type)) allowed.add(types_of_name(type));
    if (key == "const") allowed.add(types_of_value(value));
    if (bool flag = false; key == "nullable" && value.get(flag)) allowed.allows_null |= flag;
    JsonArray array;
    if (!value.get(array)) continue;
    for (const Json item : array) {
      if (key == "type" && item.get(type)) allowed.add(types_of_name(type));
      if (key == "enum") allowed.add(types_of_value(item));
      if (key == "anyOf" || key == "oneOf" || key == "allOf") allowed.add(read_schema(item, depth + 1));
    }
  }
  return allowed;
}

/// One line's end is the form's, not the value's.
std::string_view without_frame(std::string_view value) {
  if (value.starts_with('\n')) value.remove_prefix(1);
  if (value.ends_with('\n')) value.remove_suffix(1);
  return value;
}

/// The value in JSON; nothing if it is none. Some models write Python's words.
std::optional<std::string> read_json(std::string_view value) {
  if (value == "True") return "true";
  if (value == "False") return "false";
  if (value == "None") return "null";
  const auto document = JsonDocument::parse(value);
  if (document.has_error()) return std::nullopt;
  return to_json(document->root());
}

std::string to_json(std::string_view value, Type type) {
  if (type == Type::kTextOrNull && without_space(value) == "null") return "null";
  if (type == Type::kJson) {
    if (auto json = read_json(without_space(value))) return *std::move(json);
  }
  std::string text;
  append_json_string(text, value);
  return text;
}

}  // namespace

void ParameterTypes::add(const std::string& tool, std::string_view schema) {
  const auto document = JsonDocument::parse(schema);
  JsonObject members;
  JsonObject properties;
  if (document.has_error() || !document->root().get(members) || !members["properties"].get(properties)) return;
  for (const auto& [key, property] : properties) {
    const AllowedTypes allowed = read_schema(property, 0);
    if (allowed.allows_text && !allowed.allows_null) continue;
    types_.insert_or_assign({tool, std::string(key)}, allowed.allows_text ? Type::kTextOrNull : Type::kJson);
  }
}

Type ParameterTypes::of(const std::string& tool, const std::string& parameter) const {
  const auto found = types_.find({tool, parameter});
  return found == types_.end() ? Type::kText : found->second;
}

XmlCallParser::State XmlCallParser::feed(char c) {
  switch (phase_) {
    case Phase::kStart:
    case Phase::kBetween: return feed_word(c);
    case Phase::kName:
    case Phase::kKey: break;
    case Phase::kValue:
      pending_ += c;
      if (pending_.ends_with(kParameterEnd)) end_value();
      return State::kOpen;
    case Phase::kEnd: return State::kBad;
  }
  if (c == '\n' || pending_.size() > kMaxNameBytes) {
    if (phase_ == Phase::kKey) pending_.insert(0, kParameterOpen);
    return end(State::kBad);
  }
  if (c != '>') {
    pending_ += c;
    return State::kOpen;
  }
  const bool is_name = phase_ == Phase::kName;
  if (is_name && without_space(pending_).empty()) return end(State::kBad);
  (is_name ? name_ : key_) = without_space(pending_);
  pending_.clear();
  phase_ = is_name ? Phase::kBetween : Phase::kValue;
  return State::kOpen;
}

/// Towards the next tag.
XmlCallParser::State XmlCallParser::feed_word(char c) {
  if (pending_.empty() && kAsciiSpace.find(c) != std::string_view::npos) return State::kOpen;
  const std::string word = pending_ + c;
  const std::string_view opens = phase_ == Phase::kStart ? kFunctionOpen : kParameterOpen;
  const bool may_close = phase_ == Phase::kBetween && kFunctionEnd.starts_with(word);
  if (!opens.starts_with(word) && !may_close) return end(State::kBad);
  pending_ = word;
  if (may_close && word == kFunctionEnd) return end(State::kDone);
  if (word != opens) return State::kOpen;
  pending_.clear();
  phase_ = phase_ == Phase::kStart ? Phase::kName : Phase::kKey;
  return State::kOpen;
}

void XmlCallParser::end_value() {
  const std::string_view value =
      without_frame(std::string_view(pending_).substr(0, pending_.size() - kParameterEnd.size()));
  arguments_ += std::exchange(has_arguments_, true) ? ", " : "{";
  append_json_string(arguments_, key_);
  arguments_ += ": ";
  arguments_ += to_json(value, types_ == nullptr ? Type::kText : types_->of(name_, key_));
  pending_.clear();
  phase_ = Phase::kBetween;
}

/// What has come is an object, whatever follows.
XmlCallParser::State XmlCallParser::end(State state) {
  phase_ = Phase::kEnd;
  if (has_name()) arguments_ += has_arguments_ ? "}" : "{}";
  return state;
}

std::string XmlCallParser::take_arguments() {
  return std::exchange(arguments_, {});
}

}  // namespace millrace::text
