#include "grammar/json_schema_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <unordered_set>

#include "base/json.h"
#include "base/utf8.h"
#include "grammar/json_equality.h"
#include "grammar/json_schema_case.h"
#include "grammar/json_schema_keywords.h"

namespace millrace::grammar {
namespace {

[[noreturn]] void refuse_check(std::string_view problem) {
  throw ErrorException(make_error(ErrorCode::kInvalidArgument, "{}", problem));
}

double length_of(std::string_view text) {
  double length = 0;
  for (; !text.empty(); ++length) text.remove_prefix(decode_utf8(text).length);
  return length;
}

/// Returns whether a size is within a bound whose name begins with "min" or "max".
bool is_within(double size, const JsonMember& bound) {
  double wanted = 0;
  if (!bound.value.get(wanted)) refuse_check(fmt::format("{}: wanted a count", bound.key));
  return bound.key.starts_with("min") ? size >= wanted : size <= wanted;
}

JsonArray array_of(const JsonMember& keyword) {
  JsonArray array;
  if (!keyword.value.get(array)) refuse_check(fmt::format("{}: wanted an array", keyword.key));
  return array;
}

bool has_all(JsonObject value, JsonArray names) {
  return std::ranges::all_of(names, [&](JsonValue name) {
    std::string_view text;
    return !name.get(text) || !value[text].is_missing();
  });
}

}  // namespace

bool SchemaCheck::is_valid(JsonValue value, JsonValue schema) {
  document_.work().spend(2);
  if (schema.is_bool()) return schema.is_true();
  JsonObject object;
  if (!schema.get(object)) refuse_check("wanted an object, true or false");
  constexpr uint32_t kMaxDepth = 200;
  if (depth_ >= kMaxDepth) refuse_check("a listed value cannot be checked, its schemas are nested too deeply");
  ++depth_;
  const bool is_nullable = value.is_null() && object["nullable"].is_true();
  const bool is_satisfied = is_nullable || std::ranges::all_of(object, [&](const JsonMember& member) {
                              return !document_.is_effective(object, member) || satisfies(value, object, member);
                            });
  --depth_;
  return is_satisfied;
}

size_t SchemaCheck::count_valid(JsonValue value, JsonValue schemas) {
  JsonArray array;
  if (!schemas.get(array)) refuse_check("wanted an array of schemas");
  return static_cast<size_t>(std::ranges::count_if(array, [&](JsonValue each) { return is_valid(value, each); }));
}

bool SchemaCheck::satisfies(JsonValue value, JsonObject schema, const JsonMember& keyword) {
  const std::string_view key = keyword.key;
  if (key == "type") return (types_named(keyword.value, "type") & type_of(value)) != 0;
  ReadWork& work = document_.work();
  if (key == "const") return equality_key(value, work) == equality_key(keyword.value, work);
  if (key == "enum") {
    (void)array_of(keyword);
    return document_.listed_values().contains(keyword.value, value, work);
  }
  if (key == "$ref" || key == "$recursiveRef" || key == "$dynamicRef") {
    std::string_view reference;
    if (!keyword.value.get(reference)) refuse_check("$ref: wanted a string");
    return is_valid(value, key == "$ref" ? document_.referred(reference) : document_.dynamically_referred(reference));
  }
  if (key == "allOf") return count_valid(value, keyword.value) == array_of(keyword).size();
  if (key == "anyOf") return count_valid(value, keyword.value) > 0;
  if (key == "oneOf") return count_valid(value, keyword.value) == 1;
  if (key == "not") return !is_valid(value, keyword.value);
  if (key == "if") {
    const JsonValue branch = schema[is_valid(value, keyword.value) ? "then" : "else"];
    return branch.is_missing() || is_valid(value, branch);
  }
  JsonObject object;
  if (is_keyword_for(key, Constrained::kObject)) {
    return !value.get(object) || satisfies_object(value, schema, keyword);
  }
  JsonArray array;
  if (is_keyword_for(key, Constrained::kArray)) return !value.get(array) || satisfies_array(array, schema, keyword);
  std::string_view text;
  if (is_keyword_for(key, Constrained::kString)) return !value.get(text) || satisfies_string(text, keyword);
  return !value.is_number() || satisfies_number(value, schema, keyword);
}

bool SchemaCheck::satisfies_member(const JsonMember& member, JsonObject schema) {
  JsonObject properties;
  (void)schema["properties"].get(properties);
  document_.work().spend(1 + properties.size() / 4);
  const JsonValue own = properties[member.key];
  if (!own.is_missing() && !is_valid(member.value, own)) return false;
  bool is_named = !own.is_missing();
  JsonObject patterns;
  if (schema["patternProperties"].get(patterns)) {
    for (const auto& [pattern, each] : patterns) {
      document_.work().spend(1 + member.key.size());
      if (!document_.pattern_language(pattern).accepts(member.key)) continue;
      is_named = true;
      if (!is_valid(member.value, each)) return false;
    }
  }
  const JsonValue rest = schema["additionalProperties"];
  return is_named || rest.is_missing() || is_valid(member.value, rest);
}

bool SchemaCheck::satisfies_dependency(JsonObject value, JsonValue whole, const JsonMember& dependency) {
  if (value[dependency.key].is_missing()) return true;
  JsonArray names;
  if (dependency.value.get(names)) return has_all(value, names);
  std::string_view name;
  if (dependency.value.get(name)) return !value[name].is_missing();
  return is_valid(whole, dependency.value);
}

bool SchemaCheck::satisfies_object(JsonValue whole, JsonObject schema, const JsonMember& keyword) {
  const std::string_view key = keyword.key;
  JsonObject value;
  (void)whole.get(value);
  if (key == "required") return has_all(value, array_of(keyword));
  if (key == "minProperties" || key == "maxProperties") return is_within(static_cast<double>(value.size()), keyword);
  if (key == "properties" || key == "patternProperties" || key == "additionalProperties") {
    return std::ranges::all_of(value, [&](const JsonMember& member) { return satisfies_member(member, schema); });
  }
  if (key == "dependencies" || key == "dependentRequired" || key == "dependentSchemas") {
    JsonObject dependencies;
    if (!keyword.value.get(dependencies)) refuse_check(fmt::format("{}: wanted an object", key));
    return std::ranges::all_of(dependencies,
                               [&](const JsonMember& each) { return satisfies_dependency(value, whole, each); });
  }
  if (key == "propertyNames") {
    return std::ranges::all_of(value,
                               [&](const JsonMember& member) { return is_valid_name(member.key, keyword.value); });
  }
  refuse_check(fmt::format("'{}' together with 'enum' or 'const' is not supported", key));
}

bool SchemaCheck::is_valid_name(std::string_view name, JsonValue schema) {
  std::string text;
  append_json_string(text, name);
  const JsonDocument document = JsonDocument::parse(text).value();
  return is_valid(document.root(), schema);
}

bool SchemaCheck::satisfies_array(JsonArray value, JsonObject schema, const JsonMember& keyword) {
  const std::string_view key = keyword.key;
  if (key == "minItems" || key == "maxItems") return is_within(static_cast<double>(value.size()), keyword);
  if (key == "uniqueItems") {
    std::unordered_set<std::string> keys;
    return std::ranges::all_of(
        value, [&](JsonValue item) { return keys.insert(equality_key(item, document_.work())).second; });
  }
  if (key == "contains") {
    const auto count = std::ranges::count_if(value, [&](JsonValue item) { return is_valid(item, keyword.value); });
    double min = 1;
    double max = 0;
    (void)schema["minContains"].get(min);
    return static_cast<double>(count) >= min && (!schema["maxContains"].get(max) || static_cast<double>(count) <= max);
  }
  if (key == "unevaluatedItems") refuse_check("'unevaluatedItems' together with 'enum' or 'const' is not supported");
  const bool is_list = schema["items"].is_array();
  JsonArray prefix;
  (void)schema[is_list ? "items" : "prefixItems"].get(prefix);
  const JsonValue rest = schema[is_list ? "additionalItems" : "items"];
  size_t index = 0;
  for (const JsonValue item : value) {
    document_.work().spend(1 + std::min(index, prefix.size()) / 4);
    const JsonValue own = index < prefix.size() ? prefix.at(index) : rest;
    if (!own.is_missing() && !is_valid(item, own)) return false;
    ++index;
  }
  return true;
}

bool SchemaCheck::satisfies_string(std::string_view value, const JsonMember& keyword) {
  document_.work().spend(value.size());
  if (keyword.key == "minLength" || keyword.key == "maxLength") return is_within(length_of(value), keyword);
  std::string_view text;
  if (!keyword.value.get(text)) refuse_check(fmt::format("{}: wanted a string", keyword.key));
  const bool is_pattern = keyword.key == "pattern";
  return (is_pattern ? document_.pattern_language(text) : document_.format_language(text)).accepts(value);
}

bool SchemaCheck::satisfies_number(JsonValue value, JsonObject schema, const JsonMember& keyword) {
  const std::string_view key = keyword.key;
  if (keyword.value.is_bool()) return true;  // a flag of the other bound
  const auto number = parse_decimal(value.number_text());
  const auto other = keyword.value.is_number() ? parse_decimal(keyword.value.number_text()) : std::nullopt;
  if (!number || !other) refuse_check(fmt::format("{}: wanted numbers of few digits", key));
  if (key == "multipleOf") return is_multiple_of(*number, *other);
  const bool is_lower = key == "minimum" || key == "exclusiveMinimum";
  const bool is_exclusive =
      key.starts_with("exclusive") || schema[is_lower ? "exclusiveMinimum" : "exclusiveMaximum"].is_true();
  if (*number == *other) return !is_exclusive;
  return is_lower ? *number > *other : *number < *other;
}

}  // namespace millrace::grammar
