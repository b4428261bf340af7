#include "grammar/json_schema_members.h"

#include <fmt/format.h>

#include <algorithm>

namespace millrace::grammar {
namespace {

using Source = ObjectConditions::Source;

std::string member_path(const Source& source, std::string_view keyword, std::string_view name) {
  return fmt::format("{}.{}.{}", source.path, keyword, name.substr(0, 64));
}

const TextLanguage& language_at(SchemaDocument& document, std::string_view pattern, const std::string& path) {
  return at_position(path, [&]() -> const TextLanguage& { return document.pattern_language(pattern); });
}

/// Adds what a source says of the value of a member whose name no pattern and no property of it has.
bool add_additional(const Source& source, std::vector<SchemaTerm>& terms) {
  if (source.additional.is_missing() || source.additional.is_true()) return true;
  if (source.additional.is_false()) return false;
  terms.push_back({source.additional, false, source.path + ".additionalProperties"});
  return true;
}

}  // namespace

std::optional<std::vector<SchemaTerm>> terms_of_member(const ObjectConditions& object, std::string_view name,
                                                       SchemaDocument& document) {
  if (std::ranges::find(object.forbidden, name) != object.forbidden.end()) return std::nullopt;
  std::vector<SchemaTerm> terms;
  const auto add = [&](JsonValue schema, std::string path) {
    if (!schema.is_true()) terms.push_back({schema, false, std::move(path)});
    return !schema.is_false();
  };
  bool is_known = false;
  for (const Source& source : object.sources) {
    document.work().spend(1 + source.properties.size() / 4 + source.patterns.size() * (1 + name.size()));
    bool is_named = false;
    if (const JsonValue own = source.properties[name]; !own.is_missing()) {
      is_named = true;
      if (!add(own, member_path(source, "properties", name))) return std::nullopt;
    }
    for (const auto& [pattern, schema] : source.patterns) {
      const std::string path = member_path(source, "patternProperties", pattern);
      if (!language_at(document, pattern, path).accepts(name)) continue;
      is_named = true;
      if (!add(schema, path)) return std::nullopt;
    }
    if (!is_named && !add_additional(source, terms)) return std::nullopt;
    is_known = is_known || is_named || !source.additional.is_missing();
  }
  if (!is_known && object.unnamed && !add(object.unnamed->schema, object.unnamed->path)) return std::nullopt;
  for (const auto& [member, term] : object.members) {
    if (member == name) terms.push_back(term);
  }
  return terms;
}

std::vector<MemberClass> other_members(const ObjectConditions& object, const std::vector<std::string_view>& known,
                                       const std::string& path, SchemaDocument& document) {
  constexpr size_t kMaxClasses = 32;
  struct Class {
    TextLanguage names;
    std::vector<std::pair<size_t, JsonMember>> matched;  // source and pattern
  };
  ReadWork& work = document.work();
  std::vector<Class> classes{
      {at_position(path, [&] { return TextLanguage::exactly(known, work).complement(work); }), {}}};
  for (size_t i = 0; i < object.sources.size(); ++i) {
    for (const JsonMember& pattern : object.sources[i].patterns) {
      const std::string pattern_path = member_path(object.sources[i], "patternProperties", pattern.key);
      const TextLanguage& matching = language_at(document, pattern.key, pattern_path);
      const TextLanguage rest = matching.complement(work);
      std::vector<Class> split;
      for (const Class& each : classes) {
        Class inside{at_position(pattern_path, [&] { return each.names.and_also(matching, work); }), each.matched};
        inside.matched.emplace_back(i, pattern);
        Class outside{at_position(pattern_path, [&] { return each.names.and_also(rest, work); }), each.matched};
        for (Class* part : {&inside, &outside}) {
          if (!part->names.is_empty()) split.push_back(std::move(*part));
        }
      }
      classes = std::move(split);
      if (classes.size() > kMaxClasses) fail_at(pattern_path, "its patterns overlap in too many ways");
    }
  }
  std::vector<MemberClass> members;
  for (const Class& each : classes) {
    std::vector<SchemaTerm> terms;
    bool is_allowed = true;
    bool is_known = false;
    for (size_t i = 0; i < object.sources.size(); ++i) {
      const Source& source = object.sources[i];
      bool is_named = false;
      for (const auto& [index, pattern] : each.matched) {
        if (index != i) continue;
        is_named = true;
        terms.push_back({pattern.value, false, member_path(source, "patternProperties", pattern.key)});
        is_allowed = is_allowed && !pattern.value.is_false();
      }
      is_allowed = is_allowed && (is_named || add_additional(source, terms));
      is_known = is_known || is_named || !source.additional.is_missing();
    }
    if (!is_known && object.unnamed) {
      terms.push_back(*object.unnamed);
      is_allowed = is_allowed && !object.unnamed->schema.is_false();
    }
    if (is_allowed) members.push_back({.names = each.names, .terms = std::move(terms), .is_declared = is_known});
  }
  return members;
}

SchemaTerm referred_term(SchemaDocument& document, const JsonMember& keyword, bool is_negated,
                         const std::string& path) {
  std::string_view target;
  if (!keyword.value.get(target)) fail_at(path, fmt::format("{}: wanted a string", keyword.key));
  const JsonValue found = at_position(
      path, [&] { return keyword.key == "$ref" ? document.referred(target) : document.dynamically_referred(target); });
  return {found, is_negated, std::string(target)};
}

}  // namespace millrace::grammar
