#include "server/schema_check.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <string>

#include "text/unicode.h"

namespace millrace::test {
namespace {

using Json = simdjson::dom::element;
using Type = simdjson::dom::element_type;

/// Returns the number, exact for every integer in these tests.
long double number_of(Json value) {
  if (value.is_int64()) return static_cast<long double>(value.get_int64().value());
  if (value.is_uint64()) return static_cast<long double>(value.get_uint64().value());
  return value.get_double().value();
}

bool has_type(Json value, std::string_view name) {
  switch (value.type()) {
    case Type::ARRAY: return name == "array";
    case Type::OBJECT: return name == "object";
    case Type::STRING: return name == "string";
    case Type::BOOL: return name == "boolean";
    case Type::NULL_VALUE: return name == "null";
    default: break;
  }
  return name == "number" || (name == "integer" && std::truncl(number_of(value)) == number_of(value));
}

bool any_type(Json value, Json wanted) {
  if (wanted.is_string()) return has_type(value, wanted.get_string().value());
  for (const Json name : wanted.get_array()) {
    if (has_type(value, name.get_string().value())) return true;
  }
  return false;
}

bool is_number(Json value) {
  return has_type(value, "number");
}

bool equal(Json a, Json b) {
  if (is_number(a) && is_number(b)) return number_of(a) == number_of(b);
  return std::string(simdjson::minify(a)) == std::string(simdjson::minify(b));
}

template <class Predicate>
bool all_items(Json value, Predicate predicate) {
  if (!value.is_array()) return true;
  for (const Json item : value.get_array()) {
    if (!predicate(item)) return false;
  }
  return true;
}

template <class Predicate>
bool all_members(Json value, Predicate predicate) {
  if (!value.is_object()) return true;
  for (const auto member : value.get_object()) {
    if (!predicate(member.key, member.value)) return false;
  }
  return true;
}

bool has_length(Json value, std::string_view word, Json bound) {
  const auto wanted = static_cast<size_t>(bound.get_uint64().value());
  if (word.ends_with("Length")) {
    if (!value.is_string()) return true;
    const size_t length = text::count_code_points(value.get_string().value());
    return word.starts_with("min") ? length >= wanted : length <= wanted;
  }
  if (word.ends_with("Items")) {
    if (!value.is_array()) return true;
    const size_t count = value.get_array().value().size();
    return word.starts_with("min") ? count >= wanted : count <= wanted;
  }
  return !value.is_object() || value.get_object().value().size() <= wanted;
}

/// Checks one keyword of a schema that is not about members of objects.
bool matches_word(Json value, std::string_view word, Json wanted, Json root) {
  if (word == "description" || word == "$defs") return true;
  if (word == "type") return any_type(value, wanted);
  if (word == "const") return equal(value, wanted);
  if (word == "enum") return !all_items(wanted, [&](Json each) { return !equal(value, each); });
  if (word == "allOf") return all_items(wanted, [&](Json each) { return matches(value, each, root); });
  if (word == "anyOf") return !all_items(wanted, [&](Json each) { return !matches(value, each, root); });
  if (word == "not") return !matches(value, wanted, root);
  if (word == "minimum") return !is_number(value) || number_of(value) >= number_of(wanted);
  if (word == "maximum") return !is_number(value) || number_of(value) <= number_of(wanted);
  if (word == "exclusiveMinimum") return !is_number(value) || number_of(value) > number_of(wanted);
  if (word == "items") return all_items(value, [&](Json each) { return matches(each, wanted, root); });
  if (word == "$ref") return matches(value, root.at_pointer(wanted.get_string().value().substr(1)), root);
  for (const char* known : {"minLength", "maxLength", "minItems", "maxItems", "maxProperties"}) {
    if (word == known) return has_length(value, word, wanted);
  }
  FAIL("the schema has the word " << word);
  return false;
}

bool is_digits(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

bool matches(Json value, Json schema, Json root) {
  Json properties;
  const bool has_properties = schema["properties"].get(properties) == simdjson::SUCCESS;
  return all_members(schema, [&](std::string_view word, Json wanted) {
    if (word == "required") {
      return !value.is_object() || all_items(wanted, [&](Json name) {
        return value[name.get_string().value()].error() == simdjson::SUCCESS;
      });
    }
    if (word == "properties") {
      return all_members(value, [&](std::string_view name, Json each) {
        Json known;
        return wanted[name].get(known) != simdjson::SUCCESS || matches(each, known, root);
      });
    }
    if (word == "propertyNames") {
      REQUIRE(wanted["pattern"].get_string().value() == "^[0-9]+$");
      return all_members(value, [](std::string_view name, Json) { return is_digits(name); });
    }
    if (word == "additionalProperties") {
      return all_members(value, [&](std::string_view name, Json each) {
        if (has_properties && properties[name].error() == simdjson::SUCCESS) return true;
        return wanted.is_object() ? matches(each, wanted, root) : wanted.get_bool().value();
      });
    }
    return matches_word(value, word, wanted, root);
  });
}

}  // namespace millrace::test
