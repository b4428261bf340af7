#include "grammar/json_schema_type_keywords.h"

#include <fmt/format.h>

#include <algorithm>

#include "grammar/json_schema_keywords.h"

namespace millrace::grammar {
namespace {

constexpr size_t kMaxProperties = 2000;
constexpr size_t kMaxPrefixItems = 2000;

JsonObject members_of_keyword(JsonObject schema, std::string_view keyword, const std::string& path) {
  JsonObject members;
  const JsonValue value = schema[keyword];
  if (!value.is_missing() && !value.get(members)) fail_at(path, fmt::format("{}: wanted an object", keyword));
  if (members.size() > kMaxProperties) fail_at(path, fmt::format("{}: wanted at most {}", keyword, kMaxProperties));
  return members;
}

void raise(uint32_t& min, std::optional<uint32_t> count) {
  min = std::max(min, count.value_or(0));
}

void lower(std::optional<uint32_t>& max, std::optional<uint32_t> count) {
  if (count) max = std::min(max.value_or(*count), *count);
}

/// Adds what a schema says of each member's value. Its first such keyword adds all.
void add_members(ObjectConditions& object, JsonObject schema, const JsonMember& keyword, const std::string& path) {
  for (const char* name : {"properties", "patternProperties", "additionalProperties"}) {
    if (name == keyword.key) break;
    if (!schema[name].is_missing() && is_constraint(schema, {name, schema[name]})) return;
  }
  ObjectConditions::Source source{.properties = members_of_keyword(schema, "properties", path),
                                  .patterns = members_of_keyword(schema, "patternProperties", path),
                                  .additional = schema["additionalProperties"],
                                  .path = path};
  object.sources.push_back(std::move(source));
}

bool add_dependencies(CaseDraft& draft, JsonObject schema, const JsonMember& keyword, const std::string& path) {
  for (const auto& [member, value] : members_of_keyword(schema, keyword.key, path)) {
    const std::string_view name = member;
    CaseWay without{.forbidden = name};
    CaseWay with;
    std::string_view single;
    std::vector<std::string_view> wanted;
    if (value.get(single)) {
      wanted.push_back(single);
    } else if (value.is_array()) {
      wanted = names_of_keyword({keyword.key, value}, path);
    } else {
      with.open.push_back({value, false, fmt::format("{}.{}.{}", path, keyword.key, name.substr(0, 64))});
      wanted.push_back(name);
    }
    if (!wanted.empty()) {
      with.further = [wanted](CaseDraft& way) {
        auto& required = way.made.object.required;
        required.insert(required.end(), wanted.begin(), wanted.end());
        return true;
      };
    }
    if (!draft.choose({std::move(without), std::move(with)})) return false;
  }
  return true;
}

bool add_object_keyword(CaseDraft& draft, JsonObject schema, const JsonMember& keyword, const std::string& path) {
  const auto& [key, value] = keyword;
  ObjectConditions& object = draft.made.object;
  if (key == "required") {
    const auto names = names_of_keyword(keyword, path);
    object.required.insert(object.required.end(), names.begin(), names.end());
  } else if (key == "minProperties") {
    raise(object.min, count_of(schema, key, path));
  } else if (key == "maxProperties") {
    lower(object.max, count_of(schema, key, path));
  } else if (key == "propertyNames") {
    object.names.push_back({value, false, path + ".propertyNames"});
  } else if (key == "unevaluatedProperties") {
    // What other schemas of the case evaluate is known only if they are all parts of this one.
    if (!draft.is_alone || draft.done.size() > 1) {
      fail_at(path, "the keyword 'unevaluatedProperties' is supported only where no other schema applies");
    }
    object.unnamed = SchemaTerm{value, false, path + ".unevaluatedProperties"};
  } else if (key == "properties" || key == "patternProperties" || key == "additionalProperties") {
    add_members(object, schema, keyword, path);
  } else {
    return add_dependencies(draft, schema, keyword, path);
  }
  return true;
}

bool add_array_keyword(ArrayConditions& array, JsonObject schema, const JsonMember& keyword, const std::string& path) {
  const auto& [key, value] = keyword;
  if (key == "minItems") {
    raise(array.min, count_of(schema, key, path));
  } else if (key == "maxItems") {
    lower(array.max, count_of(schema, key, path));
  } else if (key == "uniqueItems") {
    array.is_unique = array.is_unique || value.is_true();
    array.path = path;
  } else if (key == "contains") {
    if (!schema["maxContains"].is_missing()) fail_at(path, "the keyword 'maxContains' is not supported");
    const uint32_t min = count_of(schema, "minContains", path).value_or(1);
    array.contained.push_back({.term = {value, false, path + ".contains"}, .min = min});
  } else if (key == "items" || (key == "prefixItems" && schema["items"].is_missing())) {
    array.sources.push_back(item_source(schema, path));
  }
  return true;
}

bool add_string_keyword(StringConditions& string, JsonObject schema, const JsonMember& keyword,
                        const std::string& path) {
  if (keyword.key == "minLength") {
    raise(string.min, count_of(schema, keyword.key, path));
  } else if (keyword.key == "maxLength") {
    lower(string.max, count_of(schema, keyword.key, path));
  } else {
    auto& texts = keyword.key == "pattern" ? string.patterns : string.formats;
    texts.push_back({.text = text_of_keyword(keyword, path), .is_negated = false, .path = path});
  }
  return true;
}

}  // namespace

bool add_type_keyword(CaseDraft& draft, JsonObject schema, const JsonMember& keyword, const std::string& path) {
  if (is_keyword_for(keyword.key, Constrained::kObject)) {
    draft.made.keyword_types |= kObjectType;
    return add_object_keyword(draft, schema, keyword, path);
  }
  if (is_keyword_for(keyword.key, Constrained::kArray)) {
    draft.made.keyword_types |= kArrayType;
    return add_array_keyword(draft.made.array, schema, keyword, path);
  }
  if (is_keyword_for(keyword.key, Constrained::kString)) {
    draft.made.keyword_types |= kStringType;
    return add_string_keyword(draft.made.string, schema, keyword, path);
  }
  draft.made.keyword_types |= kNumberTypes;
  if (keyword.key == "multipleOf") {
    draft.made.number.multiples.push_back({.divisor = divisor_of_keyword(keyword.value, path), .is_negated = false});
  } else {
    add_number_bound(draft, schema, keyword, false, path);
  }
  return true;
}

void add_number_bound(CaseDraft& draft, JsonObject schema, const JsonMember& keyword, bool is_negated,
                      const std::string& path) {
  const auto& [key, value] = keyword;
  if (value.is_bool()) return;  // a flag of earlier drafts, which is read with its bound
  const bool is_lower = key == "minimum" || key == "exclusiveMinimum";
  const bool is_exclusive =
      key.starts_with("exclusive") || schema[is_lower ? "exclusiveMinimum" : "exclusiveMaximum"].is_true();
  const auto bound = bound_of(value, key, is_lower, path);
  if (bound) add_bound(draft.made.number, *bound, is_lower != is_negated, is_exclusive != is_negated);
}

ArrayConditions::Source item_source(JsonObject schema, const std::string& path) {
  // Earlier drafts write the items of known positions as "items", and the further ones as "additionalItems".
  const bool is_list = schema["items"].is_array();
  const std::string known = is_list ? "items" : "prefixItems";
  const std::string rest = is_list ? "additionalItems" : "items";
  ArrayConditions::Source source{.prefix = {},
                                 .rest = schema[rest],
                                 .prefix_path = fmt::format("{}.{}", path, known),
                                 .rest_path = fmt::format("{}.{}", path, rest)};
  if (!schema[known].is_missing() && !schema[known].get(source.prefix)) {
    fail_at(source.prefix_path, "wanted an array of schemas");
  }
  if (source.prefix.size() > kMaxPrefixItems) {
    fail_at(path, fmt::format("{}: wanted at most {}", known, kMaxPrefixItems));
  }
  return source;
}

Decimal divisor_of_keyword(JsonValue value, const std::string& path) {
  const auto divisor = value.is_number() ? parse_decimal(value.number_text()) : std::nullopt;
  if (!divisor || divisor->is_negative || divisor->is_zero()) fail_at(path, "multipleOf: wanted a number above 0");
  return *divisor;
}

std::string_view text_of_keyword(const JsonMember& keyword, const std::string& path) {
  std::string_view text;
  if (!keyword.value.get(text)) fail_at(path, fmt::format("{}: wanted a string", keyword.key));
  return text;
}

std::vector<std::string_view> names_of_keyword(const JsonMember& keyword, const std::string& path) {
  JsonArray array;
  if (keyword.value.is_bool()) return {};  // of draft 3, where each property has its own flag
  if (!keyword.value.get(array)) fail_at(path, fmt::format("{}: wanted an array of names", keyword.key));
  if (array.size() > kMaxProperties) {
    fail_at(path, fmt::format("{}: wanted at most {}", keyword.key, kMaxProperties));
  }
  std::vector<std::string_view> names;
  for (const JsonValue item : array) {
    if (!item.get(names.emplace_back())) fail_at(path, fmt::format("{}: wanted names", keyword.key));
  }
  return names;
}

}  // namespace millrace::grammar
