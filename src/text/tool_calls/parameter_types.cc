#include "text/tool_calls/parameter_types.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/json.h"
#include "text/tool_calls/partial_match.h"

namespace millrace::text {
namespace {

/// Limits the nesting of schemas that are read, and the references that are followed.
constexpr int kMaxSchemaDepth = 8;

void merge(ValueTypes& types, const ValueTypes& other) {
  types.text |= other.text;
  types.null |= other.null;
  types.boolean |= other.boolean;
  types.integer |= other.integer;
  types.number |= other.number;
  types.array |= other.array;
  types.object |= other.object;
}

void intersect(ValueTypes& types, const ValueTypes& other) {
  types.text &= other.text;
  types.null &= other.null;
  types.boolean &= other.boolean;
  types.integer &= other.integer;
  types.number &= other.number;
  types.array &= other.array;
  types.object &= other.object;
}

ValueTypes types_of_value(JsonValue value) {
  return {.text = value.is_string(),
          .null = value.is_null(),
          .boolean = value.is_bool(),
          .integer = value.is_integer(),
          .number = value.is_number() && !value.is_integer(),
          .array = value.is_array(),
          .object = value.is_object()};
}

ValueTypes types_of_name(std::string_view name) {
  return {.text = name == "string",
          .null = name == "null",
          .boolean = name == "boolean",
          .integer = name == "integer",
          .number = name == "number",
          .array = name == "array",
          .object = name == "object"};
}

/// Returns the schema that "$ref" names, or kMissing.
JsonValue referred(JsonValue schema, JsonValue root) {
  std::string_view word;
  const bool is_within = schema["$ref"].get(word) && word.starts_with('#');
  return is_within ? root.at_pointer(word.substr(1)) : JsonValue();
}

/// Returns the types of the values that a schema lists and that its "type" allows.
ValueTypes types_of_list(JsonValue schema, const std::vector<JsonValue>& values) {
  const bool has_type = !schema["type"].is_missing();
  ValueTypes allowed;
  std::string_view word;
  if (schema["type"].get(word)) allowed = types_of_name(word);
  JsonArray names;
  if (schema["type"].get(names)) {
    for (const JsonValue name : names) {
      if (name.get(word)) merge(allowed, types_of_name(word));
    }
  }
  allowed.integer |= allowed.number;
  allowed.null |= schema["nullable"].is_true();
  ValueTypes types;
  for (const JsonValue value : values) {
    ValueTypes one = types_of_value(value);
    if (has_type) intersect(one, allowed);
    merge(types, one);
  }
  types.null |= schema["nullable"].is_true();
  return types;
}

ValueTypes read_schema(JsonValue schema, JsonValue root, int depth) {
  ValueTypes types;
  JsonObject object;
  if (depth > kMaxSchemaDepth || !schema.get(object)) return types;
  JsonArray listed;
  if (schema["enum"].get(listed)) return types_of_list(schema, {listed.begin(), listed.end()});
  if (!schema["const"].is_missing()) return types_of_list(schema, {schema["const"]});
  for (const auto& [key, value] : object) {
    std::string_view word;
    if (key == "type" && value.get(word)) merge(types, types_of_name(word));
    if (key == "nullable") types.null |= value.is_true();
    if (key == "$ref") merge(types, read_schema(referred(schema, root), root, depth + 1));
    JsonArray array;
    if (!value.get(array)) continue;
    for (const JsonValue item : array) {
      if (key == "type" && item.get(word)) merge(types, types_of_name(word));
      if (key == "anyOf" || key == "oneOf" || key == "allOf") merge(types, read_schema(item, root, depth + 1));
    }
  }
  return types;
}

std::optional<std::string> read_word(std::string_view value, const ValueTypes& types) {
  const auto is = [value](std::string_view lower, std::string_view python) {
    return value == lower || value == python;
  };
  if ((types.null || types.is_any()) && is("null", "None")) return "null";
  if (!types.boolean && !types.is_any()) return std::nullopt;
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

bool allows(const ValueTypes& types, JsonValue value) {
  // Where no string is allowed, any other JSON is closer to what was meant.
  if (!types.text) return true;
  return (types.number && value.is_number()) || (types.integer && value.is_integer()) ||
         (types.array && value.is_array()) || (types.object && value.is_object());
}

}  // namespace

ValueTypes types_of_schema(JsonValue schema, JsonValue root) {
  return read_schema(schema, root, 0);
}

std::string value_to_json(std::string_view value, const ValueTypes& types) {
  const std::string_view trimmed = without_space(value);
  if (types != kTextOnly) {
    if (auto word = read_word(trimmed, types)) return *std::move(word);
    const bool is_whole = types.integer && !types.number && is_json_number(trimmed);
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
  add_part(tool, document->root(), document->root(), 0);
}

void ParameterTypes::add_part(const std::string& tool, JsonValue schema, JsonValue root, int depth) {
  if (depth > kMaxSchemaDepth) return;
  const JsonValue additional = schema["additionalProperties"];
  if (additional.is_object()) add_others(tool, types_of_schema(additional, root));
  JsonObject properties;
  if (schema["patternProperties"].get(properties)) {
    for (const auto& [pattern, property] : properties) add_others(tool, types_of_schema(property, root));
  }
  if (schema["properties"].get(properties)) {
    for (const auto& [key, property] : properties) {
      const auto [entry, is_new] = types_.try_emplace({tool, std::string(key)});
      const ValueTypes types = types_of_schema(property, root);
      // What one part leaves free another may fix.
      if (is_new || entry->second.is_any()) {
        entry->second = types;
      } else {
        merge(entry->second, types);
      }
    }
  }
  if (const JsonValue target = referred(schema, root); !target.is_missing()) add_part(tool, target, root, depth + 1);
  for (const char* branch : {"then", "else"}) add_part(tool, schema[branch], root, depth + 1);
  for (const char* list : {"allOf", "anyOf", "oneOf"}) {
    JsonArray parts;
    if (!schema[list].get(parts)) continue;
    for (const JsonValue part : parts) add_part(tool, part, root, depth + 1);
  }
}

/// Adds types of parameters without a name. Those are texts where schemas differ, since no pattern is matched here.
void ParameterTypes::add_others(const std::string& tool, const ValueTypes& types) {
  const auto [entry, is_new] = additional_.try_emplace(tool, types);
  if (is_new || types.is_any() || entry->second == types) return;
  entry->second = entry->second.is_any() ? types : kTextOnly;
}

ValueTypes ParameterTypes::of(const std::string& tool, const std::string& parameter) const {
  const auto found = types_.find({tool, parameter});
  if (found != types_.end()) return found->second;
  return of_others(tool);
}

ValueTypes ParameterTypes::of_others(const std::string& tool) const {
  const auto additional = additional_.find(tool);
  return additional == additional_.end() ? kTextOnly : additional->second;
}

}  // namespace millrace::text
