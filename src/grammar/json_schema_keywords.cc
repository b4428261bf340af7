#include "grammar/json_schema_keywords.h"

#include <algorithm>
#include <array>

#include "grammar/json_schema_formats.h"

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
    Keyword{"not", Constrained::kAny, true},
    Keyword{"if", Constrained::kAny, true},
    Keyword{"$dynamicRef", Constrained::kAny, true},
    Keyword{"$recursiveRef", Constrained::kAny, true},
    Keyword{"properties", Constrained::kObject, true},
    Keyword{"required", Constrained::kObject, true},
    Keyword{"additionalProperties", Constrained::kObject, true},
    Keyword{"patternProperties", Constrained::kObject, true},
    Keyword{"propertyNames", Constrained::kObject, true},
    Keyword{"minProperties", Constrained::kObject, true},
    Keyword{"maxProperties", Constrained::kObject, true},
    Keyword{"unevaluatedProperties", Constrained::kObject, true},
    Keyword{"dependencies", Constrained::kObject, true},
    Keyword{"dependentRequired", Constrained::kObject, true},
    Keyword{"dependentSchemas", Constrained::kObject, true},
    Keyword{"items", Constrained::kArray, true},
    Keyword{"prefixItems", Constrained::kArray, true},
    Keyword{"minItems", Constrained::kArray, true},
    Keyword{"maxItems", Constrained::kArray, true},
    Keyword{"additionalItems", Constrained::kArray, true},
    Keyword{"uniqueItems", Constrained::kArray, true},
    Keyword{"contains", Constrained::kArray, true},
    Keyword{"unevaluatedItems", Constrained::kArray, false},
    Keyword{"minLength", Constrained::kString, true},
    Keyword{"maxLength", Constrained::kString, true},
    Keyword{"pattern", Constrained::kString, true},
    Keyword{"format", Constrained::kString, true},
    Keyword{"minimum", Constrained::kNumber, true},
    Keyword{"maximum", Constrained::kNumber, true},
    Keyword{"exclusiveMinimum", Constrained::kNumber, true},
    Keyword{"exclusiveMaximum", Constrained::kNumber, true},
    Keyword{"multipleOf", Constrained::kNumber, true},
};

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

/// Returns whether a keyword allows everything.
bool is_vacuous(JsonObject schema, const JsonMember& member) {
  const auto& [key, value] = member;
  JsonObject members;
  if (key == "uniqueItems" || key == "not") return value.is_false();
  if (key == "if") return is_condition_vacuous(schema);
  if (key == "minProperties") return is_zero(value);
  // In a schema of no type they would exclude all other types, as other keywords do.
  if (key == "properties") return value.get(members) && members.empty() && schema["type"].is_missing();
  JsonArray names;
  if (key == "required") return value.get(names) && names.empty();
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
  std::string_view text;
  if (keyword->name == "format" && member.value.get(text)) return is_enforced_format(text);
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

}  // namespace millrace::grammar
