#include "grammar/json_schema_keywords.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace millrace::grammar {
namespace {

struct Keyword {
  std::string_view name;
  Constrained type;
  bool is_enforced;
};

constexpr std::array kKeywords = {
    Keyword{"type", Constrained::kAny, true},
    Keyword{"enum", Constrained::kAny, true},
    Keyword{"const", Constrained::kAny, true},
    Keyword{"anyOf", Constrained::kAny, true},
    Keyword{"oneOf", Constrained::kAny, true},
    Keyword{"allOf", Constrained::kAny, true},
    Keyword{"$ref", Constrained::kAny, true},
    Keyword{"not", Constrained::kAny, false},
    Keyword{"if", Constrained::kAny, false},
    Keyword{"$dynamicRef", Constrained::kAny, false},
    Keyword{"$recursiveRef", Constrained::kAny, false},
    Keyword{"properties", Constrained::kObject, true},
    Keyword{"required", Constrained::kObject, true},
    Keyword{"additionalProperties", Constrained::kObject, true},
    Keyword{"patternProperties", Constrained::kObject, false},
    Keyword{"propertyNames", Constrained::kObject, false},
    Keyword{"minProperties", Constrained::kObject, false},
    Keyword{"maxProperties", Constrained::kObject, false},
    Keyword{"unevaluatedProperties", Constrained::kObject, false},
    Keyword{"dependencies", Constrained::kObject, false},
    Keyword{"dependentRequired", Constrained::kObject, false},
    Keyword{"dependentSchemas", Constrained::kObject, false},
    Keyword{"items", Constrained::kArray, true},
    Keyword{"prefixItems", Constrained::kArray, true},
    Keyword{"minItems", Constrained::kArray, true},
    Keyword{"maxItems", Constrained::kArray, true},
    Keyword{"additionalItems", Constrained::kArray, true},
    Keyword{"uniqueItems", Constrained::kArray, false},
    Keyword{"contains", Constrained::kArray, false},
    Keyword{"unevaluatedItems", Constrained::kArray, false},
    Keyword{"minLength", Constrained::kString, true},
    Keyword{"maxLength", Constrained::kString, true},
    Keyword{"pattern", Constrained::kString, true},
    Keyword{"format", Constrained::kString, true},
    Keyword{"minimum", Constrained::kNumber, true},
    Keyword{"maximum", Constrained::kNumber, true},
    Keyword{"exclusiveMinimum", Constrained::kNumber, true},
    Keyword{"exclusiveMaximum", Constrained::kNumber, true},
    Keyword{"multipleOf", Constrained::kNumber, false},
};

/// Formats by RFC 3339 and RFC 9562, and the usual shape of an address.
struct Format {
  std::string_view name;
  std::string_view pattern;
};
/// Days exist in their month and year.
constexpr std::string_view kDate =
    R"((\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8])))"
    R"(|(\d\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29))";
constexpr std::string_view kTime = R"(([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d))";
constexpr std::array kFormats = {
    Format{"date", kDate}, Format{"time", kTime},
    Format{"uuid", R"([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12})"},
    Format{"ipv4", R"(((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))"},
    Format{"email", R"([A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63}){1,8})"}};

const Keyword* find_keyword(std::string_view name) {
  const auto found = std::ranges::find(kKeywords, name, &Keyword::name);
  return found == kKeywords.end() ? nullptr : &*found;
}

bool is_name_of(std::string_view type_name, Constrained type) {
  switch (type) {
    case Constrained::kObject: return type_name == "object";
    case Constrained::kArray: return type_name == "array";
    case Constrained::kString: return type_name == "string";
    case Constrained::kNumber: return type_name == "number" || type_name == "integer";
    case Constrained::kAny: break;
  }
  return true;
}

/// Returns whether "type" excludes all instances of one type.
bool excludes(JsonObject schema, Constrained type) {
  const JsonValue types = schema["type"];
  std::string_view name;
  if (types.get(name)) return !is_name_of(name, type);
  JsonArray names;
  if (!types.get(names)) return false;
  return std::ranges::none_of(names, [&](JsonValue item) { return !item.get(name) || is_name_of(name, type); });
}

/// Returns whether a schema is known to allow every instance of one type.
bool allows_all(JsonValue value, Constrained type) {
  JsonObject schema;
  if (!value.get(schema)) return value.is_true();
  return std::ranges::all_of(schema, [&](const JsonMember& member) {
    if (member.key == "type")
      return type != Constrained::kAny && type != Constrained::kNumber && !excludes(schema, type);
    const Keyword* keyword = find_keyword(member.key);
    const bool is_about_others =
        keyword != nullptr && keyword->type != Constrained::kAny && type != Constrained::kAny && keyword->type != type;
    return is_about_others || !is_constraint(schema, member);
  });
}

bool is_zero(JsonValue value) {
  double number = -1;
  return value.get(number) && number == 0;
}

/// Returns whether all members of an object allow everything, as names of no member or as schemas.
bool are_dependencies_vacuous(JsonValue value) {
  JsonObject members;
  return value.get(members) && std::ranges::all_of(members, [](const JsonMember& member) {
           JsonArray names;
           return member.value.get(names) ? names.empty() : allows_all(member.value, Constrained::kObject);
         });
}

/// Returns whether "if" and its branches allow everything.
bool is_condition_vacuous(JsonObject schema) {
  const auto is_vacuous = [&](const char* name) {
    return schema[name].is_missing() || allows_all(schema[name], Constrained::kAny);
  };
  return is_vacuous("then") && is_vacuous("else");
}

bool is_multiple_vacuous(JsonObject schema, JsonValue divisor) {
  std::string_view type;
  double number = 0;
  return schema["type"].get(type) && type == "integer" && divisor.get(number) && number == 1;
}

/// Returns whether a keyword that is not enforced allows everything.
bool is_vacuous(JsonObject schema, const JsonMember& member) {
  const auto& [key, value] = member;
  JsonObject members;
  if (key == "uniqueItems" || key == "not") return value.is_false();
  if (key == "if") return is_condition_vacuous(schema);
  if (key == "minProperties") return is_zero(value);
  if (key == "patternProperties") return value.get(members) && members.empty();
  if (key == "propertyNames") return allows_all(value, Constrained::kString);
  if (key == "dependencies" || key == "dependentRequired" || key == "dependentSchemas") {
    return are_dependencies_vacuous(value);
  }
  if (key == "contains") return is_zero(schema["minContains"]) && schema["maxContains"].is_missing();
  if (key == "unevaluatedProperties") {
    return !schema["additionalProperties"].is_missing() || allows_all(value, Constrained::kAny);
  }
  if (key == "unevaluatedItems") return allows_all(value, Constrained::kAny);
  return key == "multipleOf" && is_multiple_vacuous(schema, value);
}

}  // namespace

bool is_constraint(JsonObject schema, const JsonMember& member) {
  const Keyword* keyword = find_keyword(member.key);
  if (keyword == nullptr || (keyword->type != Constrained::kAny && excludes(schema, keyword->type))) return false;
  if (keyword->is_enforced) {
    std::string_view text;
    return keyword->name != "format" || !member.value.get(text) || !pattern_of_format(text).empty();
  }
  return !is_vacuous(schema, member);
}

bool is_keyword_for(std::string_view name, Constrained type) {
  const Keyword* keyword = find_keyword(name);
  return keyword != nullptr && keyword->type == type;
}

bool has_keyword_for(JsonObject schema, Constrained type) {
  return std::ranges::any_of(schema, [&](const JsonMember& member) {
    const Keyword* keyword = find_keyword(member.key);
    return keyword != nullptr && keyword->type == type && keyword->is_enforced && is_constraint(schema, member);
  });
}

std::string_view unenforced_keyword(JsonObject schema) {
  for (const JsonMember& member : schema) {
    const Keyword* keyword = find_keyword(member.key);
    if (keyword != nullptr && !keyword->is_enforced && is_constraint(schema, member)) return keyword->name;
  }
  return {};
}

std::string pattern_of_format(std::string_view name) {
  if (name == "date-time") return fmt::format("{}T{}", kDate, kTime);
  const auto found = std::ranges::find(kFormats, name, &Format::name);
  return std::string(found == kFormats.end() ? std::string_view() : found->pattern);
}

}  // namespace millrace::grammar
