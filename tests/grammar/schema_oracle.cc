#include "grammar/schema_oracle.h"

#include "base/json.h"

#include <algorithm>
#include <cmath>

namespace millrace::test {
namespace {

double number_of(JsonValue value) {
  double number = std::nan("");
  (void)value.get(number);
  return number;
}

std::vector<JsonValue> items_of(JsonValue value) {
  JsonArray array;
  if (!value.get(array)) return {};
  return {array.begin(), array.end()};
}

std::string_view text_of(JsonValue value) {
  std::string_view text;
  (void)value.get(text);
  return text;
}

bool is_of_type(JsonValue value, std::string_view type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_bool();
  if (type == "string") return value.is_string();
  if (type == "array") return value.is_array();
  if (type == "object") return value.is_object();
  return value.is_number() && (type == "number" || number_of(value) == std::floor(number_of(value)));
}

bool are_same(JsonValue left, JsonValue right) {
  if (left.kind() != right.kind()) return false;
  if (left.is_number()) return number_of(left) == number_of(right);
  if (left.is_array()) return std::ranges::equal(items_of(left), items_of(right), are_same);
  JsonObject ours;
  JsonObject theirs;
  if (!left.get(ours) || !right.get(theirs)) return to_json(left) == to_json(right);
  return ours.size() == theirs.size() && std::ranges::all_of(ours, [&](const JsonMember& member) {
           return !theirs[member.key].is_missing() && are_same(member.value, theirs[member.key]);
         });
}

bool is_found(std::string_view pattern, std::string_view text) {
  if (pattern.starts_with('^')) return text.starts_with(pattern.substr(1));
  return text.find(pattern) != std::string_view::npos;
}

}  // namespace

bool SchemaOracle::is_valid(JsonValue value, JsonValue schema) const {
  if (schema.is_bool()) return schema.is_true();
  JsonObject object;
  (void)schema.get(object);
  return std::ranges::all_of(
      object, [&](const JsonMember& member) { return satisfies(value, object, member.key, member.value); });
}

bool SchemaOracle::satisfies(JsonValue value, JsonObject schema, std::string_view key, JsonValue wanted) const {
  const auto holds = [&](JsonValue each) { return is_valid(value, each); };
  if (key == "type") {
    if (wanted.is_string()) return is_of_type(value, text_of(wanted));
    return std::ranges::any_of(items_of(wanted), [&](JsonValue type) { return is_of_type(value, text_of(type)); });
  }
  if (key == "const") return are_same(value, wanted);
  if (key == "enum")
    return std::ranges::any_of(items_of(wanted), [&](JsonValue each) { return are_same(value, each); });
  if (key == "allOf") return std::ranges::all_of(items_of(wanted), holds);
  if (key == "anyOf") return std::ranges::any_of(items_of(wanted), holds);
  if (key == "oneOf") return std::ranges::count_if(items_of(wanted), holds) == 1;
  if (key == "not") return !is_valid(value, wanted);
  if (key == "if") {
    const JsonValue branch = schema[is_valid(value, wanted) ? "then" : "else"];
    return branch.is_missing() || is_valid(value, branch);
  }
  if (key == "$ref") return is_valid(value, root_.at_pointer(text_of(wanted).substr(1)));
  JsonObject object;
  if (value.get(object)) return satisfies_object(object, schema, key, wanted);
  JsonArray array;
  if (value.get(array)) return satisfies_array(array, schema, key, wanted);
  if (value.is_string()) {
    const auto length = static_cast<double>(
        std::ranges::count_if(text_of(value), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
    if (key == "minLength") return length >= number_of(wanted);
    if (key == "maxLength") return length <= number_of(wanted);
    return key != "pattern" || is_found(text_of(wanted), text_of(value));
  }
  if (!value.is_number()) return true;
  const double number = number_of(value);
  if (key == "minimum") return number >= number_of(wanted);
  if (key == "maximum") return number <= number_of(wanted);
  if (key == "exclusiveMinimum") return number > number_of(wanted);
  if (key == "exclusiveMaximum") return number < number_of(wanted);
  return key != "multipleOf" || std::fmod(number, number_of(wanted)) == 0;
}

bool SchemaOracle::satisfies_object(JsonObject value, JsonObject schema, std::string_view key, JsonValue wanted) const {
  const auto size = static_cast<double>(value.size());
  const auto has = [&](JsonValue name) { return !value[text_of(name)].is_missing(); };
  if (key == "minProperties") return size >= number_of(wanted);
  if (key == "maxProperties") return size <= number_of(wanted);
  if (key == "required") return std::ranges::all_of(items_of(wanted), has);
  JsonObject members;
  (void)wanted.get(members);
  if (key == "dependentRequired") {
    return std::ranges::all_of(members, [&](const JsonMember& member) {
      return value[member.key].is_missing() || std::ranges::all_of(items_of(member.value), has);
    });
  }
  return std::ranges::all_of(value, [&](const JsonMember& member) {
    const JsonValue own = schema["properties"][member.key];
    JsonObject patterns;
    (void)schema["patternProperties"].get(patterns);
    if (key == "properties") return own.is_missing() || is_valid(member.value, own);
    const auto matches = [&](const JsonMember& pattern) { return is_found(pattern.key, member.key); };
    if (key == "patternProperties") {
      return std::ranges::all_of(
          patterns, [&](const JsonMember& each) { return !matches(each) || is_valid(member.value, each.value); });
    }
    if (key == "propertyNames") {
      std::string name;
      append_json_string(name, member.key);
      const auto document = JsonDocument::parse(name).value();
      return is_valid(document.root(), wanted);
    }
    if (key != "additionalProperties") return true;
    return !own.is_missing() || std::ranges::any_of(patterns, matches) || is_valid(member.value, wanted);
  });
}

bool SchemaOracle::satisfies_array(JsonArray value, JsonObject schema, std::string_view key, JsonValue wanted) const {
  const auto size = static_cast<double>(value.size());
  const std::vector<JsonValue> items(value.begin(), value.end());
  const auto is_wanted = [&](JsonValue item) { return is_valid(item, wanted); };
  if (key == "minItems") return size >= number_of(wanted);
  if (key == "maxItems") return size <= number_of(wanted);
  if (key == "contains") return std::ranges::any_of(items, is_wanted);
  const std::vector<JsonValue> prefix = items_of(schema["prefixItems"]);
  const size_t known = std::min(prefix.size(), items.size());
  if (key == "items") return std::all_of(items.begin() + static_cast<std::ptrdiff_t>(known), items.end(), is_wanted);
  if (key == "prefixItems") {
    for (size_t i = 0; i < known; ++i) {
      if (!is_valid(items[i], prefix[i])) return false;
    }
    return true;
  }
  if (key != "uniqueItems" || !wanted.is_true()) return true;
  for (size_t i = 0; i < items.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (are_same(items[i], items[j])) return false;
    }
  }
  return true;
}

}  // namespace millrace::test
