#include "grammar/json_schema_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/result.h"
#include "base/utf8.h"
#include "grammar/json_schema_keywords.h"
#include "grammar/whole_number.h"

namespace millrace::grammar {
namespace {

bool is_whole(JsonValue number) {
  const auto rounded = round_number(number.number_text(), false);
  return !rounded || !rounded->had_fraction;
}

bool is_of_type(JsonValue value, std::string_view type) {
  switch (value.kind()) {
    case JsonKind::kNull: return type == "null";
    case JsonKind::kBool: return type == "boolean";
    case JsonKind::kNumber: return type == "number" || (type == "integer" && is_whole(value));
    case JsonKind::kString: return type == "string";
    case JsonKind::kArray: return type == "array";
    case JsonKind::kObject: return type == "object";
    case JsonKind::kMissing: break;
  }
  return false;
}

double size_of(JsonValue value) {
  JsonArray array;
  if (value.get(array)) return static_cast<double>(array.size());
  std::string_view text;
  double length = 0;
  if (!value.get(text)) return length;
  for (; !text.empty(); ++length) text.remove_prefix(decode_utf8(text).length);
  return length;
}

bool is_listed(JsonValue value, JsonValue list) {
  JsonArray values;
  return !list.get(values) || std::ranges::any_of(values, [&](JsonValue each) { return are_equal(value, each); });
}

bool satisfies_bound(JsonValue value, JsonObject schema, const JsonMember& bound) {
  if (!value.is_number() || !bound.value.is_number()) return true;
  const bool is_lower = bound.key == "minimum" || bound.key == "exclusiveMinimum";
  const bool is_exclusive =
      bound.key.starts_with("exclusive") || schema[is_lower ? "exclusiveMinimum" : "exclusiveMaximum"].is_true();
  const auto order = compare_numbers(value, bound.value);
  if (order == 0) return !is_exclusive;
  return is_lower ? order > 0 : order < 0;
}

bool satisfies_size(JsonValue value, const JsonMember& bound) {
  const bool is_about = bound.key.ends_with("Items") ? value.is_array() : value.is_string();
  double wanted = 0;
  if (!is_about || !bound.value.get(wanted)) return true;
  return bound.key.starts_with("min") ? size_of(value) >= wanted : size_of(value) <= wanted;
}

bool has_members(JsonValue value, JsonValue names) {
  JsonArray array;
  if (!value.is_object() || !names.get(array)) return true;
  return std::ranges::all_of(array, [&](JsonValue name) {
    std::string_view text;
    return !name.get(text) || !value[text].is_missing();
  });
}

}  // namespace

std::partial_ordering compare_numbers(JsonValue left, JsonValue right) {
  const auto a = round_number(left.number_text(), false);
  const auto b = round_number(right.number_text(), false);
  if (a && b && !a->had_fraction && !b->had_fraction) return a->number <=> b->number;
  double x = 0;
  double y = 0;
  if (!left.get(x) || !right.get(y)) return std::partial_ordering::unordered;
  return x <=> y;
}

bool has_type(JsonValue value, JsonValue types) {
  std::string_view name;
  if (types.get(name)) return is_of_type(value, name);
  JsonArray names;
  if (!types.get(names)) return false;
  return std::ranges::any_of(names, [&](JsonValue item) { return item.get(name) && is_of_type(value, name); });
}

bool are_equal(JsonValue left, JsonValue right) {
  if (left.is_number() && right.is_number()) return compare_numbers(left, right) == 0;
  return to_json(left) == to_json(right);
}

bool satisfies(JsonValue value, JsonObject schema, const JsonMember& keyword) {
  const std::string_view key = keyword.key;
  if (!is_constraint(schema, keyword)) return true;
  if (key == "type") return has_type(value, keyword.value);
  if (key == "const") return are_equal(value, keyword.value);
  if (key == "enum") return is_listed(value, keyword.value);
  if (key == "minimum" || key == "maximum" || key == "exclusiveMinimum" || key == "exclusiveMaximum") {
    return satisfies_bound(value, schema, keyword);
  }
  if (key == "minLength" || key == "maxLength" || key == "minItems" || key == "maxItems") {
    return satisfies_size(value, keyword);
  }
  if (key == "required") return has_members(value, keyword.value);
  const bool is_about = (is_keyword_for(key, Constrained::kObject) && value.is_object()) ||
                        (is_keyword_for(key, Constrained::kArray) && value.is_array()) ||
                        (is_keyword_for(key, Constrained::kString) && value.is_string()) ||
                        is_keyword_for(key, Constrained::kAny);
  if (!is_about) return true;
  throw ErrorException(make_error(ErrorCode::kInvalidArgument, "'{}' beside '{}' is not supported", key,
                                  schema["const"].is_missing() ? "enum" : "const"));
}

}  // namespace millrace::grammar
