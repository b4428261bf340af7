#include "grammar/json_schema_violations.h"

#include <fmt/format.h>

#include <algorithm>

#include "grammar/json_schema_cases.h"
#include "grammar/json_schema_formats.h"
#include "grammar/json_schema_keywords.h"
#include "grammar/json_schema_members.h"
#include "grammar/json_schema_type_keywords.h"

namespace millrace::grammar {
namespace {

/// Leaves out one value. Leaves out all objects or arrays instead of a single one that is not empty.
bool exclude(CaseDraft& draft, JsonValue value) {
  SchemaCase& made = draft.made;
  made.has_exclusions = true;
  const TypeSet type = type_of(value);
  JsonArray array;
  JsonObject object;
  std::string_view text;
  if (auto number = value.is_number() ? parse_decimal(value.number_text()) : std::nullopt) {
    made.number.excluded.push_back(std::move(*number));
  } else if (value.get(text)) {
    made.string.excluded.push_back(text);
  } else if (value.get(array) && array.empty()) {
    made.array.min = std::max(made.array.min, 1u);
  } else if (value.get(object) && object.empty()) {
    made.object.min = std::max(made.object.min, 1u);
  } else {
    made.types &= static_cast<TypeSet>(~type);
  }
  return made.types != 0;
}

constexpr uint32_t kCheap = 0;
constexpr uint32_t kModerate = 1;
constexpr uint32_t kDear = 2;

/// Returns how much it takes to violate a schema: little if it is about single values or types.
uint32_t violation_cost(JsonValue schema) {
  for (const char* keyword : {"const", "enum"}) {
    if (!schema[keyword].is_missing()) return kModerate;
  }
  return kDear;
}

CaseWay of_types(TypeSet types, std::function<bool(CaseDraft&)> further, uint32_t cost = kModerate) {
  return {.types = types, .forbidden = {}, .open = {}, .further = std::move(further), .cost = cost};
}

/// Collects the violations of one schema, keyword by keyword.
class ViolationFinder {
 public:
  ViolationFinder(JsonObject schema, const std::string& path, SchemaDocument& document)
      : schema_(schema), path_(path), document_(document) {}

  Violations find() {
    for (const JsonMember& keyword : schema_) {
      if (!document_.is_effective(schema_, keyword)) continue;
      if (is_keyword_for(keyword.key, Constrained::kAny)) {
        add_applicator(keyword);
      } else if (is_keyword_for(keyword.key, Constrained::kObject)) {
        add_object_keyword(keyword);
      } else if (is_keyword_for(keyword.key, Constrained::kArray)) {
        add_array_keyword(keyword);
      } else if (is_keyword_for(keyword.key, Constrained::kString)) {
        add_string_keyword(keyword);
      } else {
        add_number_keyword(keyword);
      }
    }
    return std::move(found_);
  }

 private:
  void add(CaseWay way) { found_.ways.push_back(std::move(way)); }
  void add_open(std::vector<SchemaTerm> terms) { add({.open = std::move(terms), .cost = kModerate}); }
  [[nodiscard]] std::string inner(std::string_view keyword) const { return fmt::format("{}.{}", path_, keyword); }

  void add_applicator(const JsonMember& keyword) {
    const auto& [key, value] = keyword;
    if (key == "type") {
      const auto others = static_cast<TypeSet>(~types_named(value, path_));
      if (others != 0) add({.types = others, .open = {}, .cost = kCheap});
    } else if (key == "const") {
      add(of_types(kAllTypes, [constant = value](CaseDraft& draft) { return exclude(draft, constant); }));
    } else if (key == "enum") {
      JsonArray listed;
      if (!value.get(listed)) fail_at(path_, "enum: wanted an array of values");
      add(of_types(kAllTypes, [listed](CaseDraft& draft) {
        return std::ranges::all_of(listed, [&](JsonValue each) { return exclude(draft, each); });
      }));
    } else if (key == "not") {
      CaseWay way{.open = {{value, false, inner(key)}}, .cost = kModerate};
      way.further = [](CaseDraft& draft) {
        draft.made.object.has_unevaluated = true;
        return true;
      };
      add(std::move(way));
    } else if (key == "allOf") {
      for (SchemaTerm& term : terms_of_list(value, inner(key), true)) add_open({std::move(term)});
    } else if (key == "anyOf") {
      add_open(terms_of_list(value, inner(key), true));
    } else if (key == "oneOf") {
      add_none_or_two(value, inner(key));
    } else if (key == "if") {
      for (const bool is_met : {true, false}) {
        const char* name = is_met ? "then" : "else";
        if (schema_[name].is_missing()) continue;
        add_open({{value, !is_met, inner(key)}, {schema_[name], true, inner(name)}});
      }
    } else {
      add_open({referred_term(document_, keyword, true, path_)});
    }
  }

  void add_none_or_two(JsonValue list, const std::string& path) {
    const auto none = terms_of_list(list, path, true);
    const auto some = terms_of_list(list, path, false);
    add_open(none);
    for (size_t i = 0; i < some.size(); ++i) {
      for (size_t j = i + 1; j < some.size(); ++j) add_open({some[i], some[j]});
    }
  }

  /// Adds that a member exists, and violates its schema.
  void add_violating_member(std::string_view name, const SchemaTerm& term) {
    const auto add_member = [name, term](CaseDraft& draft) {
      draft.made.object.required.push_back(name);
      draft.made.object.members.emplace_back(name, term);
      return true;
    };
    add(of_types(kObjectType, add_member, violation_cost(term.schema)));
  }

  void add_object_keyword(const JsonMember& keyword) {
    const auto& [key, value] = keyword;
    JsonObject members;
    if (key == "required") {
      for (const std::string_view name : names_of_keyword(keyword, path_)) {
        add({.types = kObjectType, .forbidden = name, .open = {}, .cost = kCheap});
      }
    } else if (key == "properties" && value.get(members)) {
      for (const auto& [name, schema] : members) {
        JsonObject inner_schema;
        const bool allows_all = schema.is_true() || (schema.get(inner_schema) && inner_schema.empty());
        if (allows_all) continue;
        add_violating_member(name, {schema, true, fmt::format("{}.{}", inner(key), name.substr(0, 64))});
      }
    } else if (key == "minProperties" || key == "maxProperties") {
      const bool is_min = key == "minProperties";
      const auto count = count_of(schema_, key, path_);
      if (!count || (is_min && *count == 0)) return;
      add(of_types(kObjectType, [is_min, count = *count](CaseDraft& draft) {
        ObjectConditions& object = draft.made.object;
        if (is_min) object.max = std::min(object.max.value_or(count - 1), count - 1);
        if (!is_min) object.min = std::max(object.min, count + 1);
        return true;
      }));
    } else if ((key == "dependencies" || key == "dependentRequired" || key == "dependentSchemas") &&
               value.get(members)) {
      for (const JsonMember& dependency : members) add_dependency(keyword, dependency);
    } else if (key == "additionalProperties" || key == "propertyNames") {
      add_witness({.schema = schema_, .keyword = key, .pattern = {}, .path = inner(key)});
    } else if (key == "patternProperties" && value.get(members)) {
      for (const JsonMember& pattern : members) {
        add_witness({.schema = schema_, .keyword = key, .pattern = pattern, .path = inner(key)});
      }
    } else {
      found_.unwritable = key;
    }
  }

  void add_witness(ObjectConditions::Witness witness) {
    add(of_types(kObjectType, [witness = std::move(witness)](CaseDraft& draft) {
      draft.made.object.witnesses.push_back(witness);
      return true;
    }));
  }

  void add_dependency(const JsonMember& keyword, const JsonMember& dependency) {
    const auto with = [name = dependency.key](CaseDraft& draft) {
      draft.made.object.required.push_back(name);
      return true;
    };
    if (!dependency.value.is_array()) {
      CaseWay way = of_types(kObjectType, with);
      way.open.push_back({dependency.value, true, fmt::format("{}.{}", inner(keyword.key), dependency.key)});
      add(std::move(way));
      return;
    }
    for (const std::string_view other : names_of_keyword({keyword.key, dependency.value}, path_)) {
      CaseWay way = of_types(kObjectType, with);
      way.forbidden = other;
      add(std::move(way));
    }
  }

  void add_array_keyword(const JsonMember& keyword) {
    const auto& [key, value] = keyword;
    if (key == "minItems" || key == "maxItems") {
      const bool is_min = key == "minItems";
      const auto count = count_of(schema_, key, path_);
      if (!count || (is_min && *count == 0)) return;
      add(of_types(kArrayType, [is_min, count = *count](CaseDraft& draft) {
        ArrayConditions& array = draft.made.array;
        if (is_min) array.max = std::min(array.max.value_or(count - 1), count - 1);
        if (!is_min) array.min = std::max(array.min, count + 1);
        return true;
      }));
    } else if (key == "items" || key == "prefixItems") {
      add_item_violations(key);
    } else if (key == "contains" && schema_["minContains"].is_missing() && schema_["maxContains"].is_missing()) {
      add(of_types(kArrayType, [term = SchemaTerm{value, true, inner(key)}](CaseDraft& draft) {
        draft.made.array.every.push_back(term);
        return true;
      }));
    } else if (key != "additionalItems") {
      found_.unwritable = key;
    }
  }

  void add_item_violations(std::string_view keyword) {
    if (keyword == "prefixItems" && !schema_["items"].is_missing()) return;  // "items" adds both
    const ArrayConditions::Source source = item_source(schema_, path_);
    uint32_t index = 0;
    for (const JsonValue item : source.prefix) {
      const SchemaTerm term{item, true, fmt::format("{}[{}]", source.prefix_path, index)};
      add(of_types(kArrayType, [index, term](CaseDraft& draft) {
        draft.made.array.items.emplace_back(index, term);
        draft.made.array.min = std::max(draft.made.array.min, index + 1);
        return true;
      }));
      ++index;
    }
    if (source.rest.is_missing() || source.rest.is_true()) return;
    if (index > 0 && !source.rest.is_false()) {
      found_.unwritable = keyword;
      return;
    }
    add(of_types(kArrayType, [index, term = SchemaTerm{source.rest, true, source.rest_path}](CaseDraft& draft) {
      draft.made.array.min = std::max(draft.made.array.min, index + 1);
      if (index == 0) draft.made.array.contained.push_back({.term = term, .min = 1});
      return true;
    }));
  }

  void add_string_keyword(const JsonMember& keyword) {
    const std::string_view key = keyword.key;
    if (key == "minLength" || key == "maxLength") {
      const bool is_min = key == "minLength";
      const auto count = count_of(schema_, key, path_);
      if (!count || (is_min && *count == 0)) return;
      add(of_types(kStringType, [is_min, count = *count](CaseDraft& draft) {
        StringConditions& string = draft.made.string;
        if (is_min) string.max = std::min(string.max.value_or(count - 1), count - 1);
        if (!is_min) string.min = std::max(string.min, count + 1);
        return true;
      }));
      return;
    }
    if (key == "format" && format_bound(text_of_keyword(keyword, path_)) == nullptr) {
      found_.unwritable = key;
      return;
    }
    const StringConditions::Text text{.text = text_of_keyword(keyword, path_), .is_negated = true, .path = path_};
    add(of_types(kStringType, [is_pattern = key == "pattern", text](CaseDraft& draft) {
      (is_pattern ? draft.made.string.patterns : draft.made.string.formats).push_back(text);
      return true;
    }));
  }

  void add_number_keyword(const JsonMember& keyword) {
    if (keyword.value.is_bool()) return;
    add(of_types(kNumberTypes, [schema = schema_, keyword, path = path_](CaseDraft& draft) {
      if (keyword.key != "multipleOf") {
        add_number_bound(draft, schema, keyword, true, path);
      } else {
        draft.made.number.multiples.push_back({.divisor = divisor_of_keyword(keyword.value, path), .is_negated = true});
      }
      return true;
    }));
  }

  const JsonObject schema_;
  const std::string& path_;
  SchemaDocument& document_;
  Violations found_;
};

}  // namespace

Violations violations_of(JsonObject schema, const std::string& path, SchemaDocument& document) {
  return ViolationFinder(schema, path, document).find();
}

}  // namespace millrace::grammar
