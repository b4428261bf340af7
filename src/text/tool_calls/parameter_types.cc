#include "text/tool_calls/parameter_types.h"

#include <initializer_list>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/json_value.h"
#include "text/tool_calls/partial_match.h"

namespace millrace::text {
namespace {

/// Limits the schemas that are read for one tool, so that no request takes long. Further ones say nothing. Long objects
/// and lists count as several.
constexpr size_t kMaxSchemas = 100'000;
constexpr size_t kItemsPerSchema = 32;
/// Limits the different references of one tool, since each is looked for among all definitions.
constexpr size_t kMaxReferences = 1000;

/// Returns the type of a value; nothing for a missing one. A number without fraction and exponent is an integer only.
ValueTypes types_of_value(JsonValue value) {
  switch (value.kind()) {
    case JsonKind::kMissing: return {};
    case JsonKind::kNull: return {ValueType::kNull};
    case JsonKind::kBool: return {ValueType::kBoolean};
    case JsonKind::kNumber: return {value.is_integer() ? ValueType::kInteger : ValueType::kNumber};
    case JsonKind::kString: return {ValueType::kString};
    case JsonKind::kArray: return {ValueType::kArray};
    case JsonKind::kObject: return {ValueType::kObject};
  }
  return {};
}

/// Returns the types that "type" names: one, or a list. Unknown names say nothing.
ValueTypes named_types(JsonValue type) {
  ValueTypes types;
  const auto add = [&types](JsonValue name) {
    std::string_view word;
    if (!name.get(word)) return;
    if (const auto named = parse_enum<ValueType>(word)) types.add(*named);
  };
  add(type);
  JsonArray names;
  if (type.get(names)) {
    for (const JsonValue name : names) add(name);
  }
  return types;
}

/// Returns the types of the values that a schema lists and that its "type" allows.
ValueTypes types_of_list(JsonValue schema, const std::vector<JsonValue>& values) {
  const bool has_type = !schema["type"].is_missing();
  ValueTypes allowed = named_types(schema["type"]);
  allowed.add(ValueType::kInteger, allowed.has(ValueType::kNumber));
  allowed.add(ValueType::kNull, schema["nullable"].is_true());
  ValueTypes types;
  for (const JsonValue value : values) {
    ValueTypes one = types_of_value(value);
    if (has_type) one &= allowed;
    types |= one;
  }
  types.add(ValueType::kNull, schema["nullable"].is_true());
  return types;
}

/// The schemas that describe the arguments of one tool. Lives while they are read.
class ToolSchema {
 public:
  explicit ToolSchema(JsonValue root) : root_(root) {}

  /// Returns `schema`, what it refers to, what it combines, and its `branches`, each once.
  std::vector<JsonValue> parts_of(JsonValue schema, std::initializer_list<const char*> branches = {}) {
    std::vector<JsonValue> parts;
    std::unordered_set<const void*> known;
    const auto add = [&](JsonValue part) {
      JsonObject members;
      if (!part.get(members) || count_ >= kMaxSchemas) return;
      count_ += 1 + members.size() / kItemsPerSchema;
      if (known.insert(part.identity()).second) parts.push_back(part);
    };
    add(schema);
    for (size_t i = 0; i < parts.size(); ++i) {
      const JsonValue part = parts[i];
      // A list of values says all.
      if (part["enum"].is_array() || !part["const"].is_missing()) continue;
      add(referred(part["$ref"]));
      for (const char* branch : branches) add(part[branch]);
      for (const char* list : {"allOf", "anyOf", "oneOf"}) {
        JsonArray combined;
        if (!part[list].get(combined)) continue;
        count_ += combined.size() / kItemsPerSchema;
        for (const JsonValue each : combined) add(each);
      }
    }
    return parts;
  }

  ValueTypes types_of(JsonValue schema) {
    ValueTypes types;
    for (const JsonValue part : parts_of(schema)) {
      const auto [own, is_new] = own_types_.try_emplace(part.identity());
      if (is_new) own->second = read_own_types(part);
      types |= own->second;
    }
    return types;
  }

 private:
  /// Returns the types that a schema names, or those of the values that it lists.
  static ValueTypes read_own_types(JsonValue schema) {
    JsonArray array;
    if (schema["enum"].get(array)) return types_of_list(schema, {array.begin(), array.end()});
    if (!schema["const"].is_missing()) return types_of_list(schema, {schema["const"]});
    ValueTypes types = named_types(schema["type"]);
    types.add(ValueType::kNull, schema["nullable"].is_true());
    return types;
  }

  /// Returns the schema that a "$ref" names, or kMissing.
  JsonValue referred(JsonValue reference) {
    std::string_view word;
    if (!reference.get(word) || !word.starts_with('#')) return {};
    const auto known = references_.find(word);
    if (known != references_.end()) return known->second;
    if (references_.size() == kMaxReferences) return {};
    return references_[word] = root_.at_pointer(word.substr(1));
  }

  JsonValue root_;
  std::unordered_map<std::string_view, JsonValue> references_;
  std::unordered_map<const void*, ValueTypes> own_types_;  // by the schema's identity
  size_t count_ = 0;                                       // of schemas that were read
};

std::optional<std::string> read_word(std::string_view value, ValueTypes types) {
  const auto is = [value](std::string_view lower, std::string_view python) {
    return value == lower || value == python;
  };
  if ((types.has(ValueType::kNull) || types.is_any()) && is("null", "None")) return "null";
  if (!types.has(ValueType::kBoolean) && !types.is_any()) return std::nullopt;
  if (is("true", "True")) return "true";
  if (is("false", "False")) return "false";
  return std::nullopt;
}

/// Returns the digits before a fraction of zeros.
std::string_view without_zero_fraction(std::string_view number) {
  const size_t point = number.find('.');
  if (point == std::string_view::npos) return number;
  return number.find_first_not_of('0', point + 1) == std::string_view::npos ? number.substr(0, point) : number;
}

bool allows(ValueTypes types, JsonValue value) {
  // Where no string is allowed, any other JSON is closer to what was meant.
  if (!types.has(ValueType::kString)) return true;
  return (types.has(ValueType::kNumber) && value.is_number()) ||
         (types.has(ValueType::kInteger) && value.is_integer()) || (types.has(ValueType::kArray) && value.is_array()) ||
         (types.has(ValueType::kObject) && value.is_object());
}

}  // namespace

std::string value_to_json(std::string_view value, ValueTypes types) {
  const std::string_view trimmed = without_space(value);
  if (types != kStringOnly) {
    if (auto word = read_word(trimmed, types)) return *std::move(word);
    const bool is_whole = types.has(ValueType::kInteger) && !types.has(ValueType::kNumber) && is_json_number(trimmed);
    const std::string_view text = is_whole ? without_zero_fraction(trimmed) : trimmed;
    const auto document = JsonDocument::parse(text);
    if (document.has_value() && allows(types, document->root())) return to_json(document->root());
  }
  std::string text;
  append_json_string(text, value);
  return text;
}

void ParameterTypes::add(const std::string& tool, std::string_view schema) {
  const auto document = JsonDocument::parse(schema);
  if (document.has_error()) return;
  ToolSchema tool_schema(document->root());
  for (const JsonValue part : tool_schema.parts_of(document->root(), {"then", "else"})) {
    const JsonValue additional = part["additionalProperties"];
    if (additional.is_object()) add_others(tool, tool_schema.types_of(additional));
    JsonObject properties;
    if (part["patternProperties"].get(properties)) {
      for (const auto& [pattern, property] : properties) add_others(tool, tool_schema.types_of(property));
    }
    if (!part["properties"].get(properties)) continue;
    for (const auto& [key, property] : properties) {
      types_[{tool, std::string(key)}] |= tool_schema.types_of(property);
    }
  }
}

/// Adds types of parameters without a name. Those are texts where schemas differ, since no pattern is matched here.
void ParameterTypes::add_others(const std::string& tool, ValueTypes types) {
  const auto [entry, is_new] = additional_.try_emplace(tool, types);
  if (is_new || types.is_any() || entry->second == types) return;
  entry->second = entry->second.is_any() ? types : kStringOnly;
}

ValueTypes ParameterTypes::of(const std::string& tool, const std::string& parameter) const {
  const auto found = types_.find({tool, parameter});
  if (found != types_.end()) return found->second;
  return of_others(tool);
}

ValueTypes ParameterTypes::of_others(const std::string& tool) const {
  const auto additional = additional_.find(tool);
  return additional == additional_.end() ? kStringOnly : additional->second;
}

}  // namespace millrace::text
